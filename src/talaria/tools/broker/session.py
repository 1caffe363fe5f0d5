"""What the broker of a session needs, taken from its workspace. Imported when commands first ask for a credential."""

import os
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from talaria.tools.broker.service import CredentialBroker, Settings, Surroundings
from talaria.tools.git_settings import GitSettings, list_settings, read_person_settings
from talaria.tools.opening import RunningConsent
from talaria.tools.sandbox.base import Host
from talaria.tools.sandbox.outside import outside_environment
from talaria.tools.sandbox.way_out import WayOut

_OF_REPOSITORY = frozenset(("user.name", "user.email", "user.signingkey", "gpg.format"))
_PLAIN_SSH = re.compile(r"ssh(?: -i [^\s'\"\\$`;|&<>]+| -o ?IdentitiesOnly=yes)*")
"""What a repository may say of ssh: which key. Other options start programs."""


def make_broker(
    consent: RunningConsent,
    git: GitSettings,
    way_out: WayOut,
    top: Callable[[], Path],
    roots: Callable[[], tuple[Path, ...]],
    reading: Callable[[], AbstractAsyncContextManager[Host | None]],
) -> CredentialBroker:
    """`top`: the folder of the repository. `roots`: all that commands can write."""

    def settings() -> Settings:
        """The person's own; of the repository what says who they are in it."""
        found = dict(read_person_settings(top()))
        own = list_settings(git.known.get(top() / ".git/config", b"")) or {}
        found.update({key: value for key, value in own.items() if key in _OF_REPOSITORY})
        if _PLAIN_SSH.fullmatch((own.get("core.sshcommand") or ("",))[-1]):
            found["core.sshcommand"] = own["core.sshcommand"]
        return found

    def environment() -> Mapping[str, str]:
        return outside_environment(roots(), os.environ)

    around = Surroundings(
        repositories=lambda: git.known,
        settings=settings,
        environment=environment,
        reading=reading,
        trust=git.trust,
        refused=way_out.note,
    )
    return CredentialBroker(consent, around)
