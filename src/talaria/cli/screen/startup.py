"""Opens the screen before anything else is loaded. Lines typed in the meantime wait."""

import asyncio
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talaria.cli import exits
from talaria.cli.notices import complain, say
from talaria.cli.options import CliOptions
from talaria.cli.screen.line_input import InputHistory, LineCompleter
from talaria.cli.screen.screen import Screen
from talaria.config import paths
from talaria.core.aio import in_thread
from talaria.core.errors import TalariaError

if TYPE_CHECKING:
    from talaria.cli.screen.chat_screen import ChatScreen

_CHAT_MODULE = "talaria.cli.screen.chat_screen"


def run_screen(profile: str | None, options: CliOptions) -> int:
    return asyncio.run(Startup(profile, options).run())


class Startup:
    """Loads the chat, and listens to the screen until then."""

    def __init__(self, profile: str | None, options: CliOptions) -> None:
        self._profile = profile
        self._options = options
        self._waiting: list[str] = []
        self._chat: ChatScreen | None = None
        self._code = exits.DONE
        self._task: asyncio.Task[None] | None = None
        self._history = InputHistory(paths.home(profile), may_create=profile is None)
        self._completer = LineCompleter(Path.cwd())
        self._screen = Screen(self, history=self._history, completer=self._completer)
        self._history.unfold = self._screen.pastes.unfold

    async def run(self) -> int:
        def start() -> None:
            self._screen.show(lambda _: "")
            self._task = asyncio.create_task(self._run_chat(), name="conversation")

        await self._screen.run(start)
        if self._task is not None:
            if self._chat is None:
                self._task.cancel()
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.result()
            if self._chat is not None and self._chat.resume_hint:
                say(self._chat.resume_hint)
        return self._code

    async def _run_chat(self) -> None:
        def attach(chat: "ChatScreen") -> None:
            """From now on the chat listens, starting with the lines typed before it was loaded."""
            self._chat = self._screen.listener = chat
            for text in self._waiting:
                chat.submit(text)

        try:
            loaded: Any = (await in_thread(lambda: importlib.import_module(_CHAT_MODULE))).ChatScreen
            chat: ChatScreen = loaded(self._screen, self._completer, self._history, self._profile, self._options)
            self._code = await chat.run(attach)
        except TalariaError as error:
            self._screen.close()
            self._code = exits.code_for(error)
            await asyncio.sleep(0)
            complain(str(error))
        finally:
            self._screen.close()

    # What the person does

    def submit(self, text: str) -> None:
        self._waiting.append(text)

    def steer(self, text: str) -> None:
        self._waiting.append(text)

    def interrupt(self) -> None:
        self._screen.close()

    def leave(self) -> None:
        self._screen.close()

    def show_details(self) -> None: ...
