"""The tools that come with Talaria."""

from talaria.tools.base import Tool
from talaria.tools.builtin.files import file_tools
from talaria.tools.builtin.search import search_files
from talaria.tools.builtin.seen import Seen
from talaria.tools.builtin.terminal import terminal

BUILTIN: tuple[Tool, ...] = (*file_tools(Seen()), search_files, terminal)
