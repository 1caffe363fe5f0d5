"""Opens the screen before anything else is loaded: what is typed meanwhile waits."""

import asyncio
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talaria.cli import exits
from talaria.cli.notices import complain, say
from talaria.cli.options import CliOptions
from talaria.cli.screen.completing import LineCompleter, Typed
from talaria.cli.screen.screen import Screen
from talaria.config import paths
from talaria.core.aio import in_thread
from talaria.core.errors import TalariaError

if TYPE_CHECKING:
    from talaria.cli.screen.chat_screen import ChatScreen

_TALK = "talaria.cli.screen.chat_screen"


def run_screen(profile: str | None, options: CliOptions) -> int:
    return asyncio.run(Startup(profile, options).run())


class Startup:
    """Listens until the conversation does."""

    def __init__(self, profile: str | None, options: CliOptions) -> None:
        self._profile = profile
        self._options = options
        self._waiting: list[str] = []
        self._talk: ChatScreen | None = None
        self._code = exits.DONE
        self._task: asyncio.Task[None] | None = None
        self._typed = Typed(paths.home(profile), may_make=profile is None)
        self._completer = LineCompleter(Path.cwd())
        self._screen = Screen(
            self,
            history=self._typed,
            completer=self._completer,
        )
        self._typed.unfolded = self._screen.pastes.unfolded

    async def run(self) -> int:
        await self._screen.run(self._begin)
        if self._task is not None:
            if self._talk is None:
                self._task.cancel()
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.result()
            if self._talk is not None and self._talk.last_words:
                say(self._talk.last_words)
        return self._code

    def _begin(self) -> None:
        self._screen.show(lambda _: "")
        self._task = asyncio.create_task(self._open(), name="conversation")

    async def _open(self) -> None:
        """The conversation, from its beginning to its end."""
        try:
            talk: Any = (await in_thread(lambda: importlib.import_module(_TALK))).ChatScreen
            opened: ChatScreen = talk(self._screen, self._completer, self._typed, self._profile, self._options)
            self._code = await opened.run(self._hand_over)
        except TalariaError as error:
            self._screen.close()
            self._code = exits.code_for(error)
            await asyncio.sleep(0)
            complain(str(error))
        finally:
            self._screen.close()

    def _hand_over(self, talk: "ChatScreen") -> None:
        """It listens from now on; what was typed before comes first."""
        self._talk = talk
        waiting, self._waiting = self._waiting, []
        for text in waiting:
            talk.submitted(text)

    # What the person does

    def submitted(self, text: str) -> None:
        self._tell(lambda talk: talk.submitted(text), lambda: self._waiting.append(text))

    def steered(self, text: str) -> None:
        self._tell(lambda talk: talk.steered(text), lambda: self._waiting.append(text))

    def interrupted(self) -> None:
        self._tell(lambda talk: talk.interrupted(), self._screen.close)

    def left(self) -> None:
        self._tell(lambda talk: talk.left(), self._screen.close)

    def wants_details(self) -> None:
        self._tell(lambda talk: talk.wants_details(), lambda: None)

    def _tell(self, heard: "Callable[[ChatScreen], None]", unheard: Callable[[], None]) -> None:
        if self._talk is not None:
            heard(self._talk)
        else:
            unheard()
