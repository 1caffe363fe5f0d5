"""Commands outside the sandbox that a yes which lasts may cover: a program and its subcommand, told from their words.

The words are not enough: what commands in the sandbox have left in the project must not run outside by way of a command
that was allowed once. Whatever could do that is asked about each time.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from talaria.core.trees import Root, read_file
from talaria.tools import git_config, shell_words
from talaria.tools.repositories import HOOKS, RepositoryScan, find_enclosing_repository, is_repository

_SUBCOMMAND = re.compile(r"[a-z][a-z0-9-]*")
_RUNNING_OPTIONS = (
    *("exec", "receive-pack", "upload-pack", "config", "ssh-command", "extcmd", "open-files-in-pager", "template"),
    *("git-dir", "work-tree", "ext-diff", "textconv", "output", "editor-cmd", "diff-cmd", "diff3-cmd", "command"),
)
"""After these a program takes a command, a folder with settings of its own, or a file to write. They may be
shortened."""
_RUNNING_LETTERS = frozenset("cCxoO")
_RUNS = {
    "git": frozenset(
        {
            *("bisect", "clone", "config", "credential", "daemon", "difftool", "filter-branch", "filter-repo", "grep"),
            *("for-each-repo", "gui", "help", "hook", "instaweb", "maintenance", "mergetool", "p4", "remote"),
            *("send-email", "submodule", "svn", "upload-pack", "receive-pack", "shell"),
        }
    ),
    "gh": frozenset({"alias", "auth", "codespace", "config", "cs", "ext", "extension", "extensions"}),
    "ip": frozenset({"netns", "vrf"}),
}
"""Subcommands that run what their own arguments say, set what runs later, or print a login."""
_RUNNING = frozenset(
    {
        *("build", "call", "console", "deploy", "dev", "dlx", "eval", "exec", "invoke", "job", "local", "repl", "run"),
        *("script", "serve", "server", "sh", "shell", "ssh", "start", "task", "test", "up", "watch", "x"),
    }
)
"""Subcommands of many programs that run what comes after them, or what files of the project say."""
_HAVE_NO_SUBCOMMANDS = frozenset(
    {
        *("base64", "cat", "chattr", "chgrp", "chmod", "chown", "cp", "curl", "dd", "install", "ln", "mkdir", "mkfifo"),
        *("mknod", "mv", "nc", "ncat", "patch", "rm", "rmdir", "setfacl", "shred", "socat", "sort", "split", "tee"),
        *("touch", "truncate", "unlink", "unzip", "wget", "xxd", "7z", "gzip", "gunzip", "xz", "openssl", "gpg"),
    }
)
"""Their second word is a file or an address: a yes that lasts would be one to write, or send, whatever comes after."""
_HOOKS_OF = {
    "push": frozenset({"pre-push", "reference-transaction"}),
    "fetch": frozenset({"pre-auto-gc", "reference-transaction"}),
}
"""Of other subcommands any hook may run."""
_ANY_HOOK = frozenset(HOOKS)
_SUFFIXES = ("", ".git", ".bundle")
"""With one of these git finds a repository that is named without it."""


def command_prefix(words: Sequence[str]) -> tuple[str, ...]:
    """Of the commands that a yes to this one may cover: a program and its subcommand. Empty: only this very command."""
    if len(words) < 2 or "/" in words[0]:
        return ()
    program, subcommand = words[:2]
    is_plain = _SUBCOMMAND.fullmatch(program) and _SUBCOMMAND.fullmatch(subcommand)
    if program in _HAVE_NO_SUBCOMMANDS or subcommand in _RUNS.get(program, ()):
        return ()
    if subcommand in _RUNNING and program not in _RUNS:
        return ()
    return (program, subcommand) if is_plain and not shell_words.runs_others(program) else ()


def runs_anything(word: str) -> bool:
    """Whether a command is taken from the words after it, or from itself."""
    if word.startswith("--"):
        name = word[2:].partition("=")[0]
        return any(option.startswith(name) or name.startswith(option) for option in _RUNNING_OPTIONS)
    if "::" in word or word.lower().startswith("file:"):
        return True
    return word.startswith("-") and not _RUNNING_LETTERS.isdisjoint(word)


def find_risk(words: Sequence[str], place: str, project: Path) -> str:
    """Why a yes from before does not cover a command that begins with the same words: the rest of a sentence. Empty: it
    does. Looks at the disk, and runs nothing."""
    try:
        here = Path(place).resolve()
        if not here.is_relative_to(project):
            return "it begins in a folder outside the project"
        if any((here / name).exists() for word in words[2:] for name in _possible_files(word)):
            return "it names a file, which commands may have made"
        return _find_risk_of_git(words, here, project) if words[0] in ("git", "gh") else ""
    except (OSError, RuntimeError, ValueError):
        return "the folder in which it begins cannot be looked at"


def _possible_files(word: str) -> Iterator[str]:
    named = (word, word[2:] if word.startswith("-") else "", word[1:] if word.startswith("@") else "")
    yield from (f"{name}{suffix}" for name in named if name for suffix in _SUFFIXES)


def _find_risk_of_git(words: Sequence[str], here: Path, project: Path) -> str:
    enclosing = find_enclosing_repository(project, lambda _: True)
    top = enclosing.root if enclosing is not None else project
    between = (one for one in (here, *here.parents) if one.is_relative_to(top) and one != top)
    if any((one / ".git").exists() or is_repository(os.listdir(one)) for one in between):  # noqa: PTH208
        return "it begins in a repository inside the project, which commands may have made"
    if enclosing is None:
        return "nobody knows what its repository obeys" if os.path.lexists(project / ".git") else ""
    with ExitStack() as held:
        opened = {str(one): held.enter_context(Root.open(one)) for one in (top, *enclosing.folders)}
        found = RepositoryScan(opened)
        found.add(f"{top}/.git")
    hook = next(_find_hooks(map(Path, found.policy), _HOOKS_OF.get(words[1], _ANY_HOOK)), None)
    if hook is not None:
        return f"git would run the hook {hook}, and with it what commands may have changed in the project"
    settings = (place for place in found.policy if place.endswith("/config"))
    if any(_leads_to_this_machine(Path(file)) for file in settings):
        return "git would run the hooks of a repository on this machine, which one of the remotes is"
    return ""


def _find_hooks(places: Iterator[Path], wanted: frozenset[str]) -> Iterator[Path]:
    for place in places:
        inner = (place / name for name in sorted(wanted)) if place.is_dir() else (place,)
        yield from (hook for hook in inner if hook.name in wanted and hook.is_file() and os.access(hook, os.X_OK))


def _leads_to_this_machine(file: Path) -> bool:
    """Whether an address in settings of git is a path."""
    for key, value in git_config.parse_config(read_file(file, git_config.MAX_CONFIG_BYTES)):
        is_address = key.startswith("remote.") and key.rpartition(".")[2] in ("url", "pushurl")
        if is_address and (":" not in value.partition("/")[0] or value.lower().startswith("file:")):
            return True
    return False
