"""The sandbox of macOS: a profile for `sandbox-exec` around a session's tool host. The last rule that fits decides.

Paths are judged by name, so what is guarded or hidden must stay where it is: neither it nor a folder above it can be
moved away, and nothing can get a second name.
"""

import os
import socket
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

from talaria.core.aio import in_thread, in_threads
from talaria.tools.sandbox.base import Level, ProgramLaunch, SandboxPolicy, ToolHost
from talaria.tools.sandbox.host.shell import make_proxy_variables
from talaria.tools.sandbox.launching import ARRIVAL, SHELL, Launch, launch_host, pack_host
from talaria.tools.sandbox.system import PYTHON, interpreter, scratch, scratch_variables, try_command

SANDBOX_EXEC = "/usr/bin/sandbox-exec"
"""Not searched for: a folder on PATH may hold anything."""

_SYSTEM = (
    *("/System", "/usr", "/bin", "/sbin", "/opt", "/nix/store", "/Library/Apple", "/Library/Frameworks"),
    *("/Library/Developer", "/Applications/Xcode.app/Contents/Developer", "/dev/fd", "/private/var/select"),
    *("/private/var/db/dyld", "/private/var/db/timezone", "/private/etc/ssl", "/private/etc/paths.d"),
)
_FILES = (
    *("/", "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/tty", "/private/var/db/xcode_select_link"),
    *(f"/private/etc/{name}" for name in ("bashrc", "group", "hosts", "localtime", "paths", "passwd", "profile")),
    *(f"/private/etc/{name}" for name in ("protocols", "services", "shells")),
)
_LINKS = ("/etc", "/tmp", "/var", "/dev")  # noqa: S108
_SYSCTL = (
    *(f"kern.{name}" for name in ("argmax", "bootargs", "boottime", "hostname", "maxfilesperproc", "maxproc")),
    *(f"kern.{name}" for name in ("ngroups", "osproductversion", "osrelease", "ostype", "osvariant_status")),
    *(f"kern.{name}" for name in ("osversion", "secure_kernel", "usrstack64", "version")),
    *("sysctl.proc_cputype", "vm.loadavg"),
)
"""By name: `kern.procargs2` would reveal the environment of every other process."""
_SERVICES = ("com.apple.system.opendirectoryd.libinfo", "com.apple.system.notification_center")
_BEGINNING = """\
(version 1)
(deny default)
(deny file-link nvram* process-info*)
(allow process-exec process-fork)
(allow signal (target same-sandbox))
(allow process-info* (target same-sandbox))
(allow ipc-posix-sem)
(allow pseudo-tty)
(allow file-read* file-write* file-ioctl (literal "/dev/ptmx"))
(allow file-read* file-write* (require-all (regex #"^/dev/ttys[0-9]+$") (extension "com.apple.sandbox.pty")))
(allow file-ioctl (regex #"^/dev/ttys[0-9]+$") (literal "/dev/tty"))
(allow sysctl-read (sysctl-name-prefix "hw.") (sysctl-name-prefix "machdep.cpu."))"""
_READING = "file-read* file-test-existence file-map-executable"


def fault() -> str | None:
    """Why it does not work here; found out by trying."""
    if not os.access(SANDBOX_EXEC, os.X_OK):
        return f"{SANDBOX_EXEC} does not exist"
    with scratch() as folder:
        rules = profile(SandboxPolicy(project=folder / "tmp", home=folder / "home"), folder, None)
        return try_command((SANDBOX_EXEC, "-p", rules, SHELL, "-c", 'exec "$0" -I -S -c "import json"', PYTHON))


class Seatbelt:
    level: Level = "seatbelt"
    about = "seatbelt"

    @asynccontextmanager
    async def open(self, view: SandboxPolicy) -> AsyncGenerator[ToolHost]:
        async with in_threads(scratch()) as folder:
            with socket.create_server(("127.0.0.1", 0)) if view.has_egress else nullcontext() as listener:
                port = listener.getsockname()[1] if listener else None
                proxies = make_proxy_variables(port) if port else {}
                rules = await in_thread(lambda: profile(view, folder, port))
                launch = Launch(
                    argv=(SANDBOX_EXEC, "-p", rules, PYTHON, "-I", "-S", "-c", ARRIVAL),
                    environment={**view.environment, **scratch_variables(folder), **proxies},
                    sent=await in_thread(lambda: pack_host(view, f"{folder}/state")),
                )
                async with launch_host(launch) as host:
                    host.listener = listener
                    yield host

    @asynccontextmanager
    async def program(self, view: SandboxPolicy, argv: Sequence[str], cwd: str) -> AsyncGenerator[ProgramLaunch]:
        async with in_threads(scratch()) as folder:
            with socket.create_server(("127.0.0.1", 0)) if view.has_egress else nullcontext() as listener:
                port = listener.getsockname()[1] if listener else None
                rules = await in_thread(lambda: profile(view, folder, port))
                own = {"TMPDIR": f"{folder}/tmp", **(make_proxy_variables(port) if port else {})}  # noqa: S108
                yield ProgramLaunch(
                    argv=(SANDBOX_EXEC, "-p", rules, *argv),
                    environment={**view.environment, **own},
                    cwd=cwd,
                    listener=listener,
                )


def profile(view: SandboxPolicy, scratch: Path, port: int | None) -> str:
    """What commands may do. `port` is where the egress proxy listens on this machine."""
    shared = (view.project, *view.writes, *(bind.source for bind in view.binds if bind.is_writable))
    writable = (scratch,) if view.is_read_only else (*shared, scratch)
    readable = (*map(Path, _SYSTEM), *interpreter(), *view.reads, *shared, scratch)
    kept = (*view.guarded, *view.own, *view.hidden)
    egress = (
        () if port is None else ("(allow system-socket)", f'(allow network-outbound (remote ip "localhost:{port}"))')
    )
    return "\n".join(
        (
            _BEGINNING,
            _rule("allow sysctl-read", "sysctl-name", _SYSCTL),
            _rule("allow mach-lookup", "global-name", _SERVICES),
            *egress,
            _rule("allow file-read-metadata file-test-existence", "literal", (*_LINKS, *_above(readable))),
            _rule("allow file-read* file-test-existence", "literal", _FILES),
            _rule("allow file-write-data", "literal", ("/dev/null", "/dev/zero", "/dev/tty")),
            _rule(f"allow {_READING}", "subpath", readable),
            _rule("allow file-write*", "subpath", writable),
            _rule("deny file-write*", "subpath", kept),
            _rule("deny file-write-unlink", "literal", _above(kept)),
            _rule(f"deny {_READING} file-read-metadata", "subpath", view.hidden),
        )
    )


def _above(paths: Iterable[Path]) -> Iterator[Path]:
    yield from dict.fromkeys(parent for path in paths for parent in path.parents)


def _rule(what: str, filter: str, values: Iterable[object]) -> str:
    """Empty without values: such a rule would apply to everything."""
    filters = "".join(f"\n  ({filter} {quote(str(value))})" for value in values)
    return f"({what}{filters})" if filters else ""


def quote(text: str) -> str:
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))
