"""Starts each bash command where the last one ended: with its environment, functions, aliases and umask."""

import os
import stat
from collections.abc import Mapping
from contextlib import suppress

MAX_COMMAND_BYTES = 100_000
"""A single argument of a program cannot be much longer."""
MAX_STATE_BYTES = 4 << 20
MAX_PATH_BYTES = 8192

_WHOLE = "# whole"
_RESUME = "shopt -s expand_aliases; [ -r {folder}/kept ] && . {folder}/kept\n"
_KEEP = f"""\
__talaria_keep() {{{{ trap - EXIT; pwd >| {{folder}}/cwd; unset -f __talaria_keep; unset PWD OLDPWD SHLVL TERM _; \
{{{{ export -p; declare -f; alias -p; umask -p; echo '{_WHOLE}'; }}}} >| {{folder}}/state; }}}} 2>/dev/null
trap __talaria_keep EXIT
"""


class ShellState:
    """What one command leaves to the next, in a folder that only we and the commands know.

    Commands can put anything in its place. It is opened before the first of them runs, and we touch only what is in it.
    """

    def __init__(self, folder: str, cwd: str) -> None:
        self._folder = folder
        self._opened = -1
        self._first = self._cwd = cwd
        self._has_begun = False

    def make(self) -> None:
        os.mkdir(self._folder, 0o700)
        self._opened = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        for name, text in (("begin", _RESUME + _KEEP), ("peek", _RESUME)):
            new = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self._opened)
            with os.fdopen(new, "w", encoding="utf-8") as file:
                file.write(text.format(folder=self._folder))

    def script(self, command: str, *, is_kept: bool) -> str:
        """What bash should run. The state that it leaves counts only after `take`."""
        return f". {self._folder}/{'begin' if is_kept else 'peek'}\n{command}"

    def environment(self, first: Mapping[str, str]) -> Mapping[str, str]:
        """What bash starts with; later all of it comes from the state, so that what was unset stays so."""
        return {} if self._has_begun else first

    def place(self) -> str:
        """The folder that the next command begins in."""
        return self._cwd if os.path.isdir(self._cwd) else self._first

    def take(self, *, is_place_kept: bool) -> None:
        """After a command has ended: the next one begins with the state that it wrote, if that is complete."""
        try:
            if not self._content("state", MAX_STATE_BYTES).endswith(f"{_WHOLE}\n".encode()):
                return
            os.replace("state", "kept", src_dir_fd=self._opened, dst_dir_fd=self._opened)
            place = self._content("cwd", MAX_PATH_BYTES).decode("utf-8", "surrogateescape")
        except OSError:
            return
        self._has_begun = True
        if is_place_kept:
            self._cwd = place[:-1]  # without its newline

    def _content(self, name: str, limit_bytes: int) -> bytes:
        """Of a file from a command, which may have put anything there, even a pipe to which nobody ever writes."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=self._opened)
        with os.fdopen(descriptor, "rb") as opened:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return b""
            return opened.read(limit_bytes)

    def remove(self) -> None:
        if self._opened < 0:
            return
        for name in ("begin", "peek", "state", "cwd", "kept"):
            with suppress(OSError):
                os.unlink(name, dir_fd=self._opened)
        os.close(self._opened)
        with suppress(OSError):
            os.rmdir(self._folder)


def make_proxy_variables(port: int, more: "dict[str, str] | None" = None) -> dict[str, str]:
    """The variables that make programs use a proxy on this machine."""
    proxy, none = f"http://127.0.0.1:{port}", "localhost,127.0.0.1,::1"
    lower = {"http_proxy": proxy, "https_proxy": proxy, "all_proxy": proxy, "no_proxy": none}
    node = {"NODE_USE_ENV_PROXY": "1"}  # without it Node (22.21, 24 and later) ignores the others
    own = {name: text.replace("{proxy}", f"127.0.0.1:{port}") for name, text in (more or {}).items()}
    return {**lower, **{name.upper(): value for name, value in lower.items()}, **node, **own}
