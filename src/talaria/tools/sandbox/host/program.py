"""Becomes one program inside a sandbox, with its settings as JSON in `sys.argv`.

If the program may reach hosts, this first makes the proxy's listening socket in the sandbox's own network and sends it
to us. Where no sandbox is around it yet (level landlock), it confines itself.
"""

import json
import os
import resource
import socket
import sys

from talaria.tools.sandbox.host.descendants import read_given_environment
from talaria.tools.sandbox.host.shell import make_proxy_variables

NOT_STARTED = 126
MAX_DESCRIPTORS = 4096


def main() -> None:
    settings = json.loads(sys.argv[1])
    program, cwd = settings["argv"], settings["cwd"]
    environment = read_given_environment()
    try:
        if "channel" in settings:
            with (
                socket.create_server(("127.0.0.1", 0), backlog=64) as listener,
                socket.socket(fileno=settings["channel"]) as channel,
            ):
                socket.send_fds(channel, [b"+"], [listener.fileno()])
                proxies = make_proxy_variables(listener.getsockname()[1])
            environment |= {name.encode(): value.encode() for name, value in proxies.items()}
        os.closerange(3, MAX_DESCRIPTORS)
        os.chdir(cwd)
        for name, most in settings["limits"].items():
            kind = getattr(resource, f"RLIMIT_{name}")
            _, hard = resource.getrlimit(kind)
            limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (limit, limit))
        if "confinement" in settings:
            from talaria.tools.sandbox.host.confining import confine  # noqa: PLC0415  (only level landlock needs it)

            confine(settings["confinement"], ())()
        os.execve(program[0], program, environment)  # noqa: S606
    except OSError as fault:
        os.write(2, f"cannot start {program[0]} in {cwd}: {fault.strerror}\n".encode("utf-8", "replace"))
    os._exit(NOT_STARTED)
