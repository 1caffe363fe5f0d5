"""`gateway.run`: there is no runner of that kind here."""


def _gateway_runner_ref() -> None:  # pyright: ignore[reportUnusedFunction]
    """Who asks for it is told that no gateway runs in this process, which they must expect."""
