"""Recognises commands that delete files, discard changes or damage a repository, before they run.

A help against accidents, not a defence: a program can delete files in ways that no one can tell from its command line.
Commands are followed in order: where `cd` leads, what variables stand for, what `sudo`, `sh -c` or `xargs` run.
"""

import fnmatch
import re
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from talaria.core.trees import Entry, Root
from talaria.tools.base import Language
from talaria.tools.deleted_files import UNKNOWN, ProjectFiles, escape, is_plain, unescape
from talaria.tools.python_deletions import FileDeletion, find_deletions
from talaria.tools.shell_commands import (
    EnterSubshell,
    LeaveSubshell,
    Loop,
    Part,
    SimpleCommand,
    TooDeep,
    Word,
    literal,
    parse,
    render,
)

MAX_WORDS = 5_000
MAX_CHARS = 200_000
"""Of all values of one word: variables can double each other without end."""
MAX_SCRIPTS = 20
"""In each other: `sh -c`, `eval` and the like."""
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_WRAPPERS = frozenset(
    (
        *("sudo", "doas", "env", "nice", "ionice", "nohup", "time", "timeout", "command", "builtin", "exec", "setsid"),
        *("stdbuf", "busybox", "watch", "chronic", "flock", "coproc"),
    )
)
"""They run the command that follows their own options."""
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=")
_PYTHON = re.compile(r"python[\d.]*|pypy[\d.]*")
_TEMPORARY = "/tmp/talaria-unknown"  # noqa: S108
"""What `mktemp` answers: a name that nothing in a project has."""
_ANYTHING: Word = (Part("unknown", "…"),)


def find_losses(
    command: str,
    language: Language,
    place: str,
    project: Path,
    home: Path,
    created_here: Callable[[Path], bool],
) -> str | None:
    """Why a person should be asked before this runs in `place`: the rest of a sentence. None: no need to.

    Looks at the project: not on the loop.
    """
    try:
        root = Root.open(project)
    except OSError:
        root = None
    try:
        files = ProjectFiles(root, str(project), created_here)
        shell = _Shell(files, place or str(project), str(home))
        if language == "python":
            shell.run_python(command)
        else:
            shell.run(command)
        return files.losses.reason()
    except RecursionError:
        return "what it deletes cannot be told: it is nested too deeply"
    finally:
        if root is not None:
            root.close()


class _State(NamedTuple):
    """What a subshell forgets at its end."""

    places: tuple[str | None, ...]
    """Where commands may run by now; None: not known."""
    variables: dict[str, tuple[Word, ...]]


class _Options(NamedTuple):
    given: list[str]
    operands: list[Word]

    def has(self, short: str, *long: str) -> bool:
        letters = "".join(one[1:] for one in self.given if not one.startswith("--"))
        return any(char in letters for char in short) or any(
            one == name or one.startswith(f"{name}=") for one in self.given for name in long
        )


class _Shell:
    def __init__(self, files: ProjectFiles, place: str, home: str) -> None:
        self._files = files
        self._home = home
        self._places: tuple[str | None, ...] = (place,)
        self._place_before: str | None = None
        self._places_if_failed: tuple[str | None, ...] = ()
        """Where commands run if the last `cd` has failed."""
        self._variables: dict[str, tuple[Word, ...]] = {}
        self._scripts = 0
        self._actions: dict[str, Callable[[list[Word], SimpleCommand, SimpleCommand | None], None]] = {
            "rm": self._rm,
            "unlink": self._delete_operands,
            "shred": self._delete_operands,
            "rmdir": self._delete_operands,
            "truncate": self._delete_operands,
            "find": self._find,
            "git": self._git,
            "mv": self._mv,
            "cp": self._cp,
            "install": self._cp,
            "ln": self._cp,
            "dd": self._dd,
            "tee": self._tee,
            "rsync": self._rsync,
            "chmod": self._chmod,
            "chown": self._chmod,
            "xargs": self._xargs,
            "parallel": self._xargs,
            "eval": self._eval,
            "trap": self._trap,
            "cd": self._cd,
            "pushd": self._cd,
            "popd": self._cd,
            **dict.fromkeys(("export", "local", "declare", "readonly", "typeset"), self._assign),
            **dict.fromkeys(_SHELLS, self._run_shell),
            **dict.fromkeys(_WRAPPERS, self._unwrap),
        }

    def run(self, script: str) -> None:
        if self._scripts >= MAX_SCRIPTS:
            self._files.losses.unknown["scripts in scripts"] = None
            return
        self._scripts += 1
        try:
            steps = parse(script)
        except TooDeep:
            self._files.losses.unknown["commands that are nested too deeply"] = None
            steps = []
        stack: list[_State] = []
        before: SimpleCommand | None = None
        for step in steps:
            match step:
                case EnterSubshell():
                    stack.append(_State(self._places, dict(self._variables)))
                case LeaveSubshell():
                    self._places, self._variables = stack.pop()
                case Loop(variable, words):
                    self._variables[variable] = tuple(self._expanded(words))
                case SimpleCommand():
                    if self._places_if_failed and step.after != "&&":
                        self._places = tuple(dict.fromkeys((*self._places, *self._places_if_failed)))
                    self._places_if_failed = ()
                    self._run_command(step, before if step.after == "|" else None)
                    before = step
        self._scripts -= 1

    def run_python(self, code: str) -> None:
        for found in find_deletions(code):
            match found:
                case FileDeletion(None, source):
                    self._files.losses.unknown[source] = None
                case FileDeletion(str(path), _, is_deep):
                    self._delete((Part("text", path),), is_deep=is_deep)
                case str(script):
                    self._run_apart(script)
                case _:
                    pass

    def _run_command(self, command: SimpleCommand, before: SimpleCommand | None) -> None:
        if not command.words:
            for name, value in command.assignments:
                self._variables[name] = tuple(self._substituted(value))
        for redirect in command.redirects:
            if ">" in redirect.operator and literal(redirect.target) != "/dev/null":
                self._overwrite(redirect.target)
        self._execute(self._expanded(command.words), command, before)

    def _execute(self, words: list[Word], command: SimpleCommand, before: SimpleCommand | None) -> None:
        name = _program(words)
        if _PYTHON.fullmatch(name):
            code = next((render(words[at + 1]) for at in range(1, len(words) - 1) if literal(words[at]) == "-c"), None)
            self.run_python(code if code is not None else command.document or "")
        elif (action := self._actions.get(name)) is not None:
            action(words, command, before)

    def _run_apart(self, script: str) -> None:
        """In a shell of its own."""
        state = _State(self._places, dict(self._variables))
        self.run(script)
        self._places, self._variables = state

    # Words and places

    def _expanded(self, words: Sequence[Word]) -> list[Word]:
        """With the values of variables in it."""
        done: list[Word] = []
        for word in words:
            done += self._substituted(word)
            if len(done) > MAX_WORDS:
                self._files.losses.unknown[f"a command of more than {MAX_WORDS:,} words"] = None
                break
        return done[:MAX_WORDS]

    def _substituted(self, word: Word) -> list[Word]:
        """Several words, if a variable in it may have several values."""
        if all(part.kind not in ("variable", "unquoted") for part in word):
            return [tuple(_temporary(part) for part in word)]
        made: list[Word] = [()]
        for part in word:
            values: Sequence[Word] = ((_temporary(part),),)
            if part.kind in ("variable", "unquoted"):
                values = self._values(part.text)
                if part.kind == "unquoted" and len(word) == 1:
                    values = [piece for value in values for piece in _split(value)]
            size = sum(map(_size, made)) * len(values) + sum(map(_size, values)) * len(made)
            if size > MAX_CHARS:
                return [_ANYTHING]
            made = [(*one, *value) for one in made for value in values]
        return made

    def _values(self, name: str) -> Sequence[Word]:
        if name in self._variables:
            return self._variables[name] or ((),)
        known = {"HOME": self._home, "TMPDIR": "/tmp", "PWD": self._places[0]}.get(name)  # noqa: S108
        return (((Part("text", known),) if known is not None else (Part("unknown", f"${name}"),)),)

    def _patterns(self, word: Word) -> list[tuple[str, ...] | None]:
        """As absolute paths in parts, one for each place. None: it may be anywhere."""
        text = "".join(_pattern(part) for part in word)
        if not text:
            return []
        if text.startswith("/"):
            return [_normalised(text)]
        if text.startswith(UNKNOWN):
            return [None]
        return [None if place is None else _normalised(f"{escape(place)}/{text}") for place in self._places]

    def _located(self, word: Word, *, is_told: bool = True) -> list[str]:
        """Names in the project. `is_told`: the person is asked about what cannot be known."""
        found: list[str] = []
        for pattern in self._patterns(word):
            if pattern is not None:
                found += self._files.locate(pattern)
            elif is_told:
                self._files.losses.unknown[render(word).replace(UNKNOWN, "…")] = None
        return found

    def _delete(self, word: Word, *, is_deep: bool) -> None:
        for name in self._located(word):
            self._files.delete(name, is_deep=is_deep)

    def _overwrite(self, word: Word) -> None:
        for name in self._located(word, is_told=False):
            self._files.overwrite(name)

    # Commands that delete

    def _rm(self, words: list[Word], *_: object) -> None:
        options = _options(words)
        is_deep = options.has("rR", "--recursive")
        for word in dict.fromkeys(options.operands):
            self._delete(word, is_deep=is_deep)

    def _delete_operands(self, words: list[Word], *_: object) -> None:
        name = _program(words)
        for word in _options(words, ("-s", "--size", "-n", "-r", "--reference")).operands:
            if name != "rmdir" or all(pattern is not None for pattern in self._patterns(word)):
                self._delete(word, is_deep=False)

    def _mv(self, words: list[Word], *_: object) -> None:
        options = _options(words, ("-S",))
        target = _value(words, ("-t", "--target-directory"))
        sources = options.operands if target else options.operands[:-1]
        target = target or (options.operands[-1] if options.operands else ())
        places = self._patterns(target)
        is_leaving = bool(places) and all(one is not None and not self._files.is_inside(one) for one in places)
        for source in sources:
            if is_leaving:
                self._delete(source, is_deep=True)
                continue
            for name in self._located(source, is_told=False):
                self._files.move_away(name)

    def _cp(self, words: list[Word], *_: object) -> None:
        operands = _options(words, ("-S", "-m", "-o", "-g")).operands
        target = _value(words, ("-t", "--target-directory")) or (operands[-1] if len(operands) > 1 else ())
        if literal(operands[0] if operands else ()) == "/dev/null" and _program(words) != "ln":
            self._delete(target, is_deep=False)
        for name in self._located(target, is_told=False):
            inner = [name]
            if self._files.is_folder(name):
                inner = [f"{name}/{render(one).rpartition('/')[2]}" for one in operands[:-1]]
            for one in inner:
                self._files.overwrite(one)

    def _dd(self, words: list[Word], *_: object) -> None:
        for word in words[1:]:
            if word and word[0].kind == "text" and word[0].text.startswith("of="):
                self._overwrite((Part("text", word[0].text[3:]), *word[1:]))

    def _tee(self, words: list[Word], *_: object) -> None:
        for word in _options(words).operands:
            self._overwrite(word)

    def _rsync(self, words: list[Word], *_: object) -> None:
        options = _options(words, ("-e", "-f", "--rsh", "--exclude", "--include", "--filter"))
        deletes = any(one.startswith("--del") for one in options.given)
        if deletes and not options.has("n", "--dry-run") and len(options.operands) > 1:
            target = options.operands[-1]
            if ":" not in render(target):
                self._delete(target, is_deep=True)

    def _chmod(self, words: list[Word], *_: object) -> None:
        """Of interest only in a repository. Whoever adds rights harms nothing."""
        mode, *targets = [one for one in words[1:] if not (literal(one) or "").startswith("-R")] or [()]
        if not re.match(r"[ugoa]*\+", render(mode)):
            for word in targets:
                for name in self._located(word, is_told=False):
                    self._files.move_away(name)

    # Commands that run others

    def _unwrap(self, words: list[Word], command: SimpleCommand, before: SimpleCommand | None) -> None:
        for at in range(1, len(words)):
            name = _program(words[at:])
            if name not in _WRAPPERS and (name in self._actions or _PYTHON.fullmatch(name)):
                self._execute(words[at:], command, before)
                return

    def _run_shell(self, words: list[Word], command: SimpleCommand, before: SimpleCommand | None) -> None:
        for at, word in enumerate(words[1:-1], 1):
            if re.fullmatch(r"-\w*c", literal(word) or ""):
                self._run_apart(_script(words[at + 1]))
                return
        if command.document is not None:
            self._run_apart(command.document)
        elif before is not None and (said := self._printed(before)) is not None and len(words) == 1:
            self._run_apart(" ".join(map(render, said)))

    def _eval(self, words: list[Word], *_: object) -> None:
        self.run(" ".join(map(_script, words[1:])))

    def _trap(self, words: list[Word], *_: object) -> None:
        """What it will run at the end is looked at as if it ran now."""
        for word in _options(words).operands[:1]:
            self._run_apart(render(word))

    def _xargs(self, words: list[Word], command: SimpleCommand, before: SimpleCommand | None) -> None:
        at = next((at for at in range(1, len(words)) if _program(words[at:]) in self._actions), None)
        if at is None:
            return
        inner = words[at:]
        found = None if before is None else self._expanded(before.words)
        if before is not None and (said := self._printed(before)) is not None:
            self._execute([*inner, *said], command, None)
        elif found and _program(found) == "find":
            self._search(found, inner)
        else:
            self._execute([*inner, (Part("unknown", f"(what {_program(words)} is given)"),)], command, None)

    def _printed(self, command: SimpleCommand) -> list[Word] | None:
        words = self._expanded(command.words)
        if _program(words) not in ("echo", "printf"):
            return None
        texts = (text for word in words[1:] if not (text := render(word)).startswith("-"))
        return [(Part("text", piece),) for text in texts for piece in re.sub(r"\\n|%s", " ", text).split()]

    def _cd(self, words: list[Word], *_: object) -> None:
        operands = _options(words).operands
        before = self._places
        given = literal(operands[0]) if operands else None
        if _program(words) == "popd" or given == "-":
            self._places = (self._place_before,)
        else:
            word = operands[0] if operands else (Part("text", self._home),)
            self._places = tuple(_as_path(pattern) for pattern in self._patterns(word))
            is_sure = all(place is not None and self._can_enter(place) for place in self._places)
            self._places_if_failed = () if is_sure else before
        self._place_before = before[0]

    def _can_enter(self, place: str) -> bool:
        """What is outside of the project is taken to be there."""
        inner = place.removeprefix(self._files.project)
        is_inside = place.startswith(f"{self._files.project}/") or not inner
        return not is_inside or self._files.is_folder(inner.strip("/"))

    def _assign(self, words: list[Word], *_: object) -> None:
        for word in words[1:]:
            if word and word[0].kind == "text" and (name := _ASSIGNMENT.match(word[0].text)):
                self._variables[name[1]] = ((Part("text", word[0].text[name.end() :]), *word[1:]),)

    # find

    def _find(self, words: list[Word], *_: object) -> None:
        texts = [literal(word) for word in words]
        if "-delete" in texts:
            self._search(words, None)
        for action in ("-exec", "-execdir", "-ok", "-okdir"):
            if action in texts:
                inner = words[texts.index(action) + 1 :]
                ends = [at for at, word in enumerate(inner) if literal(word) in (";", "+")]
                self._search(words, inner[: ends[0]] if ends else inner)

    def _search(self, words: Sequence[Word], inner: list[Word] | None) -> None:
        """What `find` finds is deleted, or handed to the command `inner`. Conditions that are not known are taken to be
        met."""
        wrapped = inner or []
        while wrapped and _program(wrapped) in _WRAPPERS:
            wrapped = wrapped[1:]
        if inner is not None and _program(wrapped) not in ("rm", "unlink", "shred", "truncate", "mv"):
            filled = [(Part("unknown", "(what find finds)"),) if literal(word) == "{}" else word for word in inner]
            self._execute(filled, SimpleCommand(tuple(filled)), None)
            return
        is_deep = inner is not None and (_program(wrapped) == "mv" or _options(wrapped).has("rR", "--recursive"))
        texts = [render(word) for word in words]
        first = next((at for at in range(1, len(texts)) if re.match(r"[-(!]", texts[at])), len(texts))
        tests = _find_tests(texts[first:])

        def is_wanted(name: str, entry: Entry) -> bool:
            if entry.is_folder and not is_deep:
                return False
            is_named = any(fnmatch.fnmatch(entry.name, one) for one in tests.names)
            is_placed = any(fnmatch.fnmatch(f"./{name}", one) for one in tests.paths)
            if tests.is_any:
                return is_named or is_placed or not (tests.names or tests.paths)
            kind = "d" if entry.is_folder else "f" if entry.is_plain_file else "l"
            is_kind = not tests.kinds or kind in tests.kinds
            return is_kind and (is_named or not tests.names) and (is_placed or not tests.paths)

        for word in words[1:first] or [(Part("text", "."),)]:
            for start in self._located(word):
                if not self._files.is_folder(start):
                    self._files.delete(start, is_deep=False)
                for name in self._files.search(start, is_wanted, tests.max_depth):
                    self._files.delete(name, is_deep=is_deep)

    # git

    def _git(self, words: list[Word], *_: object) -> None:
        state = self._places
        at = 1
        while at < len(words) and (option := literal(words[at]) or "-").startswith("-"):
            if option == "-C" and at + 1 < len(words):
                self._places = tuple(_as_path(pattern) for pattern in self._patterns(words[at + 1]))
            at += 2 if option in ("-C", "-c", "--git-dir", "--work-tree", "--namespace") else 1
        here = self._located((Part("text", "."),), is_told=False)
        if here or None in self._places:
            self._run_git(words[at:], here or [""])
        self._places = state

    def _run_git(self, words: list[Word], here: list[str]) -> None:  # noqa: C901, PLR0912  (a table)
        name = literal(words[0]) if words else None
        options = _options(words, ("-s", "--source", "-e", "--exclude", "-b", "-B", "-c", "-C", "--conflict"))
        operands, files = options.operands, self._files
        first = literal(operands[0]) if operands else None
        given = " ".join(("git", name or "", *options.given[:2]))
        match name:
            case "clean" if options.has("f", "--force") and not options.has("n", "--dry-run"):
                for place in [one for word in operands for one in self._located(word)] if operands else here:
                    files.clean(place, is_deep=options.has("d"), has_ignored=options.has("xX"))
            case "reset" if "--hard" in options.given:
                files.discard(given, here, is_all=True)
            case "checkout" | "switch" if options.has("f", "--force", "--discard-changes"):
                files.discard(given, here, is_all=True)
            case "checkout":
                marks = [at for at, word in enumerate(words) if literal(word) == "--"]
                meant = words[marks[0] + 1 :] if marks else operands
                files.discard(given, [one for word in meant for one in self._located(word) if files.is_there(one)])
            case "restore" if not options.has("S", "--staged") or options.has("W", "--worktree"):
                files.discard(given, [one for word in operands for one in self._located(word)])
            case "rm" if "--cached" not in options.given:
                for word in operands:
                    for one in self._located(word):
                        files.delete(one, is_deep=options.has("r"), is_tracked=True)
            case "stash" if first in ("drop", "clear"):
                files.losses.said[f"`git stash {first}` deletes stashed changes"] = None
            case "branch" if options.has("D") or (options.has("d", "--delete") and options.has("f", "--force")):
                branches = ", ".join(render(word) for word in operands)[:100]
                files.losses.said[f"it deletes a branch, merged or not: {branches}"] = None
            case "update-ref" if options.has("d"):
                files.losses.said["`git update-ref -d` deletes a branch or tag"] = None
            case "reflog" if first in ("expire", "delete"):
                files.losses.said[f"`git reflog {first}` deletes what git would use to undo mistakes"] = None
            case "gc" if any(one in ("--prune=now", "--prune=all") for one in options.given):
                files.losses.said["`git gc --prune` deletes commits and files that no branch has"] = None
            case "prune" if not options.has("n", "--dry-run"):
                files.losses.said["`git prune` deletes commits and files that no branch has"] = None
            case "filter-branch" | "filter-repo":
                files.losses.said[f"`git {name}` rewrites the history of the repository"] = None
            case "worktree" if first == "remove" and options.has("f", "--force"):
                files.losses.said["`git worktree remove --force` deletes a worktree with its changes"] = None
            case _:
                pass


class _FindTests(NamedTuple):
    names: list[str]
    paths: list[str]
    kinds: str
    max_depth: int
    is_any: bool
    """One of them is enough."""


def _find_tests(words: Sequence[str]) -> _FindTests:
    """Of `find`, as far as they are known; what is excluded with `!` is taken to be there."""
    names: list[str] = []
    paths: list[str] = []
    kinds, max_depth = "", 1 << 20
    for at, (option, value) in enumerate(pairwise(words)):
        is_excluded = at > 0 and words[at - 1] in ("!", "-not")
        if option in ("!", "-not") and value == "(":
            return _FindTests([], [], "", 1 << 20, is_any=True)
        if is_excluded:
            continue
        if option in ("-name", "-iname"):
            names.append(value)
        elif option in ("-path", "-wholename", "-ipath"):
            paths.append(value)
        elif option == "-type":
            kinds += value
        elif option == "-maxdepth" and value.isdecimal():
            max_depth = int(value)
    return _FindTests(names, paths, kinds, max_depth, is_any=any(one in ("-o", "-or", "-prune") for one in words))


def _program(words: Sequence[Word]) -> str:
    text = literal(words[0]) if words else None
    return (text or "").rpartition("/")[2]


def _options(words: Sequence[Word], with_values: Collection[str] = ()) -> _Options:
    """Of a command. `with_values`: those whose value is the next word."""
    given: list[str] = []
    operands: list[Word] = []
    rest = iter(words[1:])
    for word in rest:
        text = render(word)
        if text == "--":
            operands += rest
        elif len(text) > 1 and text.startswith("-") and word[0].kind == "text":
            given.append(text)
            if text in with_values:
                next(rest, None)
        else:
            operands.append(word)
    return _Options(given, operands)


def _value(words: Sequence[Word], names: Collection[str]) -> Word:
    for at, word in enumerate(words[:-1]):
        if literal(word) in names:
            return words[at + 1]
        if word and word[0].kind == "text" and word[0].text.startswith("--target-directory="):
            return (Part("text", word[0].text.partition("=")[2]), *word[1:])
    return ()


def _script(word: Word) -> str:
    """To be read as commands: what is not known stays so, also inside of quotes."""
    return "".join(part.text if part.kind in ("text", "glob") else UNKNOWN for part in word)


def _size(word: Word) -> int:
    return 1 + sum(len(part.text) + 1 for part in word)


def _temporary(part: Part) -> Part:
    return Part("text", _TEMPORARY) if part == ("unknown", "$(mktemp)") else part


def _split(value: Word) -> list[Word]:
    """What a variable becomes outside of quotes."""
    text = literal(value)
    if text is None or not re.search(r"[\s*?]", text):
        return [value]
    pieces = (re.split(r"([*?])", piece) for piece in text.split())
    return [tuple(Part("glob" if one in ("*", "?") else "text", one) for one in piece if one) for piece in pieces]


def _pattern(part: Part) -> str:
    match part.kind:
        case "text":
            return escape(part.text)
        case "glob":
            return part.text
        case _:
            return UNKNOWN


def _normalised(pattern: str) -> tuple[str, ...] | None:
    done: list[str] = []
    for part in pattern.split("/"):
        if part == "..":
            if done and not is_plain(done[-1]):
                return None
            done = done[:-1]
        elif part not in ("", "."):
            done.append(part)
    return tuple(done)


def _as_path(pattern: tuple[str, ...] | None) -> str | None:
    """None: it stands for several, or for something that is not known."""
    if pattern is None or not all(map(is_plain, pattern)):
        return None
    return f"/{'/'.join(map(unescape, pattern))}"
