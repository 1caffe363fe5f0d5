"""Splits a command line of bash into its simple commands, in order, without running anything.

It knows quotes, expansions, globs, braces, redirects, here-documents, substitutions, subshells and loops well enough to
find what ordinary commands would touch. It is not a shell: variables and substitutions are left unexpanded.
"""

import re
from typing import Literal, NamedTuple

import msgspec

MAX_DEPTH = 30
"""Of nested substitutions and subshells."""
MAX_WORDS = 2_000
"""That the braces of one word may expand to."""
MAX_BRACES = 60
"""Braces and commas in one word."""

_PLAIN = re.compile(r"[\w./:@%+=^-]+")
_BLANKS = re.compile(r"(?:[ \t\r]|\\\n)+")
_NAME = re.compile(r"\$(?:([A-Za-z_]\w*|[0-9@*#?$!-])|\{([A-Za-z_]\w*)(?::?\?[^{}]*)?\})")
_BRACKET = re.compile(r"\[[!^]?\]?[^\]\s'\"$`\\/;&|<>()]*\]")
_REDIRECT = re.compile(r"(?:\d+|\{\w+\})?(<<<|<<-|<<|<>|<&|>&|>>|>\||<|>)|(&>>|&>)")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^]]*\])?\+?=")
_RANGE = re.compile(r"(-?\d{1,9})\.\.(-?\d{1,9})|([A-Za-z])\.\.([A-Za-z])")
_MAY_REDIRECT = frozenset("<>&{0123456789")
_ENDS = frozenset(" \t\r\n;&|<>()")
_PREFIXES = frozenset({"if", "then", "else", "elif", "fi", "do", "done", "while", "until", "!", "{", "}", "esac"})
"""Keywords of the shell next to which a command begins."""
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}

Operator = Literal["", ";", "&&", "||", "|", "&"]


class Part(NamedTuple):
    kind: Literal["text", "glob", "variable", "unquoted", "unknown", "brace"]
    """`unquoted`: a variable outside quotes. `unknown`: a substitution. `brace`: only while a word is read."""
    text: str


Word = tuple[Part, ...]


class Redirect(NamedTuple):
    operator: str
    target: Word


class SimpleCommand(msgspec.Struct, frozen=True):
    words: tuple[Word, ...]
    assignments: tuple[tuple[str, Word], ...] = ()
    redirects: tuple[Redirect, ...] = ()
    document: str | None = None
    """What it reads from a here-document or here-string."""
    after: Operator = ""
    """The operator between it and the command before it."""


class Loop(NamedTuple):
    """`for variable in words`."""

    variable: str
    words: tuple[Word, ...]


class EnterSubshell(NamedTuple):
    """A subshell or substitution begins: its changes to the shell's state are lost when it ends."""


class LeaveSubshell(NamedTuple):
    pass


Step = SimpleCommand | Loop | EnterSubshell | LeaveSubshell


class TooDeep(ValueError):
    """Nested more deeply than anybody writes by hand."""


def parse(command: str) -> list[Step]:
    """Raises `TooDeep`; any other text is parsed somehow."""
    return _Parser(command, 0).parse()


def render(word: Word) -> str:
    """Roughly as it was written, without quotes."""
    names = {"variable": "${%s}", "unquoted": "${%s}"}
    return "".join(names.get(part.kind, "%s") % part.text for part in word)


def literal(word: Word) -> str | None:
    """The text of a word; None: it depends on variables, files or the like."""
    return "".join(part.text for part in word) if all(part.kind == "text" for part in word) else None


class _Here(NamedTuple):
    """A here-document whose text has not been read yet."""

    step: int
    end: str
    has_tabs: bool


class _Parser:
    def __init__(self, text: str, depth: int) -> None:
        self._text = text
        self._at = 0
        self._depth = depth
        self._steps: list[Step] = []
        self._here: list[_Here] = []
        """Announced on the current line."""

    def parse(self) -> list[Step]:
        while self._at < len(self._text):
            self._read_commands()
            self._at += 1  # a closing parenthesis without an opening one
        return self._steps

    def _read_commands(self) -> None:  # noqa: C901, PLR0912, PLR0915  (a table of what may come next)
        """Reads up to a closing parenthesis, or to the end."""
        if self._depth > MAX_DEPTH:
            raise TooDeep("commands are nested too deeply")
        text, after = self._text, ""
        words: list[Word] = []
        assignments: list[tuple[str, Word]] = []
        redirects: list[Redirect] = []
        documents: list[tuple[str, bool] | str] = []

        def finish(operator: Operator) -> None:
            nonlocal after
            if words or assignments or redirects:
                self._add(words, assignments, redirects, documents, after)
            for one in (words, assignments, redirects, documents):
                one.clear()
            after = operator

        while self._at < len(text):
            if blank := _BLANKS.match(text, self._at):
                self._at = blank.end()
                continue
            char, pair = text[self._at], text[self._at : self._at + 2]
            if char == "#":
                self._at = _find(text, "\n", self._at)
            elif char == "\n":
                self._at += 1
                finish(";")
                self._read_documents()
            elif char in _MAY_REDIRECT and (redirect := _REDIRECT.match(text, self._at)):
                if pair in ("<(", ">("):
                    words.append(self._read_word())
                    continue
                operator = redirect[1] or redirect[2]
                blank = _BLANKS.match(text, redirect.end())
                start = self._at = blank.end() if blank else redirect.end()
                has_word = start < len(text) and text[start] not in "\n;&|)<>"
                target = self._read_word() if has_word else ()
                if operator in ("<<", "<<-"):
                    documents.append((re.sub(r"""["'\\]""", "", text[start : self._at]), operator == "<<-"))
                elif operator == "<<<":
                    documents.append(render(target))
                else:
                    redirects.append(Redirect(operator, target))
            elif pair in ("&&", "||"):
                self._at += 2
                finish(pair)
            elif char == "|":
                self._at += 2 if pair == "|&" else 1
                finish("|")
            elif char in ";&":
                self._at += 1
                finish(";" if char == ";" else "&")
            elif char == ")":
                break
            elif char == "(":
                self._at += 1
                if words and text[self._at : self._at + 1] == ")":  # a function begins
                    self._at += 1
                    words.clear()
                elif not words:
                    finish(after)
                    self._read_subshell()
            else:
                word = self._read_word()
                first = word[0].text if word and word[0].kind == "text" else ""
                if not words and (name := _ASSIGNMENT.match(first)):
                    if text[self._at : self._at + 1] == "(":
                        self._at += 1
                        self._read_subshell()  # the words of an array: only what they run matters
                        word = (Part("text", name[0]), Part("unknown", "(…)"))
                    value = (Part("text", word[0].text[name.end() :]), *word[1:])
                    assignments.append((name[1], tuple(part for part in value if part.text)))
                elif words or render(word) not in _PREFIXES:
                    words += _without_braces(word)
        finish("")

    def _add(
        self,
        words: list[Word],
        assignments: list[tuple[str, Word]],
        redirects: list[Redirect],
        documents: list[tuple[str, bool] | str],
        after: str,
    ) -> None:
        names = [literal(word) for word in words[:3]]
        if names[:1] == ["function"]:
            return
        if names[:1] in (["for"], ["select"]) and len(names) > 1:
            given = tuple(words[3:]) if names[2:] == ["in"] else ((Part("variable", "@"),),)
            self._steps.append(Loop(names[1] or "", given))
            return
        text = next((one for one in documents if isinstance(one, str)), None)
        for one in documents:
            if isinstance(one, tuple):
                self._here.append(_Here(len(self._steps), *one))
        made = SimpleCommand(tuple(words), tuple(assignments), tuple(redirects), text)
        self._steps.append(msgspec.structs.replace(made, after=after))

    def _read_subshell(self) -> None:
        self._steps.append(EnterSubshell())
        self._depth += 1
        self._read_commands()
        self._depth -= 1
        self._steps.append(LeaveSubshell())
        self._at += 1

    def _read_documents(self) -> None:
        for here in self._here:
            lines: list[str] = []
            while self._at < len(self._text):
                end = _find(self._text, "\n", self._at)
                line = self._text[self._at : end]
                self._at = end + 1
                line = line.lstrip("\t") if here.has_tabs else line
                if line == here.end:
                    break
                lines.append(line)
            step = self._steps[here.step]
            if isinstance(step, SimpleCommand):
                self._steps[here.step] = msgspec.structs.replace(step, document="\n".join(lines))
        self._here.clear()

    def _read_word(self) -> Word:
        text, parts, start = self._text, list[Part](), self._at
        while self._at < len(text):
            if plain := _PLAIN.match(text, self._at):
                parts.append(Part("text", plain[0]))
                self._at = plain.end()
                continue
            char, pair = text[self._at], text[self._at : self._at + 2]
            if pair in ("<(", ">("):
                self._at += 2
                self._read_subshell()
                parts.append(Part("unknown", "<(…)"))
            elif char in _ENDS:
                break
            elif char == "\\":
                if pair != "\\\n":
                    parts.append(Part("text", pair[1:] or "\\"))
                self._at += 2
            elif char == "'":
                end = _find(text, "'", self._at + 1)
                parts.append(Part("text", text[self._at + 1 : end]))
                self._at = end + 1
            elif char == '"':
                self._at += 1
                self._read_quoted(parts)
            elif pair == "$'":
                self._at += 2
                parts.append(Part("text", self._read_ansi()))
            elif char in "$`":
                parts.append(self._read_expansion(is_quoted=False))
            elif char in "*?":
                parts.append(Part("glob", char))
                self._at += 1
            elif char == "[" and (bracket := _BRACKET.match(text, self._at)):
                parts.append(Part("glob", bracket[0]))
                self._at = bracket.end()
            elif char in "{,}":
                parts.append(Part("brace", char))
                self._at += 1
            elif char == "~" and self._at == start:
                is_own = text[self._at + 1 : self._at + 2] in ("", "/", *_ENDS)
                parts.append(Part("variable", "HOME") if is_own else Part("unknown", "~"))
                self._at += 1
            else:
                parts.append(Part("text", char))
                self._at += 1
        return _merge_text(parts)

    def _read_quoted(self, parts: list[Part]) -> None:
        """Reads up to and including the closing quote."""
        text, plain = self._text, re.compile(r'[^"\\$`]+')
        parts.append(Part("text", ""))
        while self._at < len(text):
            char = text[self._at]
            if run := plain.match(text, self._at):
                parts.append(Part("text", run[0]))
                self._at = run.end()
            elif char == '"':
                self._at += 1
                return
            elif char == "\\":
                following = text[self._at + 1 : self._at + 2]
                kept = (
                    following if following in ("$", "`", '"', "\\") else "" if following == "\n" else char + following
                )
                parts.append(Part("text", kept))
                self._at += 2
            else:
                parts.append(self._read_expansion(is_quoted=True))

    def _read_expansion(self, *, is_quoted: bool) -> Part:
        text = self._text
        if text[self._at] == "`":
            end = self._at + 1
            while end < len(text) and text[end] != "`":
                end += 2 if text[end] == "\\" else 1
            inner = _Parser(re.sub(r"\\([`$\\])", r"\1", text[self._at + 1 : end]), self._depth + 1)
            self._at = end + 1
            self._steps += (EnterSubshell(), *inner.parse(), LeaveSubshell())
            return Part("unknown", "$(…)")
        if name := _NAME.match(text, self._at):
            self._at = name.end()
            return Part("variable" if is_quoted else "unquoted", name[1] or name[2])
        if text.startswith("$((", self._at):
            end = text.find("))", self._at)
            if end > 0:
                self._at = end + 2
                return Part("unknown", "$((…))")
        if text.startswith("$(", self._at):
            self._at += 2
            first = len(self._steps)
            self._read_subshell()
            # a few commands have a known output
            commands = [step for step in self._steps[first:] if isinstance(step, SimpleCommand)]
            words = [literal(word) for word in commands[0].words] if len(commands) == 1 else []
            if words == ["pwd"]:
                return Part("variable", "PWD")
            is_default = "-t" in words or all((word or "").startswith("-d") for word in words[1:])
            return Part("unknown", "$(mktemp)" if words[:1] == ["mktemp"] and is_default else "$(…)")
        if text.startswith("${", self._at):
            start, depth = self._at, 1
            self._at += 2
            while self._at < len(text) and depth > 0:
                depth += {"{": 1, "}": -1}.get(text[self._at], 0)
                self._at += 1
            return Part("unknown", text[start : self._at])
        self._at += 1
        return Part("text", "$")

    def _read_ansi(self) -> str:
        read: list[str] = []
        text = self._text
        while self._at < len(text) and text[self._at] != "'":
            if text[self._at] == "\\":
                char = text[self._at + 1 : self._at + 2]
                read.append(_ESCAPES.get(char, char))
                self._at += 2
            else:
                read.append(text[self._at])
                self._at += 1
        self._at += 1
        return "".join(read)


def _find(text: str, what: str, start: int) -> int:
    """The position of `what`, or the end."""
    found = text.find(what, start)
    return len(text) if found < 0 else found


def _merge_text(parts: list[Part]) -> Word:
    """Joins neighbouring text. An empty word, in quotes, keeps one part."""
    if len(parts) == 1:
        return (parts[0],)
    merged: list[Part] = []
    pieces: list[str] = []
    for part in parts:
        if part.kind == "text":
            pieces.append(part.text)
            continue
        if any(pieces):
            merged.append(Part("text", "".join(pieces)))
        pieces = []
        merged.append(part)
    if any(pieces) or not merged:
        merged.append(Part("text", "".join(pieces)))
    return tuple(merged)


def _without_braces(word: Word) -> list[Word]:
    """What `a{b,c}` and `{1..3}` expand to."""
    braces = sum(part.kind == "brace" for part in word)
    if braces == 0:
        return [word]
    if braces > MAX_BRACES:
        return [(Part("unknown", "{…}"),)]
    done: list[Word] = []
    waiting = [word]
    while waiting and len(done) + len(waiting) <= MAX_WORDS:
        one = waiting.pop()
        found = _find_braces(one)
        if found is None:
            done.append(one)
            continue
        start, end, choices = found
        waiting += [(*one[:start], *choice, *one[end:]) for choice in reversed(choices)]
    return [
        _merge_text([(Part("text", part.text) if part.kind == "brace" else part) for part in one])
        for one in (done + waiting)[:MAX_WORDS]
    ]


def _find_braces(word: Word) -> tuple[int, int, list[Word]] | None:
    """The first, innermost pair with a comma or a range in it."""
    opened: list[int] = []
    for at, part in enumerate(word):
        if part == ("brace", "{"):
            opened.append(at)
        elif part == ("brace", "}") and opened:
            start = opened.pop()
            inside = word[start + 1 : at]
            commas = [place for place, one in enumerate(inside) if one == ("brace", ",")]
            if commas:
                edges = zip((-1, *commas), (*commas, len(inside)), strict=True)
                return start, at + 1, [inside[low + 1 : high] for low, high in edges]
            given = _RANGE.fullmatch(inside[0].text) if len(inside) == 1 and inside[0].kind == "text" else None
            if given and given[1] is not None:
                low, high = sorted((int(given[1]), int(given[2])))
                numbers = range(low, min(high, low + MAX_WORDS) + 1)
                return start, at + 1, [(Part("text", str(number)),) for number in numbers]
            if given:
                low, high = sorted((ord(given[3]), ord(given[4])))
                return start, at + 1, [(Part("text", chr(code)),) for code in range(low, high + 1)]
    return None
