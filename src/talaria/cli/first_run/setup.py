"""`talaria setup`: finds what is there, asks what it must, tries the choice with a real call, and only then writes it
down. Every step can be skipped."""

import asyncio
import os
import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from talaria.cli import context, exits, importing, model_status, model_trial
from talaria.cli.command_name import link_advice
from talaria.cli.first_run import questions as ask
from talaria.cli.first_run.candidate import Candidate
from talaria.cli.model_status import Default, ProviderState
from talaria.cli.notices import say
from talaria.compat.hermes_home.home import locate
from talaria.config import paths
from talaria.config.selection import DEMO, ModelChoice, endpoint, split
from talaria.core.errors import BadConfig, BadInput, KeyRejected, MissingCredential, OperatorError, TalariaError
from talaria.providers.catalog import catalog
from talaria.settings import Settings
from talaria.tools.sandbox.chooser import SandboxChooser

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
    wanted = _wanted(provider, model, base_url, settings)
    kept: list[str] = []
    if is_silent or not sys.stdin.isatty():
        kept += _unasked(wanted, settings)
        return _ended(kept, settings)
    try:
        settings = _offered_import(ctx, settings, kept)
        chosen = _chosen(wanted, settings)
        if chosen is not None:
            with _undisturbed():
                kept += chosen.keep(settings)
    except (EOFError, KeyboardInterrupt) as leaving:
        say("")
        _tell(kept)
        return exits.DONE if isinstance(leaving, EOFError) else exits.INTERRUPTED
    return _ended(kept, settings)


@contextmanager
def _undisturbed() -> Generator[None]:
    """Ctrl-C waits until all is written."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wanted(provider: str | None, model: str | None, base_url: str | None, settings: Settings) -> Candidate | None:
    """As the options say; None: they say nothing. Raises `BadConfig`."""
    named, rest = split(model, settings.config) if model and provider is None else (None, model)
    name = provider or named or ("custom" if base_url else None)
    if name is not None:
        asyncio.run(model_status.models(name, settings, is_live=False))  # raises, with the nearest name
        return Candidate(name, rest, base_url)
    if model is not None:
        raise BadInput(f"Say whose model {model} is: --provider NAME, or --model provider:model.")
    return None


def _ended(kept: Sequence[str], settings: Settings) -> int:
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


def _offered_import(ctx: click.Context, settings: Settings, kept: list[str]) -> Settings:
    """The settings after it. Offered on the first run only; later it is a command like others."""
    root = _hermes_home(settings.home)
    if root is None or paths.config_file(settings.home).exists():
        return settings
    say(f"There is a Hermes home at {root}: settings, conversations, memories and skills can be brought along.")
    answer = ask.one_of("Bring them along? [y]es, yes with its [k]eys, [N]o: ", _BRING)
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


def _unasked(wanted: Candidate | None, settings: Settings) -> list[str]:
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


def _chosen(wanted: Candidate | None, settings: Settings) -> Candidate | None:
    """What is to be kept; None: nothing."""
    found = _look(settings)
    candidate = wanted
    if candidate is None and found.clear is not None:
        answer = ask.one_of(f"Use {found.clear.name}? [Y/n] (s: skip) ", _USE)
        if answer == "skip":
            return None
        candidate = found.clear if answer == "yes" else None
    while True:
        candidate = candidate or _picked(found.providers, settings)
        if candidate is None:
            return None
        complete = _completed(candidate, settings)
        if complete is None:
            candidate = None
            continue
        try:
            _try(complete, settings)
        except TalariaError as failure:
            say(str(failure))
            answer = ask.one_of("[a]gain, [o]ther, [k]eep it all the same, [S]kip: ", _FAILED)
            if answer == "skip":
                return None
            if answer != "keep":
                candidate = _again(complete, failure, settings) if answer == "again" else None
                continue
        return complete


def _picked(rows: Sequence[ProviderState], settings: Settings) -> Candidate | None:
    """One that the person names; None: none."""
    for number, row in enumerate(rows, 1):
        say(f"{number:>4}  {row.name:<12}{row.state}")
    while answer := ask.line("Which? A number, a name, or name:model (Enter: skip) "):
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


def _completed(candidate: Candidate, settings: Settings) -> Candidate | None:
    """With the address, key and model that it lacks, from the person; None: back."""
    if candidate.lacks_address(settings.config):
        address = ask.line("Its address, such as http://host:8000/v1 (Enter: back) ")
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
    model = otherwise if len(models) == 1 else ask.line(f"Which model? (Enter: {otherwise or 'back'}) ") or otherwise
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
    key = ask.secret(f"The API key of {facts.label} ({origin}not shown; Enter: {otherwise}) ")
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
    answered = asyncio.run(model_trial.run(with_it, candidate.name))
    say(f"{answered.model} answered in {answered.seconds:.1f} s.")
