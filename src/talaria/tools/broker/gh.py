"""Which calls of `gh` run outside the sandbox, with the person's login: those that concern one repository, read no
file and start no other program. It is an allowlist of commands and options.

Every word that begins with a dash counts as an option, whether or not `gh` takes it for one: then there is only one way
to read a command.
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
        *("--approve", "--request-changes", "--comment", "--log", "--log-failed", "--job", "--attempt"),
        *("--exit-status", "--interval", "--fail-fast", "--required", "--watch", "--workflow", "--branch", "--event"),
        *("--status", "--user", "--failed", "--undo", "--description", "--order", "--sort", "--mention", "--app"),
        *("--verbose", "--yaml", "--exclude-drafts", "--exclude-pre-releases", "--commit", "--name", "--subject"),
        "--match-head-commit",
        *("-t", "-b", "-B", "-H", "-d", "-l", "-a", "-r", "-m", "-s", "-L", "-q", "-c", "-A", "-S", "-j"),
    }
)
_REPOSITORY = ("-R", "--repo")
_MAKES_TEMPLATE = re.compile(r"(?:pr|issue) create")
"""Here `--template` names a file."""
_JOINED = re.compile(r"--[a-z][a-z-]*=.*", re.DOTALL)
_ADDRESS = re.compile(r"https?:.*|.*:/.*|[\w.-]+/[\w.-]+#[0-9]+", re.DOTALL | re.IGNORECASE)
"""`gh` accepts even `https:/o/other/pull/1` as one."""
_JQ = ("-q", "--jq")
_ENVIRONMENT = re.compile(r"env(?![A-Za-z0-9_])", re.IGNORECASE)
"""How a jq expression reads the environment, and with it the login: `env.GH_TOKEN`, `$ENV`."""
_FILTERS = frozenset(
    {
        *("--app", "--assignee", "-a", "--author", "-A", "--base", "-B", "--head", "-H", "--label", "-l", "--mention"),
        *("--milestone", "-m", "--search", "-S", "--state", "-s"),
    }
)
_WIDENS_SEARCH = re.compile(r"[\"()]|\bOR\b|\b(?:repo|org|user|owner|enterprise)\s*:", re.IGNORECASE)
"""What makes a search reach other repositories."""


class GhRefused(Exception):
    """`str()` of it is a sentence for the model."""


class GhCall(msgspec.Struct, frozen=True):
    words: tuple[str, ...]
    """What follows `gh` when it is run."""
    is_reading: bool

    @property
    def command(self) -> tuple[str, str]:
        return self.words[0], self.words[1]


def check_gh(words: Sequence[str], repository: str, branch: str, *, has_text: bool) -> GhCall:
    """`repository`: `[HOST/]OWNER/NAME`, the only one that it may concern. `branch`: the one that is checked out.
    `has_text`: the body is on standard input. Raises `GhRefused`."""
    if len(words) < 2 or len(words) > MAX_WORDS or any("\0" in word for word in words):
        raise GhRefused("gh needs a command and a subcommand, such as `gh pr list`.")
    command, subcommand, *rest = words
    is_reading = subcommand in _READING.get(command, ())
    if not is_reading and subcommand not in _WRITING.get(command, ()):
        pairs = {name: sorted({*_READING[name], *_WRITING.get(name, ())}) for name in _READING}
        available = "; ".join(f"{name} {'|'.join(found)}" for name, found in pairs.items())
        raise GhRefused(f"`gh {command} {subcommand}` is not available in the sandbox; available: {available}.")
    kept = _check_words(rest, f"{command} {subcommand}", repository)
    if subcommand == "list":
        for before, word in zip(("", *kept), kept, strict=False):
            name, _, value = word.partition("=")
            if name not in _FILTERS:
                value = word if before in _FILTERS else ""
            if _WIDENS_SEARCH.search(value):
                raise GhRefused(f"{value[:200]!r} is not searched for: it could find something in other repositories.")
    if any(_is_option(word, *_JQ) for word in kept) and any(map(_ENVIRONMENT.search, kept)):
        raise GhRefused("A jq expression cannot read the environment here: leave out `env`.")
    if command == "repo" and any(not word.startswith("-") for word in kept[:1]):
        raise GhRefused("`gh repo view` shows only the project's repository: leave out its name.")
    given = ["--body-file", "-"] if has_text else []
    if (command, subcommand) == ("pr", "create") and not any(_is_option(word, "-H", "--head") for word in kept):
        if not branch or "\0" in branch:
            raise GhRefused("`gh pr create` needs --head BRANCH, because no branch is checked out.")
        given += ["--head", branch]
    about = (repository,) if command == "repo" else ("--repo", repository)
    return GhCall((command, subcommand, *about, *given, *kept), is_reading)


def _check_words(words: Sequence[str], command: str, repository: str) -> list[str]:
    """All but `--repo`, which must name this repository."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        name, is_joined, value = word.partition("=")
        if name in _REPOSITORY:
            named = value if is_joined else next(rest, "")
            if named.lower() not in (repository.lower(), repository.lower().removeprefix("github.com/")):
                raise GhRefused(f"gh works only on {repository}, the project's repository.")
            continue
        kept.append(word)
        if not word.startswith("-"):
            if _ADDRESS.fullmatch(word):
                raise GhRefused(
                    f"{word[:200]!r}: give a number or a branch, not an address. Write a value that contains an "
                    "address as --option=VALUE, or put it into a file and use --body-file."
                )
            continue
        option = name if _JOINED.fullmatch(word) else word
        if option == "--template" and _MAKES_TEMPLATE.fullmatch(command):
            raise GhRefused("--template reads a file outside the sandbox: use --title and --body instead.")
        if option not in _OPTIONS:
            raise GhRefused(
                f"{option[:80]!r} is not an option that gh may have in the sandbox. Write each option by itself, and "
                "a value that begins with a dash as --option=VALUE."
            )
    return kept


def _is_option(word: str, *names: str) -> bool:
    return word.partition("=")[0] in names
