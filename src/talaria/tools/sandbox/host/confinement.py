"""What a command may do where no sandbox stands around the tool host: it is shut in right before it begins."""

from collections.abc import Callable
from typing import Any


def confinement(wanted: dict[str, Any] | None) -> Callable[[], None]:
    """None: the sandbox around us does it."""
    if wanted is None:
        return lambda: None
    from talaria.tools.sandbox.host import landlock, seccomp  # noqa: PLC0415

    program = seccomp.offline(landlock.abi())

    def confine() -> None:
        landlock.restrict(wanted["reads"], wanted["writes"])
        seccomp.install(program)

    return confine
