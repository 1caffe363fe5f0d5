"""Which sandbox commands run in: what the person has set, or the best one that works here. Found out by trying."""

import sys
import threading
from collections.abc import Callable
from functools import cached_property

from talaria.core.errors import ToolFailed
from talaria.tools.sandbox import bubblewrap, landlocked, seatbelt
from talaria.tools.sandbox.base import ProgramSandbox, Sandbox
from talaria.tools.sandbox.docker import Docker
from talaria.tools.sandbox.local import Local
from talaria.tools.sandbox.sandbox_settings import TerminalSettings
from talaria.tools.sandbox.ssh import Ssh


class SandboxChooser:
    def __init__(self, settings: TerminalSettings) -> None:
        self.tell: Callable[[Sandbox], None] = lambda _: None
        """Called once, by the thread that chose, before anything runs in it."""
        self._settings = settings
        self._trying = threading.Lock()

    @property
    def sandbox(self) -> Sandbox:
        """Takes a moment the first time."""
        with self._trying:
            return self._sandbox

    @cached_property
    def _sandbox(self) -> Sandbox:
        sandbox = self._choose()
        self.tell(sandbox)
        return sandbox

    def _choose(self) -> Sandbox:
        match self._settings.backend:
            case "local":
                return Local()
            case "bubblewrap":
                return bubblewrap.Bubblewrap()
            case "landlock":
                return landlocked.Landlocked()
            case "seatbelt":
                return seatbelt.Seatbelt()
            case "docker":
                return Docker(self._settings.docker)
            case "ssh":
                return Ssh(self._settings.ssh)
            case "auto":
                return best() if sys.platform != "darwin" else best_of_macos()


def for_programs(settings: TerminalSettings) -> ProgramSandbox:
    """For a program that runs on this machine, whatever commands run in: the one that is set if it is a sandbox of this
    machine, else the best that works. Raises `ToolFailed` where none does."""
    match settings.backend:
        case "bubblewrap":
            return bubblewrap.Bubblewrap()
        case "landlock":
            return landlocked.Landlocked()
        case "seatbelt":
            return seatbelt.Seatbelt()
        case _:
            found = best() if sys.platform != "darwin" else best_of_macos()
    if isinstance(found, bubblewrap.Bubblewrap | landlocked.Landlocked | seatbelt.Seatbelt):
        return found
    raise ToolFailed(found.about)


def best() -> Sandbox:
    """Never silently less: what it says about itself tells why it is not a better one."""
    unwrapped = bubblewrap.fault()
    if unwrapped is None:
        return bubblewrap.Bubblewrap()
    unlocked = landlocked.fault()
    if unlocked is None:
        return landlocked.Landlocked(f"Landlock and seccomp, because bubblewrap does not work: {unwrapped}")
    return Local(f"no sandbox: bubblewrap does not work ({unwrapped}), {unlocked}")


def best_of_macos() -> Sandbox:
    fault = seatbelt.fault()
    return seatbelt.Seatbelt() if fault is None else Local(f"no sandbox: seatbelt does not work ({fault})")
