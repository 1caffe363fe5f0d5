"""What the outside says to an application, read once: config.yaml, .env and the environment."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from talaria.config import paths
from talaria.config.load import load
from talaria.config.schema import Config
from talaria.config.secrets import environment as read_environment
from talaria.config.secrets import known_secrets
from talaria.model.redaction import Redactor
from talaria.model.secret import Secret


@dataclass(frozen=True, slots=True)
class Settings:
    home: Path
    config: Config
    environment: Mapping[str, str]
    redactor: Redactor = field(default_factory=Redactor)
    """Knows the secrets of both; one for all."""

    @property
    def shape(self) -> str:
        """A digest of what shapes a conversation, besides its route: another one calls for a new live session."""
        config = self.config
        sections = (
            config.compression,
            config.auxiliary,
            config.context,
            config.memory,
            config.plugins,
            config.tools,
            config.web,
            config.terminal,
            config.approvals,
        )
        return hashlib.sha256(msgspec.json.encode(sections, enc_hook=_fingerprint)).hexdigest()[:16]


def _fingerprint(value: object) -> str:
    """Of a secret: all of it counts, and nothing of it can be read."""
    if isinstance(value, Secret):
        return value.fingerprint()
    return str(value)


def read_settings(home: Path) -> Settings:
    environment = read_environment(paths.secrets_file(home))
    config = load(paths.config_file(home), environment)
    return Settings(home, config, environment, Redactor(known_secrets(environment, config)))
