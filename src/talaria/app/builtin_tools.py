"""The tools that come with Talaria, and what they keep open: the shells and processes of sessions, and the browser.

Nothing is started before it is used."""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from talaria.config.project_settings import read_project_settings
from talaria.config.schema import Config
from talaria.core.aio import complete, in_thread
from talaria.core.clock import Clock
from talaria.core.ids import SessionId
from talaria.net.fetch import Fetch
from talaria.store.base import Store
from talaria.tools.base import Tool
from talaria.tools.builtin.code import code_tools
from talaria.tools.builtin.file_tools import file_tools, view_image
from talaria.tools.builtin.planning import clarify, todo
from talaria.tools.builtin.recall import recall_tools
from talaria.tools.builtin.search_tools import search_tools
from talaria.tools.builtin.terminal import process_tools, terminal_tools
from talaria.tools.builtin.web_tools import web_tools
from talaria.tools.file_content import ReadFiles
from talaria.tools.protected import Protected
from talaria.tools.workspaces import Workspaces

if TYPE_CHECKING:
    from talaria.tools.browser.browser import Browser
    from talaria.tools.undo.change_recorder import ChangeRecorder


NAMES = (
    *("read_file", "write_file", "patch", "search_files", "view_image", "terminal", "process", "execute_code"),
    *("recall", "session_search", "web_fetch", "web_search", "todo", "clarify"),
)
"""Every built-in tool that needs no extra package."""


def names() -> tuple[str, ...]:
    """All built-in tools that work on this machine."""
    if not _has_browser():
        return NAMES
    from talaria.tools.browser.browser_tools import NAMES as OF_BROWSER  # noqa: PLC0415

    return (*NAMES, *OF_BROWSER)


def _has_browser() -> bool:
    if find_spec("playwright") is None:
        return False
    from talaria.tools.browser.browser_process import find_executable  # noqa: PLC0415  (only loaded with a browser)

    return find_executable() is not None


class BuiltinTools:
    """Also the `SessionResources` of sessions."""

    def __init__(
        self,
        home: Path,
        config: Config,
        environment: Mapping[str, str],
        store: Store,
        clock: Clock,
        protected: Protected,
        programs: Sequence[Path] = (),
    ) -> None:
        """`programs`: files that run outside the sandbox, so nothing inside it may change them."""
        self._config = config
        self._environment = environment
        self._store = store
        self._clock = clock
        self._protected = protected
        self._browser: Browser | None = None
        self.workspaces = Workspaces(
            config.terminal,
            home,
            clock,
            config.web.allow_private,
            programs,
            people=protected.people,
            of_project=partial(read_project_settings, home, environment),
        )
        self._home = home
        self._recorder: ChangeRecorder | None = None

    @cached_property
    def tools(self) -> tuple[Tool, ...]:
        """Raises `MissingCredential` if a chosen service has no key."""
        web = self._config.web
        files: tuple[Tool, ...] = ()
        if self._config.terminal.backend != "ssh":  # commands there see other files than these tools would
            files = file_tools(ReadFiles(), self.workspaces.allow_change)
            files = (*files, *search_tools(self._protected, self.workspaces), view_image)
        browsing: tuple[Tool, ...] = ()
        if _has_browser():
            from talaria.tools.browser.browser import Browser  # noqa: PLC0415
            from talaria.tools.browser.browser_tools import browser_tools  # noqa: PLC0415

            self._browser = Browser(self._config.web, self._clock)
            browsing = browser_tools(self._browser)
        return (
            *files,
            *terminal_tools(self.workspaces),
            *process_tools(self.workspaces),
            *code_tools(self.workspaces),
            *recall_tools(self._store.journal, self._store.search, self._store.sessions),
            *web_tools(Fetch(web, self._clock), self._environment, web),
            *browsing,
            todo,
            clarify,
        )

    @property
    def recorder(self) -> "ChangeRecorder | None":
        """None if commands run on another machine, where changes cannot be recorded."""
        if self._recorder is not None or self._config.terminal.backend == "ssh":
            return self._recorder
        from talaria.store.sqlite.undo import SqliteUndoStore  # noqa: PLC0415  (a turn without tools does not need it)
        from talaria.tools.undo.change_recorder import ChangeRecorder, undo_file  # noqa: PLC0415

        self._recorder = ChangeRecorder(
            SqliteUndoStore(undo_file(self._home)),
            self._home,
            self._config.checkpoints,
            now=self._clock.now,
            has_background=self.workspaces.has_background,
        )
        return self._recorder

    def has_news(self, session: SessionId) -> bool:
        return self.workspaces.has_news(session)

    def take_news(self, session: SessionId) -> tuple[str, ...]:
        return self.workspaces.take_news(session)

    def has_shell(self, session: SessionId) -> bool:
        return self.workspaces.has(session)

    async def close(self, session: SessionId) -> None:
        await self.workspaces.close(session)
        if self._browser is not None:
            await self._browser.close(session)

    async def aclose(self) -> None:
        await self.workspaces.aclose()
        if self._recorder is not None:
            await complete(in_thread(self._recorder.close))
        if self._browser is not None:
            await self._browser.aclose()
