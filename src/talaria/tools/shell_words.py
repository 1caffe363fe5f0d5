"""Reading a command line without running it: what rules match, and which commands a lasting yes covers. A convenience:
the sandbox is the boundary."""

import os
import re
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath

from talaria.core.trees import Root, read_file
from talaria.tools import git_config
from talaria.tools.git_program import read_person_settings
from talaria.tools.protected import Protected
from talaria.tools.repositories import HOOKS, RepositoryScan, find_enclosing_repository, is_repository

MAX_SIMPLE_CHARS = 2_000
_SPECIAL_CHARS = frozenset("|&;<>()$`\\\n*?[]{}~!#=\r")
"""With any of these, more may happen than the words say."""
_INTERPRETERS = (
    r"(?:a|ba|da|elvi|fi|c|k|lk|mk|o|pdk|pw|rba|tc|xon|ya|z)?sh|nu|rc|python[\d.]*|ipython[\d.]*|pypy[\d.]*|node|deno|"
    r"bun|perl|ruby|php|lua|awk|gawk|env|xargs|sudo|doas|su|eval|exec|"
    r"source|\.|nohup|time|timeout|nice|watch|find|make|npx|uvx|pipx|ssh|docker|podman|kubectl|systemd-run|export|alias|"
    r"setsid|busybox"
)
"""Their arguments or files decide what they do, so the first word says nothing."""
_HARMLESS = frozenset(
    {"cat", "date", "df", "du", "file", "free", "head", "hostname", "id", "ls", "ps", "pwd", "stat", "tail", "uname"}
    | {"uptime", "wc", "which", "whoami"}
)
"""They show something and run nothing else, whatever their arguments."""
_SEPARATORS = r"[|&;\n(){}`]|\b(?:then|do|else)\b"
_WIPING = frozenset({"wipefs", "blkdiscard", "sgdisk", "sfdisk", "parted"})
_DISK = re.compile(r"/dev/(?:sd|nvme|vd|hd|mmcblk|mapper|md|dm-|xvd)")
_DELETING = re.compile(
    r"\b(?:rm|unlink|shred|rmdir|truncate|rsync|mv|rmtree|remove)\b|\s-delete\b|\.git\b|\bcp\s+/dev/null\b|"
    r"\bgit\b.{0,200}?\b(?:clean|reset|checkout|restore|switch|stash|branch|update-ref|reflog|gc|prune|filter-branch|"
    r"filter-repo|worktree)\b",
    re.DOTALL,
)
_EVERYTHING = re.compile(r"(?:/|~|\$HOME|\$\{HOME\}|/(?:home|usr|etc|var|boot|root|bin|lib))/?\*?")

_RUNNING_OPTIONS = (
    *("exec", "receive-pack", "upload-pack", "config", "ssh-command", "extcmd", "open-files-in-pager", "template"),
    *("git-dir", "work-tree", "ext-diff", "textconv", "output", "editor-cmd", "diff-cmd", "diff3-cmd", "command"),
)
"""Options that take a command, a folder with its own settings, or a file to write. They may be shortened."""
_RUNNING_LETTERS = frozenset("cCxoO")
_LASTING = {
    "git": frozenset({"commit", "fetch", "init", "ls-remote", "pull", "push", "tag"}),
    "gh": frozenset({"issue", "label", "pr", "search", "status", "workflow"}),
    "apt": frozenset({"install", "update"}),
    "apt-get": frozenset({"install", "update"}),
}
"""What runs nothing that its arguments or files of a project name, apart from what `runs_anything` and `find_risk` see.

Everything else is asked about each time: nobody can list all programs that run others, `git rebase` runs the steps that
it finds in a file, and `gh run download` writes wherever it is told to."""
_HOOKS_OF = {
    "push": frozenset({"pre-push", "reference-transaction"}),
    "fetch": frozenset({"pre-auto-gc", "reference-transaction"}),
}
"""Other subcommands may run any hook."""
_SUFFIXES = ("", ".git", ".bundle")
"""Git finds a repository that is named without one of these."""


def split_simple(command: str) -> Sequence[str] | None:
    """The words, if it is one program followed by plain words, and not named by a path in the project; else None."""
    if len(command) > MAX_SIMPLE_CHARS or _SPECIAL_CHARS & set(command):
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if not words or re.fullmatch(_INTERPRETERS, _program_name(words[0])):
        return None
    return None if "/" in words[0] and not words[0].startswith("/") else words


def is_harmless(command: str) -> bool:
    """Whether it does the same every time, so a permanent yes is safe."""
    words = split_simple(command)
    return words is not None and words[0] in _HARMLESS


def _program_name(program: str) -> str:
    return PurePosixPath(program).name


def matches_rule(command: str, pattern: str, *, is_allowing: bool) -> bool:
    """`*` stands for one word, or at the end for any number of words. To allow, the pattern must match everything that
    happens; to deny, one command that begins like the pattern is enough."""
    wanted = pattern.split()
    if is_allowing:
        words = split_simple(command)
        return command.strip() == pattern.strip() or (words is not None and _fits(words, wanted))
    beginning = wanted if wanted[-1:] == ["*"] else [*wanted, "*"]
    for part in (command, *_split_commands(command)):
        try:
            words = shlex.split(part) if len(part) <= MAX_SIMPLE_CHARS else part.split()
        except ValueError:
            words = part.split()
        if _fits([*map(_program_name, words[:1]), *words[1:]], beginning):
            return True
    return False


def _split_commands(command: str) -> list[str]:
    """A rough split into single commands."""
    return [part for part in re.split(_SEPARATORS, command) if part and not part.isspace()]


def _fits(words: Sequence[str], wanted: Sequence[str]) -> bool:
    for index, pattern in enumerate(wanted):
        if pattern == "*" and index == len(wanted) - 1:
            return True
        if index >= len(words) or pattern not in ("*", words[index]):
            return False
    return len(words) == len(wanted)


def may_delete(command: str, place: str) -> bool:
    """Whether it needs a closer look: it has a word that deletes files or names a repository."""
    return _DELETING.search(command) is not None or ".git" in place


def is_destructive(command: str, protected: Protected) -> bool:
    """Whether it wipes the disk or touches what is private. Each part is read once: it may be long."""
    if any(place in command for place in protected.names) or ":|:&" in "".join(command.split()):
        return True
    for part in _split_commands(command.replace("${HOME}", "~")):
        words = part.replace(">", " > ").split()
        names = {_program_name(word) for word in words}
        if names & _WIPING or any(name.startswith("mkfs") for name in names):
            return True
        is_deep = any(word.startswith("-") and not word.startswith("--") and "r" in word.lower() for word in words)
        if "rm" in names and (is_deep or "--recursive" in words):
            if any(_EVERYTHING.fullmatch(word) for word in words):
                return True
        elif names & {"dd", "shred", "tee", ">"} and any(_DISK.match(word.removeprefix("of=")) for word in words):
            return True
    return False


def command_prefix(words: Sequence[str]) -> tuple[str, ...]:
    """The program and subcommand that a lasting yes to this command may cover. Empty: only this exact command.

    The words alone are not enough: what sandboxed commands have left in the project must not run outside by way of a
    command that was allowed once. Anything that could do that is asked about each time.
    """
    return (words[0], words[1]) if len(words) > 1 and words[1] in _LASTING.get(words[0], ()) else ()


def runs_anything(word: str) -> bool:
    """Whether a program may take a command from this word or from the words after it."""
    if word.startswith("--"):
        name = word[2:].partition("=")[0]
        return any(option.startswith(name) or name.startswith(option) for option in _RUNNING_OPTIONS)
    if "::" in word or word.lower().startswith("file:"):
        return True
    return word.startswith("-") and not _RUNNING_LETTERS.isdisjoint(word)


def find_risk(words: Sequence[str], place: str, project: Path) -> str:
    """Why an earlier yes does not cover a command that begins with the same words: the rest of a sentence. Empty: it
    does. Looks at the disk, and runs nothing of the project."""
    try:
        here = Path(place).resolve()
        if not here.is_relative_to(project):
            return "it starts in a folder outside the project"
        for word in words[2:]:
            attached = range(2, len(word)) if re.match("-[^-]", word) else ()  # as in `-dFfile`
            named = (word, *(word[at:] for at in attached), word[1:] if word.startswith("@") else "")
            if any((here / f"{name}{suffix}").exists() for name in named if name for suffix in _SUFFIXES):
                return "it names a file, which commands may have created"
        return _find_risk_of_git(words[1], here, project) if words[0] in ("git", "gh") else ""
    except (OSError, RuntimeError, ValueError):
        return "the folder in which it starts cannot be read"


def _find_risk_of_git(subcommand: str, here: Path, project: Path) -> str:
    enclosing = find_enclosing_repository(project, lambda _: True)
    top = enclosing.root if enclosing is not None else project
    between = (one for one in (here, *here.parents) if one.is_relative_to(top) and one != top)
    if any((one / ".git").exists() or is_repository(os.listdir(one)) for one in between):  # noqa: PTH208
        return "it starts in a repository inside the project, which commands may have created"
    if enclosing is None:
        return "it is unknown what its repository obeys" if os.path.lexists(project / ".git") else ""
    with ExitStack() as held:
        opened = {str(one): held.enter_context(Root.open(one)) for one in (top, *enclosing.folders)}
        found = RepositoryScan(opened)
        found.add(f"{top}/.git")
    wanted = _HOOKS_OF.get(subcommand, frozenset(HOOKS))
    of_person = read_person_settings(top).get("core.hookspath", ())[-1:]  # hooks of theirs, which may run the project's
    for place in (*map(Path, found.policy), *(top / Path(named).expanduser() for named in of_person)):
        for hook in [place / name for name in sorted(wanted)] if place.is_dir() else [place]:
            if hook.name in wanted and hook.is_file() and os.access(hook, os.X_OK):
                return f"git would run the hook {hook}, and with it what commands may have changed in the project"
    for file in (place for place in found.policy if place.endswith("/config")):
        for key, value in git_config.parse_config(read_file(Path(file), git_config.MAX_CONFIG_BYTES)):
            is_address = key.startswith("remote.") and key.rpartition(".")[2] in ("url", "pushurl")
            if is_address and (":" not in value.partition("/")[0] or value.lower().startswith("file:")):
                return "one of the remotes is a repository on this machine, and git would run its hooks"
    return ""
