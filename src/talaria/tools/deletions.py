"""Recognises commands that delete files, discard changes or damage a repository, before they run.

This prevents accidents; it is not a defence: a program can delete files in ways that its command line does not show.
Commands are followed in order: where `cd` leads, what variables stand for, what `sudo`, `sh -c` or `xargs` run.
"""

import fnmatch
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from talaria.core.trees import Entry, Root
from talaria.tools.base import Language
from talaria.tools.deleted_files import ProjectFiles
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
from talaria.tools.shell_expansion import (
    UNKNOWN,
    ExpansionSnapshot,
    ExpansionState,
    as_path,
    find_target_directory,
    parse_find_tests,
    parse_options,
    program_name,
)

MAX_SCRIPTS = 20
"""Nested in each other: `sh -c`, `eval` and the like."""
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_WRAPPERS = frozenset(
    (
        *("sudo", "doas", "env", "nice", "ionice", "nohup", "time", "timeout", "command", "builtin", "exec", "setsid"),
        *("stdbuf", "busybox", "watch", "chronic", "flock", "coproc"),
    )
)
"""Programs that run the command after their own options."""
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=")
_PYTHON = re.compile(r"python[\d.]*|pypy[\d.]*")


def find_losses(
    command: str,
    language: Language,
    place: str,
    project: Path,
    home: Path,
    created_here: Callable[[Path], bool],
) -> str | None:
    """Why a person should be asked before this runs in `place`: the rest of a sentence. None: no need to ask.

    Looks at the disk: not on the loop.
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
        return "it is nested too deeply to tell what it deletes"
    finally:
        if root is not None:
            root.close()


class _Shell:
    def __init__(self, files: ProjectFiles, place: str, home: str) -> None:
        self._files = files
        self._state = ExpansionState(place, home, files.losses.unknown)
        self._place_before: str | None = None
        self._places_if_failed: tuple[str | None, ...] = ()
        """Where commands run if the last `cd` failed."""
        self._scripts = 0
        self._actions: dict[str, Callable[[list[Word], SimpleCommand, SimpleCommand | None], None]] = {
            "find": self._find,
            "git": self._git,
            "mv": self._mv,
            **dict.fromkeys(("rm", "unlink", "shred", "rmdir", "truncate", "rsync"), self._delete_operands),
            **dict.fromkeys(("cp", "install", "ln"), self._cp),
            **dict.fromkeys(("dd", "tee", "chmod", "chown"), self._change_operands),
            **dict.fromkeys(("xargs", "parallel"), self._xargs),
            **dict.fromkeys(("cd", "pushd", "popd"), self._cd),
            **dict.fromkeys(("export", "local", "declare", "readonly", "typeset"), self._assign),
            **dict.fromkeys((*_SHELLS, "eval", "trap"), self._run_script),
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
        stack: list[ExpansionSnapshot] = []
        before: SimpleCommand | None = None
        for step in steps:
            match step:
                case EnterSubshell():
                    stack.append(self._state.save())
                case LeaveSubshell():
                    self._state.restore(stack.pop())
                case Loop(variable, words):
                    self._state.variables[variable] = tuple(self._state.expand(words))
                case SimpleCommand():
                    if self._places_if_failed and step.after != "&&":
                        self._state.places = tuple(dict.fromkeys((*self._state.places, *self._places_if_failed)))
                    self._places_if_failed = ()
                    for name, value in step.assignments if not step.words else ():
                        self._state.variables[name] = tuple(self._state.substitute(value))
                    for redirect in step.redirects:
                        if ">" in redirect.operator and literal(redirect.target) != "/dev/null":
                            self._overwrite(redirect.target)
                    self._execute(self._state.expand(step.words), step, before if step.after == "|" else None)
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
                    self._run_in_subshell(script)
                case _:
                    pass

    def _execute(self, words: list[Word], command: SimpleCommand, before: SimpleCommand | None) -> None:
        name = program_name(words)
        if name in _WRAPPERS:
            for at in range(1, len(words)):
                name = program_name(words[at:])
                if name in self._actions or _PYTHON.fullmatch(name):
                    self._execute(words[at:], command, before)
                    return
        elif _PYTHON.fullmatch(name):
            code = next((render(words[at + 1]) for at in range(1, len(words) - 1) if literal(words[at]) == "-c"), None)
            self.run_python(code if code is not None else command.document or "")
        elif (action := self._actions.get(name)) is not None:
            action(words, command, before)

    def _run_in_subshell(self, script: str) -> None:
        before = self._state.save()
        self.run(script)
        self._state.restore(before)

    def _locate(self, word: Word, *, reports_unknown: bool = True) -> list[str]:
        """Names in the project. `reports_unknown`: the person is asked about what cannot be known beforehand."""
        found: list[str] = []
        for pattern in self._state.to_patterns(word):
            if pattern is not None:
                found += self._files.locate(pattern)
            elif reports_unknown:
                self._files.losses.unknown[render(word).replace(UNKNOWN, "…")] = None
        return found

    def _delete(self, word: Word, *, is_deep: bool) -> None:
        for name in self._locate(word):
            self._files.delete(name, is_deep=is_deep)

    def _overwrite(self, word: Word) -> None:
        for name in self._locate(word, reports_unknown=False):
            self._files.overwrite(name)

    # Commands that delete

    def _delete_operands(self, words: list[Word], *_: object) -> None:
        name = program_name(words)
        if name == "rm":
            options = parse_options(words)
            for word in dict.fromkeys(options.operands):
                self._delete(word, is_deep=options.has("rR", "--recursive"))
            return
        if name == "rsync":
            options = parse_options(words, ("-e", "-f", "--rsh", "--exclude", "--include", "--filter"))
            deletes = any(one.startswith("--del") for one in options.flags)
            if deletes and not options.has("n", "--dry-run") and len(options.operands) > 1:
                target = options.operands[-1]
                if ":" not in render(target):
                    self._delete(target, is_deep=True)
            return
        for word in parse_options(words, ("-s", "--size", "-n", "-r", "--reference")).operands:
            if name != "rmdir" or all(pattern is not None for pattern in self._state.to_patterns(word)):
                self._delete(word, is_deep=False)

    def _mv(self, words: list[Word], *_: object) -> None:
        options = parse_options(words, ("-S",))
        target = find_target_directory(words)
        sources = options.operands if target else options.operands[:-1]
        target = target or (options.operands[-1] if options.operands else ())
        places = self._state.to_patterns(target)
        is_leaving = bool(places) and all(one is not None and not self._files.is_inside(one) for one in places)
        for source in sources:
            if is_leaving:
                self._delete(source, is_deep=True)
                continue
            for name in self._locate(source, reports_unknown=False):
                self._files.move_away(name)

    def _cp(self, words: list[Word], *_: object) -> None:
        operands = parse_options(words, ("-S", "-m", "-o", "-g")).operands
        target = find_target_directory(words) or (operands[-1] if len(operands) > 1 else ())
        if literal(operands[0] if operands else ()) == "/dev/null" and program_name(words) != "ln":
            self._delete(target, is_deep=False)
        for name in self._locate(target, reports_unknown=False):
            inner = [name]
            if self._files.is_folder(name):
                inner = [f"{name}/{render(one).rpartition('/')[2]}" for one in operands[:-1]]
            for one in inner:
                self._files.overwrite(one)

    def _change_operands(self, words: list[Word], *_: object) -> None:
        """Matters only in a repository."""
        name = program_name(words)
        if name == "dd":
            for word in words[1:]:
                if word and word[0].kind == "text" and word[0].text.startswith("of="):
                    self._overwrite((Part("text", word[0].text[3:]), *word[1:]))
            return
        if name == "tee":
            for word in parse_options(words).operands:
                self._overwrite(word)
            return
        mode, *targets = [one for one in words[1:] if not (literal(one) or "").startswith("-R")] or [()]
        if not re.match(r"[ugoa]*\+", render(mode)):  # adding rights does no harm
            for word in targets:
                for name in self._locate(word, reports_unknown=False):
                    self._files.move_away(name)

    # Commands that run others

    def _run_script(self, words: list[Word], command: SimpleCommand, before: SimpleCommand | None) -> None:
        if program_name(words) == "eval":
            self.run(" ".join(map(_script, words[1:])))
            return
        if program_name(words) == "trap":  # what runs at the end is judged as if it ran now
            for word in parse_options(words).operands[:1]:
                self._run_in_subshell(render(word))
            return
        for at, word in enumerate(words[1:-1], 1):
            if re.fullmatch(r"-\w*c", literal(word) or ""):
                self._run_in_subshell(_script(words[at + 1]))
                return
        if command.document is not None:
            self._run_in_subshell(command.document)
        elif before is not None and (printed := self._find_printed_words(before)) is not None and len(words) == 1:
            self._run_in_subshell(" ".join(map(render, printed)))

    def _xargs(self, words: list[Word], command: SimpleCommand, before: SimpleCommand | None) -> None:
        known = {*self._actions, *_WRAPPERS}
        at = next((at for at in range(1, len(words)) if program_name(words[at:]) in known), None)
        if at is None:
            return
        inner = words[at:]
        found = None if before is None else self._state.expand(before.words)
        if before is not None and (printed := self._find_printed_words(before)) is not None:
            self._execute([*inner, *printed], command, None)
        elif found and program_name(found) == "find":
            self._search(found, inner)
        else:
            self._execute([*inner, (Part("unknown", f"(what {program_name(words)} is given)"),)], command, None)

    def _find_printed_words(self, command: SimpleCommand) -> list[Word] | None:
        words = self._state.expand(command.words)
        if program_name(words) not in ("echo", "printf"):
            return None
        texts = (text for word in words[1:] if not (text := render(word)).startswith("-"))
        return [(Part("text", piece),) for text in texts for piece in re.sub(r"\\n|%s", " ", text).split()]

    def _cd(self, words: list[Word], *_: object) -> None:
        operands = parse_options(words).operands
        before = self._state.places
        given = literal(operands[0]) if operands else None
        if program_name(words) == "popd" or given == "-":
            self._state.places = (self._place_before,)
        else:
            word = operands[0] if operands else (Part("text", self._state.home),)
            self._state.places = tuple(as_path(pattern) for pattern in self._state.to_patterns(word))
            is_sure, project = True, self._files.project
            for place in self._state.places:
                # a folder outside the project is assumed to exist
                is_inside = place is not None and f"{place}/".startswith(f"{project}/")
                if place is None or (is_inside and not self._files.is_folder(place[len(project) + 1 :].strip("/"))):
                    is_sure = False
            self._places_if_failed = () if is_sure else before
        self._place_before = before[0]

    def _assign(self, words: list[Word], *_: object) -> None:
        for word in words[1:]:
            if word and word[0].kind == "text" and (name := _ASSIGNMENT.match(word[0].text)):
                self._state.variables[name[1]] = ((Part("text", word[0].text[name.end() :]), *word[1:]),)

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
        """What `find` finds is deleted, or passed to the command `inner`. Unknown conditions are assumed to be met."""
        wrapped = inner or []
        while wrapped and program_name(wrapped) in _WRAPPERS:
            wrapped = wrapped[1:]
        if inner is not None and program_name(wrapped) not in ("rm", "unlink", "shred", "truncate", "mv"):
            filled = [(Part("unknown", "(what find finds)"),) if literal(word) == "{}" else word for word in inner]
            self._execute(filled, SimpleCommand(tuple(filled)), None)
            return
        is_deep = inner is not None and (
            program_name(wrapped) == "mv" or parse_options(wrapped).has("rR", "--recursive")
        )
        texts = [render(word) for word in words]
        first = next((at for at in range(1, len(texts)) if re.match(r"[-(!]", texts[at])), len(texts))
        tests = parse_find_tests(texts[first:])

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
            for start in self._locate(word):
                if not self._files.is_folder(start):
                    self._files.delete(start, is_deep=False)
                for name in self._files.search(start, is_wanted, tests.max_depth):
                    self._files.delete(name, is_deep=is_deep)

    # git

    def _git(self, words: list[Word], *_: object) -> None:  # noqa: C901, PLR0912  (a table)
        places, at = self._state.places, 1
        while at < len(words) and (option := literal(words[at]) or "-").startswith("-"):
            if option == "-C" and at + 1 < len(words):
                self._state.places = tuple(as_path(pattern) for pattern in self._state.to_patterns(words[at + 1]))
            at += 2 if option in ("-C", "-c", "--git-dir", "--work-tree", "--namespace") else 1
        here = self._locate((Part("text", "."),), reports_unknown=False)
        if not here and None not in self._state.places:  # elsewhere
            self._state.places = places
            return
        words, here = words[at:], here or [""]
        name = literal(words[0]) if words else None
        options = parse_options(words, ("-s", "--source", "-e", "--exclude", "-b", "-B", "-c", "-C", "--conflict"))
        operands, files = options.operands, self._files
        first = literal(operands[0]) if operands else None
        given = " ".join(("git", name or "", *options.flags[:2]))
        match name:
            case "clean" if options.has("f", "--force") and not options.has("n", "--dry-run"):
                for place in [one for word in operands for one in self._locate(word)] if operands else here:
                    files.clean(place, is_deep=options.has("d"), has_ignored=options.has("xX"))
            case "reset" if "--hard" in options.flags:
                files.discard(given, here, is_all=True)
            case "checkout" | "switch" if options.has("f", "--force", "--discard-changes"):
                files.discard(given, here, is_all=True)
            case "checkout":
                marks = [at for at, word in enumerate(words) if literal(word) == "--"]
                meant = words[marks[0] + 1 :] if marks else operands
                files.discard(given, [one for word in meant for one in self._locate(word) if files.is_there(one)])
            case "restore" if not options.has("S", "--staged") or options.has("W", "--worktree"):
                files.discard(given, [one for word in operands for one in self._locate(word)])
            case "rm" if "--cached" not in options.flags:
                for word in operands:
                    for one in self._locate(word):
                        files.delete(one, is_deep=options.has("r"), is_tracked=True)
            case "stash" if first in ("drop", "clear"):
                files.losses.other_reasons[f"`git stash {first}` deletes stashed changes"] = None
            case "branch" if options.has("D") or (options.has("d", "--delete") and options.has("f", "--force")):
                branches = ", ".join(render(word) for word in operands)[:100]
                files.losses.other_reasons[f"it deletes a branch, merged or not: {branches}"] = None
            case "update-ref" if options.has("d"):
                files.losses.other_reasons["`git update-ref -d` deletes a branch or tag"] = None
            case "reflog" if first in ("expire", "delete"):
                files.losses.other_reasons[f"`git reflog {first}` deletes what git would use to undo mistakes"] = None
            case "gc" if any(one in ("--prune=now", "--prune=all") for one in options.flags):
                files.losses.other_reasons["`git gc --prune` deletes commits and files that no branch has"] = None
            case "prune" if not options.has("n", "--dry-run"):
                files.losses.other_reasons["`git prune` deletes commits and files that no branch has"] = None
            case "filter-branch" | "filter-repo":
                files.losses.other_reasons[f"`git {name}` rewrites the history of the repository"] = None
            case "worktree" if first == "remove" and options.has("f", "--force"):
                files.losses.other_reasons["`git worktree remove --force` deletes a worktree with its changes"] = None
            case _:
                pass
        self._state.places = places


def _script(word: Word) -> str:
    """To be read as commands: what is unknown stays unknown, even inside quotes."""
    return "".join(part.text if part.kind in ("text", "glob") else UNKNOWN for part in word)
