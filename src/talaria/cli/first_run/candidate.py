"""A model that may become the default: what is known of it, the settings with it, and how it is written down."""

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from talaria.config import paths
from talaria.config.edit import set_value
from talaria.config.schema import Config, ProviderConfig
from talaria.config.selection import DEMO, ModelChoice, as_default, general_for
from talaria.core.secret import NO_SECRET, Secret
from talaria.files import replace_file
from talaria.providers.catalog import ProviderFacts, catalog
from talaria.settings import Settings

BEGINNING = """\
# Settings of Talaria. API keys do not belong here, but into the file .env beside it.
# `talaria config get` prints them all with their defaults, `talaria config check` says whether all is right.
# What may be useful, besides the model (provider:model, and `talaria model list` shows which there are):
#   fallback_providers: [openai:gpt-5]        asked, in order, when the model does not answer
#   limits: {day: {cost_usd: 5.00}}           what may be spent; also for turn, session, person
#   terminal: {network: [pypi.org], ports: [5432], env: [DJANGO_SETTINGS_MODULE]}    what commands reach without a
#       question, and variables that they get; `talaria config set --project` sets it for one project
#   approvals: {allow: ["read_file(~/notes/**)"]}    calls that are not asked about; also ask, deny
"""


class Candidate(msgspec.Struct, frozen=True):
    provider: str
    model: str | None = None
    """None: its default, if it has one."""
    base_url: str | None = None
    key: Secret = NO_SECRET
    """Not written down yet."""

    @property
    def name(self) -> str:
        """As for `-m`."""
        return DEMO if self.provider == DEMO else f"{self.provider}:{self.model or ''}"

    @property
    def facts(self) -> ProviderFacts:
        return catalog().get(self.provider) or ProviderFacts(self.provider, self.provider, "")

    @property
    def key_name(self) -> str:
        """In .env."""
        return self.facts.keys[0] if self._has_usual_key else f"{_as_variable(self.provider)}_API_KEY"

    @property
    def _has_usual_key(self) -> bool:
        """It is looked for under that name by itself."""
        return bool(self.facts.keys) and self.provider != "custom"

    def lacks_address(self, config: Config) -> bool:
        own, general = config.providers.get(self.provider, ProviderConfig()), general_for(self.provider, config)
        places = (self.base_url, general.base_url, own.base_url, self.facts.base_url)
        return self.provider != DEMO and not any(places)

    def key_is_elsewhere(self, config: Config) -> str:
        """Where a key stands that goes before one in .env; empty: nowhere."""
        own, general = config.providers.get(self.provider, ProviderConfig()), general_for(self.provider, config)
        if self._has_usual_key and (own.api_key or own.api_keys or own.key_command or general.api_key):
            return "config.yaml"
        return "the environment" if self.key_name in os.environ else ""

    def over(self, settings: Settings) -> Settings:
        """The settings as they would be with it."""
        config, environment = settings.config, settings.environment
        given = {"base_url": self.base_url, "api_key": None if self._has_usual_key else self.key}
        changes = {name: value for name, value in given.items() if value}
        if self.key:
            environment = {**environment, self.key_name: self.key.reveal()}
            settings.redactor.learn([self.key.reveal()])
        if general_for(self.provider, config) is config.model:
            model = msgspec.structs.replace(config.model, default=self.name, **changes)
            config = msgspec.structs.replace(config, model=model)
        elif changes:
            own = msgspec.structs.replace(config.providers.get(self.provider, ProviderConfig()), **changes)
            config = msgspec.structs.replace(config, providers={**config.providers, self.provider: own})
        return replace(settings, config=config, environment=environment)

    def keep(self, settings: Settings) -> list[str]:
        """Write it down, and answer which settings, with their files."""
        home, written = settings.home, self._settings(settings.config)
        if self.key:
            set_value(home, self.key_name, self.key.reveal())
        _begin(paths.config_file(home))
        for name, value in written.items():
            set_value(home, name, value)
        keys = [f"{self.key_name} in {paths.secrets_file(home)}"] if self.key else []
        return [*keys, f"{' and '.join(written)} in {paths.config_file(home)}"]

    def _settings(self, config: Config) -> dict[str, str]:
        is_general = general_for(self.provider, config) is config.model
        section = "model" if is_general else f"providers.{self.provider}"
        written = as_default(ModelChoice(self.provider, self.model), config)
        if self.base_url:
            written[f"{section}.base_url"] = self.base_url
        if self.key and not self._has_usual_key:
            written[f"{section}.api_key"] = f"${{{self.key_name}}}"
        return written


def _as_variable(name: str) -> str:
    return "".join(sign if sign.isalnum() else "_" for sign in name).upper()


def _begin(file: Path) -> None:
    """A new file begins with what helps whoever opens it."""
    if file.exists():
        return
    with suppress(OSError):  # the first value that cannot be set says why
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(file, BEGINNING.encode(), mode=0o600)
