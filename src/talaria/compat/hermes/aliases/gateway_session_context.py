"""`gateway.session_context`: for which conversation code runs."""

import os

from talaria.runtime.session_config import CurrentSession, current_session


def get_session_env(name: str, default: str = "") -> str:
    """Of the conversation that is being served, if it is one of its names; else of the process."""
    current = current_session.get()
    facts = _facts(current) if current is not None else {}
    return facts[name] or default if name in facts else os.environ.get(name, default)


def _facts(current: CurrentSession) -> dict[str, str]:
    return {
        "HERMES_SESSION_ID": current.session,
        "HERMES_SESSION_KEY": current.conversation,
        "HERMES_SESSION_PLATFORM": current.platform,
        "HERMES_SESSION_SOURCE": current.platform,
        "HERMES_SESSION_USER_ID": current.person,
    }
