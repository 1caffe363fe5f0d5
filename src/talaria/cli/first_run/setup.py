"""`talaria setup`: find a model or ask for one, try it with a real call, then save it. Every step can be skipped.

Questions go to stderr. Ctrl-D raises `EOFError`, Ctrl-C `KeyboardInterrupt`.
"""

import asyncio
import os
import signal
import sys
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from getpass import getpass

import click
import msgspec

from talaria.app.settings import Settings
from talaria.cli import context, exits, importing, model_status
from talaria.cli.command_name import link_advice
from talaria.cli.model import try_model
from talaria.cli.model_status import ProviderState
from talaria.cli.notices import say
from talaria.cli.safe import printable
from talaria.compat.hermes_home.takeover import locate
from talaria.config import paths
from talaria.config.edit import set_value
from talaria.config.schema import Config, ProviderConfig
from talaria.config.selection import DEMO, ModelChoice, as_default, endpoint, general_for, split
from talaria.core.errors import BadConfig, BadInput, KeyRejected, MissingCredential, OperatorError, TalariaError
from talaria.core.fs import replace_file
from talaria.core.secret import NO_SECRET, Secret
from talaria.providers.catalog import ProviderFacts, catalog
from talaria.tools.sandbox.chooser import SandboxChooser

CONFIG_HEADER = """\
# Settings of Talaria. API keys do not belong here, but in the file .env beside it.
# `talaria config get` prints them all with their defaults, `talaria config check` checks them.
# Useful ones, besides the model (provider:model; `talaria model list` lists them):
#   fallback_providers: [openai:gpt-5]        tried in this order when the model does not answer
#   limits: {day: {cost_usd: 5.00}}           what may be spent; also for turn, session, person
#   terminal: {network: [pypi.org], ports: [5432], env: [DJANGO_SETTINGS_MODULE]}    what commands may reach without
#       asking, and variables they get; `talaria config set --project` sets it for one project. Hosts and ports need
#       bubblewrap: see `talaria doctor`
#   approvals: {allow: ["read_file(~/notes/**)"]}    calls allowed without asking; also ask, deny
"""


class Candidate(msgspec.Struct, frozen=True):
    """A model that may become the default."""

    provider: str
    model: str | None = None
    """None: the provider's default, if it has one."""
    base_url: str | None = None
    key: Secret = NO_SECRET
    """Not saved yet."""

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
        if self._has_usual_key:
            return self.facts.keys[0]
        return f"{''.join(char if char.isalnum() else '_' for char in self.provider).upper()}_API_KEY"

    @property
    def _has_usual_key(self) -> bool:
        """Whether its key is found by name, without a setting that names it."""
        return bool(self.facts.keys) and self.provider != "custom"

    def lacks_address(self, config: Config) -> bool:
        own, general = config.providers.get(self.provider, ProviderConfig()), general_for(self.provider, config)
        places = (self.base_url, general.base_url, own.base_url, self.facts.base_url)
        return self.provider != DEMO and not any(places)

    def key_is_elsewhere(self, config: Config) -> str:
        """Where there is a key that takes precedence over .env; empty: nowhere."""
        own, general = config.providers.get(self.provider, ProviderConfig()), general_for(self.provider, config)
        if self._has_usual_key and (own.api_key or own.api_keys or own.key_command or general.api_key):
            return "config.yaml"
        return "the environment" if self.key_name in os.environ else ""

    def over(self, settings: Settings) -> Settings:
        """The settings with this as the default."""
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

    def save(self, settings: Settings) -> list[str]:
        """Returns which settings were saved, with their files."""
        home, file, config = settings.home, paths.config_file(settings.home), settings.config
        if self.key:
            set_value(home, self.key_name, self.key.reveal())
        if not file.exists():
            with suppress(OSError):  # the first value that cannot be set says why
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                replace_file(file, CONFIG_HEADER.encode(), mode=0o600)
        is_general = general_for(self.provider, config) is config.model
        section = "model" if is_general else f"providers.{self.provider}"
        values = as_default(ModelChoice(self.provider, self.model), config)
        if self.base_url:
            values[f"{section}.base_url"] = self.base_url
        if self.key and not self._has_usual_key:
            values[f"{section}.api_key"] = f"${{{self.key_name}}}"
        for name, value in values.items():
            set_value(home, name, value)
        keys = [f"{self.key_name} in {paths.secrets_file(home)}"] if self.key else []
        return [*keys, f"{' and '.join(values)} in {file}"]


def line(prompt: str) -> str:
    termios.tcflush(sys.stdin, termios.TCIFLUSH)  # what was typed before the question is not an answer to it
    sys.stderr.write(printable(prompt))
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        raise EOFError
    return answer.strip()


def secret(prompt: str) -> Secret:
    """Typed or pasted without being shown."""
    return Secret(getpass(printable(prompt), stream=sys.stderr).strip())


def one_of(prompt: str, answers: Mapping[str, str]) -> str:
    """Asks until the answer is one of these, and returns what it means."""
    while (given := line(prompt).lower()) not in answers:
        say("That is not one of the answers.")
    return answers[given]


_USE = {"": "yes", "y": "yes", "yes": "yes", "n": "other", "no": "other", "s": "skip", "skip": "skip"}
_FAILED = {"a": "again", "o": "other", "k": "keep", "": "skip", "s": "skip"}
_IMPORT = {"y": "files", "yes": "files", "k": "keys", "": "skip", "n": "skip", "no": "skip", "s": "skip"}
SHOWN_MODELS = 12


@click.command("setup", help="Find or choose a model, try it, and make it the default.")
@click.option("--provider", metavar="NAME", help="Provider of the model; `talaria model list` lists them.")
@click.option("--model", metavar="NAME", help="Name of the model.")
@click.option("--base-url", metavar="URL", help="Its address, if not the usual one.")
@click.option("--non-interactive", "is_silent", is_flag=True, help="Ask nothing; use what is found.")
@click.pass_context
def command(ctx: click.Context, provider: str | None, model: str | None, base_url: str | None, is_silent: bool) -> int:
    settings = context.settings(ctx)
    named, rest = split(model, settings.config) if model and provider is None else (None, model)
    name = provider or named or ("custom" if base_url else None)
    if name is not None:
        asyncio.run(model_status.models(name, settings, is_live=False))  # raises, with the nearest name
    elif model is not None:
        raise BadInput(f"The provider of {model} is not clear: give --provider NAME, or --model provider:model.")
    wanted = None if name is None else Candidate(name, rest, base_url)
    if is_silent or not sys.stdin.isatty():
        return _finish(_save_unasked(wanted, settings), settings)
    saved: list[str] = []
    try:
        settings = _offer_import(ctx, settings, saved)
        chosen = _choose(wanted, settings)
        if chosen is not None:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C waits until all is written
            try:
                saved += chosen.save(settings)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
    except (EOFError, KeyboardInterrupt) as leaving:
        say("")
        _report(saved)
        return exits.DONE if isinstance(leaving, EOFError) else exits.INTERRUPTED
    return _finish(saved, settings)


def _finish(saved: Sequence[str], settings: Settings) -> int:
    _report(saved)
    sandbox = SandboxChooser(settings.config.terminal).sandbox
    say(f"Sandbox for commands: {sandbox.level} ({sandbox.about}); `talaria doctor --security` tests it.")
    say("Start with `talaria`; `talaria gateway platforms` shows how to connect a chat.")
    if advice := link_advice():
        say(advice)
    return exits.DONE


def _report(saved: Sequence[str]) -> None:
    if saved:
        say(f"Saved: {'; '.join(saved)}.")
    else:
        say("Nothing was changed; you can run `talaria setup` again at any time.")


def _offer_import(ctx: click.Context, settings: Settings, saved: list[str]) -> Settings:
    """Returns the settings after it. Only on the first run; later there is a command for it."""
    if paths.config_file(settings.home).exists():
        return settings
    try:
        root = locate(None, os.environ, settings.home)
    except BadInput:
        return settings
    say(f"Found a Hermes home at {root}. Its settings, conversations, memories and skills can be imported.")
    answer = one_of("Import them? [y]es, yes with its [k]eys, [N]o: ", _IMPORT)
    if answer == "skip":
        say("You can do that later with `talaria import hermes`.")
        return settings
    saved.append(f"what was imported from {root}")
    ctx.invoke(importing.hermes, path=root, is_dry_run=False, with_keys=answer == "keys", as_json=False)
    return context.settings(ctx)


def _find_models(settings: Settings) -> tuple[Sequence[ProviderState], Candidate | None]:
    """The providers, and the model that would be used by default, unless that is only the stand-in."""
    rows, default = asyncio.run(model_status.overview(settings, is_live=True))
    usable = [f"{row.name} ({row.state})" for row in rows if row.is_usable and row.name != DEMO]
    say(f"Found: {', '.join(usable) or 'no API key, and no model server on this machine'}.")
    if default.problem is not None:
        say(default.problem)
    providers = sorted(rows, key=lambda row: row.name == DEMO)
    if default.model is None or default.provider is None or default.is_stand_in:
        return providers, None
    return providers, Candidate(default.provider, default.model.partition(":")[2])


def _save_unasked(wanted: Candidate | None, settings: Settings) -> list[str]:
    """Returns what was saved. Raises if it is not clear which model to use, or if that does not answer."""
    candidate = wanted
    if candidate is None:
        _, candidate = _find_models(settings)
    if candidate is None:
        keys = (facts.keys[0] for facts in catalog().values() if facts.keys and not facts.is_local)
        raise OperatorError(
            f"No model was chosen: set one of {', '.join(dict.fromkeys(keys))} (in the environment or with "
            "`talaria config set NAME …`), start a local model server, or give --provider, --model and --base-url."
        )
    candidate = msgspec.structs.replace(candidate, model=next(iter(_models(candidate, settings)), None))
    try:
        _try(candidate, settings)
    except TalariaError as failure:
        failure.args = (f"{failure} Nothing was changed.",)
        raise
    return candidate.save(settings)


def _choose(wanted: Candidate | None, settings: Settings) -> Candidate | None:
    """The model to save; None: none."""
    providers, usual = _find_models(settings)
    candidate = wanted
    if candidate is None and usual is not None:
        answer = one_of(f"Use {usual.name}? [Y/n] (s: skip) ", _USE)
        if answer == "skip":
            return None
        candidate = usual if answer == "yes" else None
    while True:
        candidate = candidate or _pick(providers, settings)
        if candidate is None:
            return None
        complete = _complete(candidate, settings)
        candidate = None
        if complete is None:
            continue
        try:
            _try(complete, settings)
        except TalariaError as failure:
            say(str(failure))
            answer = one_of("[a]gain, [o]ther, [k]eep it anyway, [S]kip: ", _FAILED)
            if answer == "skip":
                return None
            if answer == "keep":
                return complete
            if answer == "again":
                candidate = complete
                if isinstance(failure, KeyRejected) and (place := complete.key_is_elsewhere(settings.config)):
                    say(f"Its key comes from {place}, which takes precedence over .env: change it there.")
                elif isinstance(failure, KeyRejected):
                    candidate = _with_key(complete, "the same")
        else:
            return complete


def _pick(rows: Sequence[ProviderState], settings: Settings) -> Candidate | None:
    """The one that the person names; None: none."""
    for number, row in enumerate(rows, 1):
        say(f"{number:>4}  {row.name:<12}{row.state}")
    while answer := line("Which? A number, a name, or name:model (Enter: skip) "):
        if answer.isdecimal() and 1 <= int(answer) <= len(rows):
            return Candidate(rows[int(answer) - 1].name)
        try:
            name, model = split(answer if ":" in answer else f"{answer}:", settings.config)
        except BadConfig as fault:
            say(str(fault))
            continue
        if name is not None:
            return Candidate(name, model or None)
        if answer.lower() in ("s", "skip"):
            return None
        say(f"{answer!r} is not in the list.")
    return None


def _complete(candidate: Candidate, settings: Settings) -> Candidate | None:
    """Asks for the address, key and model that it lacks; None: the person went back."""
    if candidate.lacks_address(settings.config):
        address = line("Its address, such as http://host:8000/v1 (Enter: back) ")
        if not address:
            return None
        address = address if "://" in address else f"http://{address}"
        candidate = msgspec.structs.replace(candidate, base_url=address)
        candidate = _with_key(candidate, "no key")
    else:
        with_it = candidate.over(settings)
        try:
            endpoint(ModelChoice(candidate.provider, candidate.model or "any"), with_it.config, with_it.environment)
        except MissingCredential:
            candidate = _with_key(candidate, "back")
            if not candidate.key:
                return None
        except OperatorError:
            pass  # trying it will report this
    models = _models(candidate, settings)
    if len(models) > 1:
        say(f"Available models: {', '.join(models[:SHOWN_MODELS])}{' …' if len(models) > SHOWN_MODELS else ''}")
    otherwise = models[0] if models else ""
    model = otherwise if len(models) == 1 else line(f"Which model? (Enter: {otherwise or 'back'}) ") or otherwise
    return msgspec.structs.replace(candidate, model=model) if model else None


def _with_key(candidate: Candidate, otherwise: str) -> Candidate:
    facts = candidate.facts
    origin = f"create one at {facts.signup}; " if facts.signup else ""
    key = secret(f"API key for {facts.label} ({origin}not shown; Enter: {otherwise}) ")
    return msgspec.structs.replace(candidate, key=key) if key else candidate


def _models(candidate: Candidate, settings: Settings) -> Sequence[str]:
    """The one that was named, or the provider's default; without either, those that it lists."""
    if candidate.provider == DEMO:
        return (DEMO,)
    with_it = candidate.over(settings)
    model = candidate.model or model_status.default_model(candidate.provider, with_it.config)
    if model is not None:
        return (model,)
    found = asyncio.run(model_status.models(candidate.provider, with_it, is_live=True))
    if found.problem is not None:
        say(found.problem)
    return [one.name for one in found.models if one.is_listed]


def _try(candidate: Candidate, settings: Settings) -> None:
    """Raises what a call to the model raises."""
    with_it = candidate.over(settings)
    say(f"Trying {candidate.name} …")
    answer = asyncio.run(try_model(with_it, candidate.name))
    say(f"{answer.model} answered in {answer.seconds:.1f} s.")
