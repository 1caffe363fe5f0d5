"""`talaria setup`: finds what is there, asks what it must, tries the choice with a real call, and only then writes it
down. Every step can be skipped.

A model that may become the default: what is known of it, the settings with it, and how it is written down.
Questions of `talaria setup`: on stderr, a line each. Ctrl-D raises `EOFError`, Ctrl-C `KeyboardInterrupt`.
"""

import asyncio
import os
import signal
import sys
import termios
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from getpass import getpass
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from talaria.app.settings import Settings
from talaria.cli import context, exits, importing, model_status
from talaria.cli.command_name import link_advice
from talaria.cli.model import try_model
from talaria.cli.model_status import Default, ProviderState
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

BEGINNING = """\
# Settings of Talaria. API keys do not belong here, but into the file .env beside it.
# `talaria config get` prints them all with their defaults, `talaria config check` says whether all is right.
# What may be useful, besides the model (provider:model, and `talaria model list` shows which there are):
#   fallback_providers: [openai:gpt-5]        asked, in order, when the model does not answer
#   limits: {day: {cost_usd: 5.00}}           what may be spent; also for turn, session, person
#   terminal: {network: [pypi.org], ports: [5432], env: [DJANGO_SETTINGS_MODULE]}    what commands reach without a
#       question, and variables that they get; `talaria config set --project` sets it for one project. Hosts and ports
#       need bubblewrap: see `talaria doctor`
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


def line(prompt: str) -> str:
    termios.tcflush(sys.stdin, termios.TCIFLUSH)  # what was typed before the question does not answer it
    sys.stderr.write(printable(prompt))
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        raise EOFError
    return answer.strip()


def secret(prompt: str) -> Secret:
    """Typed or pasted without a trace on the screen."""
    return Secret(getpass(printable(prompt), stream=sys.stderr).strip())


def one_of(prompt: str, answers: Mapping[str, str]) -> str:
    """What the answer stands for; asked until it is one."""
    while (given := line(prompt).lower()) not in answers:
        say("That is no answer.")
    return answers[given]


_USE = {"": "yes", "y": "yes", "yes": "yes", "n": "other", "no": "other", "s": "skip", "skip": "skip"}
_FAILED = {"a": "again", "o": "other", "k": "keep", "": "skip", "s": "skip"}
_BRING = {"y": "files", "yes": "files", "k": "keys", "": "skip", "n": "skip", "no": "skip", "s": "skip"}
SHOWN_MODELS = 12


class ModelCandidates(NamedTuple):
    """What can be used here."""

    providers: Sequence[ProviderState]
    default: Default

    @property
    def clear(self) -> Candidate | None:
        """What would be used if nobody said otherwise, unless that is but the stand-in."""
        if self.default.model is None or self.default.provider is None or self.default.is_stand_in:
            return None
        return Candidate(self.default.provider, self.default.model.partition(":")[2])


@click.command("setup", help="Find or choose a model, try it, and make it the default.")
@click.option("--provider", metavar="NAME", help="Whose model; `talaria model list` shows which there are.")
@click.option("--model", metavar="NAME", help="Which model.")
@click.option("--base-url", metavar="URL", help="Where it is, if not at the usual address.")
@click.option("--non-interactive", "is_silent", is_flag=True, help="Ask nothing; take what is clear.")
@click.pass_context
def command(ctx: click.Context, provider: str | None, model: str | None, base_url: str | None, is_silent: bool) -> int:
    settings = context.settings(ctx)
    wanted = _read_options(provider, model, base_url, settings)
    kept: list[str] = []
    if is_silent or not sys.stdin.isatty():
        kept += _keep_unasked(wanted, settings)
        return _finish(kept, settings)
    try:
        settings = _offer_import(ctx, settings, kept)
        chosen = _choose(wanted, settings)
        if chosen is not None:
            with _block_interrupt():
                kept += chosen.keep(settings)
    except (EOFError, KeyboardInterrupt) as leaving:
        say("")
        _tell(kept)
        return exits.DONE if isinstance(leaving, EOFError) else exits.INTERRUPTED
    return _finish(kept, settings)


@contextmanager
def _block_interrupt() -> Generator[None]:
    """Ctrl-C waits until all is written."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _read_options(
    provider: str | None, model: str | None, base_url: str | None, settings: Settings
) -> Candidate | None:
    """As the options say; None: they say nothing. Raises `BadConfig`."""
    named, rest = split(model, settings.config) if model and provider is None else (None, model)
    name = provider or named or ("custom" if base_url else None)
    if name is not None:
        asyncio.run(model_status.models(name, settings, is_live=False))  # raises, with the nearest name
        return Candidate(name, rest, base_url)
    if model is not None:
        raise BadInput(f"Say whose model {model} is: --provider NAME, or --model provider:model.")
    return None


def _finish(kept: Sequence[str], settings: Settings) -> int:
    _tell(kept)
    sandbox = SandboxChooser(settings.config.terminal).sandbox
    say(f"Sandbox for commands: {sandbox.level} ({sandbox.about}); `talaria doctor --security` tries it.")
    say("Begin with `talaria`; `talaria gateway platforms` says how to connect a chat.")
    if advice := link_advice():
        say(advice)
    return exits.DONE


def _tell(kept: Sequence[str]) -> None:
    if kept:
        say(f"Kept: {'; '.join(kept)}.")
    else:
        say("Nothing was changed; `talaria setup` can be called again at any time.")


def _offer_import(ctx: click.Context, settings: Settings, kept: list[str]) -> Settings:
    """The settings after it. Offered on the first run only; later it is a command like others."""
    root = _hermes_home(settings.home)
    if root is None or paths.config_file(settings.home).exists():
        return settings
    say(f"There is a Hermes home at {root}: settings, conversations, memories and skills can be brought along.")
    answer = one_of("Bring them along? [y]es, yes with its [k]eys, [N]o: ", _BRING)
    if answer == "skip":
        say("`talaria import hermes` does it later.")
        return settings
    kept.append(f"what was brought along from {root}")
    ctx.invoke(importing.hermes, path=root, is_dry_run=False, with_keys=answer == "keys", as_json=False)
    return context.settings(ctx)


def _hermes_home(home: Path) -> Path | None:
    try:
        return locate(None, os.environ, home)
    except BadInput:
        return None


def _look(settings: Settings) -> ModelCandidates:
    rows, default = asyncio.run(model_status.overview(settings, is_live=True))
    found = ModelCandidates(sorted(rows, key=lambda row: row.name == DEMO), default)
    usable = [f"{row.name} ({row.state})" for row in found.providers if row.is_usable and row.name != DEMO]
    say(f"Found: {', '.join(usable) or 'no API key, and no model server on this machine'}.")
    if found.default.problem is not None:
        say(found.default.problem)
    return found


def _keep_unasked(wanted: Candidate | None, settings: Settings) -> list[str]:
    """What was kept. Raises if nothing is clear, or if it does not answer."""
    candidate = wanted or _clear(settings)
    candidate = msgspec.structs.replace(candidate, model=next(iter(_models(candidate, settings)), None))
    try:
        _try(candidate, settings)
    except TalariaError as failure:
        failure.args = (f"{failure} Nothing was changed.",)
        raise
    return candidate.keep(settings)


def _clear(settings: Settings) -> Candidate:
    found = _look(settings)
    if found.clear is not None:
        return found.clear
    keys = ", ".join(dict.fromkeys(facts.keys[0] for facts in catalog().values() if facts.keys and not facts.is_local))
    raise OperatorError(
        f"No model was chosen: set one of {keys} (in the environment or by `talaria config set NAME …`), start a local"
        " model server, or say --provider, --model and --base-url."
    )


def _choose(wanted: Candidate | None, settings: Settings) -> Candidate | None:
    """What is to be kept; None: nothing."""
    found = _look(settings)
    candidate = wanted
    if candidate is None and found.clear is not None:
        answer = one_of(f"Use {found.clear.name}? [Y/n] (s: skip) ", _USE)
        if answer == "skip":
            return None
        candidate = found.clear if answer == "yes" else None
    while True:
        candidate = candidate or _pick(found.providers, settings)
        if candidate is None:
            return None
        complete = _complete(candidate, settings)
        if complete is None:
            candidate = None
            continue
        try:
            _try(complete, settings)
        except TalariaError as failure:
            say(str(failure))
            answer = one_of("[a]gain, [o]ther, [k]eep it all the same, [S]kip: ", _FAILED)
            if answer == "skip":
                return None
            if answer != "keep":
                candidate = _again(complete, failure, settings) if answer == "again" else None
                continue
        return complete


def _pick(rows: Sequence[ProviderState], settings: Settings) -> Candidate | None:
    """One that the person names; None: none."""
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
        say(f"There is no {answer} in the list.")
    return None


def _complete(candidate: Candidate, settings: Settings) -> Candidate | None:
    """With the address, key and model that it lacks, from the person; None: back."""
    if candidate.lacks_address(settings.config):
        address = line("Its address, such as http://host:8000/v1 (Enter: back) ")
        if not address:
            return None
        address = address if "://" in address else f"http://{address}"
        candidate = msgspec.structs.replace(candidate, base_url=address)
        candidate = _with_key(candidate, "no key")
    elif _lacks_key(candidate, settings):
        candidate = _with_key(candidate, "back")
        if not candidate.key:
            return None
    models = _models(candidate, settings)
    if len(models) > 1:
        say(f"It has {', '.join(models[:SHOWN_MODELS])}{' …' if len(models) > SHOWN_MODELS else ''}")
    otherwise = models[0] if models else ""
    model = otherwise if len(models) == 1 else line(f"Which model? (Enter: {otherwise or 'back'}) ") or otherwise
    return msgspec.structs.replace(candidate, model=model) if model else None


def _lacks_key(candidate: Candidate, settings: Settings) -> bool:
    with_it = candidate.over(settings)
    try:
        endpoint(ModelChoice(candidate.provider, candidate.model or "any"), with_it.config, with_it.environment)
    except OperatorError as error:  # any other is told when it is tried
        return isinstance(error, MissingCredential)
    return False


def _with_key(candidate: Candidate, otherwise: str) -> Candidate:
    facts = candidate.facts
    origin = f"made at {facts.signup}, " if facts.signup else ""
    key = secret(f"The API key of {facts.label} ({origin}not shown; Enter: {otherwise}) ")
    return msgspec.structs.replace(candidate, key=key) if key else candidate


def _models(candidate: Candidate, settings: Settings) -> Sequence[str]:
    """The one that is meant, its default or, if it has none, those that it lists."""
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


def _again(candidate: Candidate, failure: TalariaError, settings: Settings) -> Candidate:
    """With another key, if that is what was wrong."""
    if not isinstance(failure, KeyRejected):
        return candidate
    if place := candidate.key_is_elsewhere(settings.config):
        say(f"Its key comes from {place}, which goes before .env: change it there.")
        return candidate
    return _with_key(candidate, "the same")


def _try(candidate: Candidate, settings: Settings) -> None:
    """Raises what a call to it would."""
    with_it = candidate.over(settings)
    say(f"Asking {candidate.name} for a word …")
    answered = asyncio.run(try_model(with_it, candidate.name))
    say(f"{answered.model} answered in {answered.seconds:.1f} s.")
