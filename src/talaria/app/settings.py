"""The settings of an application, read once: config.yaml, .env and the environment."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec

from talaria.config import paths
from talaria.config.edit import check_writers
from talaria.config.lenient import Problem, load_leniently, read_env_leniently
from talaria.config.load import load
from talaria.config.schema import Config
from talaria.config.secrets import environment as read_environment
from talaria.config.secrets import find_secrets
from talaria.core.errors import BadConfig
from talaria.core.redaction import Redactor
from talaria.core.secret import Secret

DOCTOR = "`talaria doctor` says what to do."


@dataclass(frozen=True)
class Settings:
    home: Path
    config: Config
    environment: Mapping[str, str]
    redactor: Redactor = field(default_factory=Redactor)
    """Knows the secrets in both."""
    problems: tuple[Problem, ...] = ()
    """What is wrong with them, if they were read leniently."""

    @cached_property
    def shape(self) -> str:
        """A digest of the settings that shape a conversation, besides its route. If it changes, a live session
        must be replaced."""
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
    """A secret changes the digest, but cannot be read from it."""
    return value.fingerprint() if isinstance(value, Secret) else str(value)


def read_settings(home: Path, process: Mapping[str, str] | None = None) -> Settings:
    """`process` is the environment the process was started with, if it has changed since. Raises `BadConfig`."""
    try:
        check_writers(home, paths.config_file(home))
        environment = read_environment(paths.secrets_file(home), process)
        config = load(paths.config_file(home), environment)
    except BadConfig as fault:
        raise BadConfig(f"{fault} {DOCTOR}") from fault
    return Settings(home, config, environment, Redactor(find_secrets(environment, config)))


def read_settings_leniently(home: Path) -> Settings:
    """Use what can be read; `problems` says what is wrong with the rest."""
    values, env_problems = read_env_leniently(paths.secrets_file(home))
    environment = {**values, **os.environ}
    config, config_problems = load_leniently(paths.config_file(home), environment)
    problems = [*env_problems, *config_problems]
    try:
        check_writers(home, paths.config_file(home))
    except BadConfig as fault:
        problems.append(Problem(str(fault)))
    return Settings(home, config, environment, Redactor(find_secrets(environment, config)), tuple(problems))
