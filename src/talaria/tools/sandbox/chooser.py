"""Which sandbox commands run in: the one that the person has set, or the best that works here, found out by trying."""

# ruff: noqa: PLC0415  (only the sandbox that is chosen is loaded, by the first command)

import sys
import threading
from collections.abc import Callable

from talaria.core.errors import ToolFailed
from talaria.tools.sandbox.base import ProgramSandbox, Sandbox
from talaria.tools.sandbox.sandbox_settings import TerminalSettings


class SandboxChooser:
    def __init__(self, settings: TerminalSettings) -> None:
        self.tell: Callable[[Sandbox], None] = lambda _: None
        """Called once, in the thread that chose, before anything runs in the sandbox."""
        self._settings = settings
        self._trying = threading.Lock()
        self._sandbox: Sandbox | None = None

    @property
    def sandbox(self) -> Sandbox:
        """Takes a moment the first time."""
        with self._trying:
            if self._sandbox is None:
                match self._settings.backend:
                    case "local":
                        from talaria.tools.sandbox.local import Local

                        sandbox = Local()
                    case "docker":
                        from talaria.tools.sandbox.docker import Docker

                        sandbox = Docker(self._settings.docker)
                    case "ssh":
                        from talaria.tools.sandbox.ssh import Ssh

                        sandbox = Ssh(self._settings.ssh)
                    case _:
                        sandbox = on_this_machine(self._settings)
                self.tell(sandbox)
                self._sandbox = sandbox
            return self._sandbox


def on_this_machine(settings: TerminalSettings) -> Sandbox:
    """The one that is set if it is a sandbox of this machine, otherwise the best that works."""
    match settings.backend:
        case "bubblewrap":
            from talaria.tools.sandbox.bubblewrap import Bubblewrap

            return Bubblewrap()
        case "landlock":
            from talaria.tools.sandbox.landlocked import Landlocked

            return Landlocked()
        case "seatbelt":
            from talaria.tools.sandbox.seatbelt import Seatbelt

            return Seatbelt()
        case _:
            return best() if sys.platform != "darwin" else best_of_macos()


def for_programs(settings: TerminalSettings) -> ProgramSandbox:
    """For a program that runs on this machine, wherever commands run. Raises `ToolFailed` if no sandbox works here."""
    from talaria.tools.sandbox import bubblewrap, landlocked, seatbelt

    found = on_this_machine(settings)
    if isinstance(found, bubblewrap.Bubblewrap | landlocked.Landlocked | seatbelt.Seatbelt):
        return found
    raise ToolFailed(found.about)


def best() -> Sandbox:
    """Never less without saying so: `about` says why it is not a better one."""
    from talaria.tools.sandbox import bubblewrap

    unwrapped = bubblewrap.fault()
    if unwrapped is None:
        return bubblewrap.Bubblewrap()
    from talaria.tools.sandbox import landlocked
    from talaria.tools.sandbox.local import Local

    unlocked = landlocked.fault()
    if unlocked is None:
        return landlocked.Landlocked(f"Landlock and seccomp, because bubblewrap does not work: {unwrapped}")
    return Local(f"no sandbox: bubblewrap does not work ({unwrapped}), {unlocked}")


def best_of_macos() -> Sandbox:
    from talaria.tools.sandbox import seatbelt
    from talaria.tools.sandbox.local import Local

    fault = seatbelt.fault()
    return seatbelt.Seatbelt() if fault is None else Local(f"no sandbox: seatbelt does not work ({fault})")
