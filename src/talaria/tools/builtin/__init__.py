"""The tools that come with Talaria."""

from talaria.tools.base import Tool
from talaria.tools.builtin.files import patch, read_file, write_file
from talaria.tools.builtin.search import search_files
from talaria.tools.builtin.terminal import terminal

BUILTIN: tuple[Tool, ...] = (read_file, write_file, patch, search_files, terminal)
