"""What the broker of a session needs, taken from its workspace. Imported when commands first ask for a credential."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

from talaria.core.errors import Denied
from talaria.tools.broker.broker import BrokerContext, CredentialBroker, Settings
from talaria.tools.git_program import list_settings, read_person_settings
from talaria.tools.git_settings import GitSettings
from talaria.tools.sandbox.base import ToolHost
from talaria.tools.sandbox.egress_proxy import EgressProxy
from talaria.tools.sandbox.local import is_in, outside_environment
from talaria.tools.sandbox_consent import SessionConsent

_OF_REPOSITORY = frozenset(("user.name", "user.email", "user.signingkey", "gpg.format"))
_PLAIN_SSH = re.compile(r"ssh(?: -i [^\s'\"\\$`;|&<>]+| -o ?IdentitiesOnly=yes)*")
"""What a repository may say of ssh: which key. Other options start programs."""

_STARTS = re.compile(r"core\.sshcommand|gpg\.(?:.+\.)?program|credential\.(?:.+\.)?helper", re.DOTALL)
"""Settings that name a program which the broker starts."""
_OBEYED = (".ssh/config", ".gnupg/gpg.conf", ".gnupg/gpg-agent.conf", ".config/gh/config.yml", ".config/gh/hosts.yml")
"""Some people keep them in a repository, and a link here."""


def make_broker(
    consent: SessionConsent,
    git: GitSettings,
    way_out: EgressProxy,
    top: Callable[[], Path],
    roots: Callable[[], tuple[Path, ...]],
    reading: Callable[[], AbstractAsyncContextManager[ToolHost | None]],
) -> CredentialBroker:
    """`top`: the folder of the repository. `roots`: all that commands can write."""

    def settings() -> Settings:
        """The person's own; of the repository what says who they are in it."""
        found = dict(read_person_settings(top()))
        for key, values in found.items():
            for place in _paths(values) if _STARTS.fullmatch(key) else ():
                if place.is_absolute() and is_in(place, roots()):
                    raise Denied(f"{key} in your settings of git names {place}, which commands can change.")
        own = list_settings(git.known.get(top() / ".git/config", b"")) or {}
        found.update({key: value for key, value in own.items() if key in _OF_REPOSITORY})
        if _PLAIN_SSH.fullmatch((own.get("core.sshcommand") or ("",))[-1]):
            found["core.sshcommand"] = own["core.sshcommand"]
        return found

    def environment() -> Mapping[str, str]:
        for file in _OBEYED:
            named = Path.home().resolve() / file
            if named.resolve() != named and is_in(named.resolve(), roots()):
                raise Denied(f"~/{file} leads to {named.resolve()}, which commands can change.")
        return outside_environment(roots(), os.environ)

    around = BrokerContext(
        repositories=lambda: git.known,
        settings=settings,
        environment=environment,
        reading=reading,
        trust=git.trust_certificate,
        refused=way_out.note,
        admit=way_out.admit,
    )
    return CredentialBroker(consent, around)


def _paths(values: Sequence[str]) -> Iterator[Path]:
    for value in values:
        for word in re.split(r"[\s'\"!;=]+", value):
            with suppress(RuntimeError):  # the home of nobody
                yield Path(word).expanduser()
