"""Which calls of `gh` run outside of the sandbox, with the person's login: those that speak of one repository, read no
file and start no other program. An allowlist of commands and options; what is not on it is refused.

Every word that begins with a dash is taken for an option, whether `gh` would or not: so no two readings of one command
can disagree about what it does.
"""

import re
from collections.abc import Sequence

import msgspec

MAX_WORDS = 60
_READING: dict[str, frozenset[str]] = {
    "pr": frozenset({"list", "view", "diff", "checks", "status"}),
    "issue": frozenset({"list", "view", "status"}),
    "run": frozenset({"list", "view", "watch"}),
    "release": frozenset({"list", "view"}),
    "workflow": frozenset({"list", "view"}),
    "label": frozenset({"list"}),
    "repo": frozenset({"view"}),
}
_WRITING: dict[str, frozenset[str]] = {
    "pr": frozenset({"create", "comment", "edit", "close", "reopen", "ready", "review", "merge"}),
    "issue": frozenset({"create", "comment", "edit", "close", "reopen"}),
    "run": frozenset({"rerun", "cancel"}),
    "label": frozenset({"create", "edit"}),
}
_OPTIONS = frozenset(
    {
        *("--title", "--body", "--base", "--head", "--draft", "--label", "--assignee", "--reviewer", "--milestone"),
        *("--state", "--limit", "--json", "--jq", "--template", "--author", "--search", "--comments", "--name-only"),
        *("--patch", "--color", "--add-label", "--remove-label", "--add-assignee", "--remove-assignee", "--reason"),
        *("--add-reviewer", "--remove-reviewer", "--squash", "--merge", "--rebase", "--delete-branch", "--auto"),
        *(
            "--approve",
            "--request-changes",
            "--comment",
            "--log",
            "--log-failed",
            "--job",
            "--attempt",
            "--exit-status",
        ),
        *(
            "--interval",
            "--fail-fast",
            "--required",
            "--watch",
            "--workflow",
            "--branch",
            "--event",
            "--status",
            "--user",
        ),
        *("--failed", "--undo", "--description", "--order", "--sort", "--mention", "--app", "--verbose", "--yaml"),
        *("--exclude-drafts", "--exclude-pre-releases", "--commit", "--name", "--subject", "--match-head-commit"),
        *("-t", "-b", "-B", "-H", "-d", "-l", "-a", "-r", "-m", "-s", "-L", "-q", "-c", "-A", "-S", "-j"),
    }
)
_REPOSITORY = ("-R", "--repo")
_MAKES_TEMPLATE = re.compile(r"(?:pr|issue) create")
"""There `--template` names a file."""
_JOINED = re.compile(r"--[a-z][a-z-]*=.*", re.DOTALL)
_ADDRESS = re.compile(r"https?:.*|.*:/.*|[\w.-]+/[\w.-]+#[0-9]+", re.DOTALL | re.IGNORECASE)
"""`gh` takes `https:/o/other/pull/1` for one, too."""
_JQ = ("-q", "--jq")
_ENVIRONMENT = re.compile(r"env(?![A-Za-z0-9_])", re.IGNORECASE)
"""By these an expression of jq reads the environment, and with it the login: `env.GH_TOKEN`, `$ENV`."""
_FILTERS = frozenset(
    {
        *("--app", "--assignee", "-a", "--author", "-A", "--base", "-B", "--head", "-H", "--label", "-l", "--mention"),
        *("--milestone", "-m", "--search", "-S", "--state", "-s"),
    }
)
_WIDENS_SEARCH = re.compile(r"[\"()]|\bOR\b|\b(?:repo|org|user|owner|enterprise)\s*:", re.IGNORECASE)
"""What lets a search find something in other repositories."""


class GhRefused(Exception):
    """`str()` of it is a sentence for the model."""


class GhCall(msgspec.Struct, frozen=True):
    words: tuple[str, ...]
    """As they are run, after `gh`."""
    is_reading: bool

    @property
    def command(self) -> tuple[str, str]:
        return self.words[0], self.words[1]


def check_gh(words: Sequence[str], repository: str, branch: str, *, has_text: bool) -> GhCall:
    """`repository`: `[HOST/]OWNER/NAME`, the only one it may speak of. `branch`: which is checked out. `has_text`: the
    body is on standard input. Raises `GhRefused`."""
    if len(words) < 2 or len(words) > MAX_WORDS or any("\0" in word for word in words):
        raise GhRefused("gh needs a command and a subcommand here, such as `gh pr list`.")
    command, subcommand, *rest = words
    is_reading = subcommand in _READING.get(command, ())
    if not is_reading and subcommand not in _WRITING.get(command, ()):
        raise GhRefused(f"`gh {command} {subcommand}` is not available in the sandbox; {_available()}.")
    kept = _without_repository(rest, repository)
    for word in kept:
        _check_word(word, f"{command} {subcommand}")
    if subcommand == "list":
        _check_filters(kept)
    if any(_is_option(word, *_JQ) for word in kept) and any(map(_ENVIRONMENT.search, kept)):
        raise GhRefused("An expression of jq cannot read the environment here: leave `env` out.")
    if command == "repo" and any(not word.startswith("-") for word in kept[:1]):
        raise GhRefused("`gh repo view` shows the repository of the project only: leave its name out.")
    given = ["--body-file", "-"] if has_text else []
    if (command, subcommand) == ("pr", "create") and not any(_is_option(word, "-H", "--head") for word in kept):
        if not branch or "\0" in branch:
            raise GhRefused("`gh pr create` needs --head BRANCH, because no branch is checked out.")
        given += ["--head", branch]
    about = (repository,) if command == "repo" else ("--repo", repository)
    return GhCall((command, subcommand, *about, *given, *kept), is_reading)


def _without_repository(words: Sequence[str], repository: str) -> list[str]:
    """`--repo` may be given if it says what is meant anyway."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        name, is_joined, value = word.partition("=")
        if name not in _REPOSITORY:
            kept.append(word)
            continue
        named = value if is_joined else next(rest, "")
        if named.lower() not in (repository.lower(), repository.lower().removeprefix("github.com/")):
            raise GhRefused(f"gh is available for {repository} only, the repository of the project.")
    return kept


def _check_word(word: str, command: str) -> None:
    if not word.startswith("-"):
        if _ADDRESS.fullmatch(word):
            raise GhRefused(
                f"{word[:200]!r}: name a number or a branch, not an address. A value with an address in it is written "
                "as --option=VALUE, or read from a file with --body-file."
            )
        return
    name = word.partition("=")[0] if _JOINED.fullmatch(word) else word
    if name == "--template" and _MAKES_TEMPLATE.fullmatch(command):
        raise GhRefused("--template reads a file outside of the sandbox: give --title and --body instead.")
    if name not in _OPTIONS:
        raise GhRefused(
            f"{name[:80]!r} is not an option that gh has in the sandbox. Write each option by itself, and a value that "
            "begins with a dash as --option=VALUE."
        )


def _check_filters(words: Sequence[str]) -> None:
    for before, word in zip(("", *words), words, strict=False):
        name, _, value = word.partition("=")
        if name not in _FILTERS:
            value = word if before in _FILTERS else ""
        if _WIDENS_SEARCH.search(value):
            raise GhRefused(f"{value[:200]!r} could find something in other repositories, so it is not searched for.")


def _is_option(word: str, *names: str) -> bool:
    return word.partition("=")[0] in names


def _available() -> str:
    pairs = {command: sorted({*_READING.get(command, ()), *_WRITING.get(command, ())}) for command in _READING}
    return "available: " + "; ".join(f"{command} {'|'.join(found)}" for command, found in pairs.items())
