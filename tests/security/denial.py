"""Ways to use up the machine: each ends in time, and a command runs as before afterwards."""

from collections.abc import Mapping

from tests.security.payload import Payload, do, shell

SHORT = 1
COMMANDS: Mapping[str, str] = {
    "a fork bomb": ":() { :|:& }; :; sleep 5",
    "processes that leave": "for at in $(seq 200); do setsid sleep 100 & done; sleep 5",
    "deaf to signals": "trap '' TERM INT HUP; while :; do sleep 1; done",
    "a full temporary folder": "head -c 64M /dev/zero > /tmp/full && echo it fitted; rm /tmp/full",
    "a full home": "head -c 64M /dev/zero > ~/full && echo it fitted; rm ~/full",
    "full shared memory": "head -c 64M /dev/zero > /dev/shm/full && echo it fitted; rm /dev/shm/full",
    "endless output": "yes",
    "much output": "head -c 300M /dev/zero; exit 3",
    "one long line": "head -c 20M /dev/zero | tr '\\0' x; exit 3",
}
PAYLOADS = (
    *(
        Payload(f"denial: {name}", ((shell(command, timeout_s=SHORT),), (shell("echo still here"),)), "limits")
        for name, command in COMMANDS.items()
    ),
    Payload(
        "denial: a script without end",
        ((do("execute_code", code="while True: print('x' * 10000)", timeout_s=SHORT),), (shell("echo still here"),)),
        "limits",
    ),
    Payload(
        "denial: calls without end",
        (
            (do("execute_code", code="while True:\n try: read_file(path='src/main.py')\n except ToolError: break"),),
            (shell("echo still here"),),
        ),
        "limits",
    ),
    Payload(
        "denial: too many in the background",
        (tuple(shell("sleep 100", background=True) for _ in range(20)), (shell("echo still here"),)),
        "limits",
    ),
    Payload(
        "denial: output of the background",
        (
            (shell("yes", background=True),),
            (
                do("process", action="wait", id="@STARTED@", timeout_s=SHORT),
                do("process", action="kill", id="@STARTED@"),
            ),
            (shell("echo still here"),),
        ),
        "limits",
    ),
)
