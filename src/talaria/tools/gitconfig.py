"""Git's configuration files, read without running git: a hostile repository can make git run programs.

The parser accepts whatever git accepts and never fails. What git would refuse comes as an entry without a key.
"""

import re
from collections.abc import Iterator

MAX_BYTES = 1 << 18
"""Of one file. A larger one was not written by git or by hand."""

NOT_UNDERSTOOD = ""
"""The key of what is not an entry. Git stops there; we go on in the next line."""

_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")
_SPACES = frozenset(" \t\r\n")
_ESCAPES = {"t": "\t", "b": "\b", "n": "\n", "\\": "\\", '"': '"', "\n": ""}
_END = "\n"

_ANY = re.compile(r".*", re.DOTALL)
_ADDRESS = re.compile(r"(?!-|[A-Za-z0-9+.-]*::|[A-Za-z0-9+.-]*://-).*", re.DOTALL)
"""Not an option of ssh, nor `helper::address`, which runs `git-remote-helper`."""
_HARMLESS = {
    **dict.fromkeys(
        (
            *("core.repositoryformatversion", "core.filemode", "core.bare", "core.logallrefupdates"),
            *("core.ignorecase", "core.precomposeunicode", "core.symlinks", "core.autocrlf", "core.eol"),
            *(
                "core.safecrlf",
                "user.name",
                "user.email",
                "user.useconfigonly",
                "init.defaultbranch",
                "pull.rebase",
                "pull.ff",
            ),
            *("push.default", "rerere.enabled", "rerere.autoupdate", "gc.auto", "submodule.active"),
            *("remote.*.fetch", "remote.*.tagopt", "remote.*.prune", "submodule.*.active", "submodule.*.branch"),
            *("branch.*.merge", "branch.*.rebase", "branch.*.description", "branch.*.vscode-merge-base"),
            *("branch.*.gh-merge-base", "extensions.worktreeconfig", "branch.autosetupmerge", "branch.autosetuprebase"),
            *("core.abbrev", "core.quotepath", "core.whitespace", "core.commentchar", "core.sparsecheckout"),
            *("core.sparsecheckoutcone", "fetch.prune", "push.autosetupremote", "push.followtags", "rebase.autosquash"),
            *(
                "rebase.autostash",
                "merge.conflictstyle",
                "merge.ff",
                "diff.algorithm",
                "diff.renames",
                "diff.mnemonicprefix",
            ),
            *("diff.colormoved", "color.ui", "log.date", "commit.verbose", "status.showuntrackedfiles"),
        ),
        _ANY,
    ),
    **dict.fromkeys(
        ("remote.*.url", "remote.*.pushurl", "branch.*.remote", "branch.*.pushremote", "submodule.*.url"), _ADDRESS
    ),
    "submodule.*.update": re.compile("checkout|merge|rebase|none"),
    "extensions.objectformat": re.compile("sha1|sha256"),
    "extensions.refstorage": re.compile("files|reftable"),
}
"""Keys that can neither run a program nor make git read settings, hooks or a repository from elsewhere, with the values
that are harmless. Left out on purpose: `branch.*.mergeoptions` and `pull.twohead` choose programs, `init.templatedir`
brings hooks, `user.signingkey` may name a file that commands write, and with `extensions.partialclone` git contacts the
remote whenever an object is missing."""


_REMOTE = re.compile(r"\.|(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9_./-]*")
"""The name of a remote: neither an address nor a path that leads elsewhere."""
_ASKED = ("remote.*.url", "remote.*.pushurl", "submodule.*.url")
_NAMES_A_REMOTE = ("branch.*.remote", "branch.*.pushremote")
_REASONS = (
    (re.compile(r"include(if)?\..*", re.DOTALL), "it makes git read settings from elsewhere"),
    (re.compile(r"(url|http|remote|protocol)\..*|core\.gitproxy", re.DOTALL), "it changes how git connects"),
    (
        re.compile(
            r"(alias|filter|diff|difftool|merge|mergetool|credential|gpg|pager|sequence|sendemail|trailer|browser|man|"
            r"interactive|uploadpack|receive|hook|submodule|core|commit|tag|init|web|guitool|gui|instaweb)\..*",
            re.DOTALL,
        ),
        "it can run a program",
    ),
)


def judge(key: str, value: str | None) -> str:
    """What becomes of a setting that a command has made in a repository, or removed (None): "save", "ask", or why it is
    not saved."""
    section, _, rest = key.partition(".")
    _, dot, name = rest.rpartition(".")
    kind = f"{section}.*.{name}" if dot else key
    values = _HARMLESS.get(kind)
    if kind == "core.filemode":  # `git init` in a sandbox takes it for false, because it looks at a link
        return "it depends on the file system"
    if kind.startswith("extensions.") or kind == "core.repositoryformatversion":
        return "it changes how the repository is stored"
    is_known = values is not None and (value is None or values.fullmatch(value) is not None)
    if not is_known or not (value or "").replace("\n", "").replace("\t", "").isprintable():
        return next((why for keys, why in _REASONS if keys.fullmatch(key)), "it is not known to be harmless")
    if value is None:
        return "save"
    if kind in _ASKED or (kind in _NAMES_A_REMOTE and not _REMOTE.fullmatch(value)):
        return "ask"
    return "save"


def entries(text: bytes) -> Iterator[tuple[str, str]]:
    """All keys and values, in order. Names of sections and of variables are in lower case, those of subsections are as
    written: `core.hookspath`, `remote.Upstream.url`. A variable without a value is "true", as git reads it.

    Bytes that are not UTF-8 come as surrogates, so that `os.fsencode` gives them back.
    """
    text = text.removeprefix(b"\xef\xbb\xbf")
    chars = iter((text.decode("utf-8", "surrogateescape") + _END * 2).replace("\r\n", _END))
    section = ""
    for char in chars:
        try:
            if char in _SPACES:
                continue
            if char in "#;":
                _skip_line(chars)
            elif char == "[":
                section = _section(chars)
            else:
                name, value = _variable(char, chars)
                yield f"{section}{name}", value
        except _NotUnderstood as fault:
            yield NOT_UNDERSTOOD, ""
            if not fault.is_at_end_of_line:
                _skip_line(chars)


def is_harmless(text: bytes) -> bool:
    """Whether git does nothing but keep a repository with these settings: no program is run, nothing is read from
    elsewhere. What is unknown is not harmless."""
    if len(text) > MAX_BYTES or b"\0" in text:  # git reads a name only up to a NUL
        return False
    for key, value in entries(text):
        section, _, rest = key.partition(".")
        _, dot, name = rest.rpartition(".")
        values = _HARMLESS.get(f"{section}.*.{name}" if dot else key)
        if values is None or not values.fullmatch(value):
            return False
    return True


def has_new_address(before: bytes, after: bytes) -> bool:
    """Whether a remote, submodule or branch leads elsewhere than before. One that only got another name does not."""
    known, now = (
        {(key, value) for key, value in entries(text) if judge(key, value) == "ask"} for text in (before, after)
    )
    gone = {value for _, value in known - now}
    return any(value not in gone for _, value in now - known)


class _NotUnderstood(Exception):
    def __init__(self, char: str) -> None:
        self.is_at_end_of_line = char == _END


def _skip_line(chars: Iterator[str]) -> None:
    for char in chars:
        if char == _END:
            return


def _section(chars: Iterator[str]) -> str:
    """After the opening bracket, up to the closing one: `core.` or `remote.origin.`."""
    name = ""
    for char in chars:
        if char == "]" and name:
            return f"{name.lower()}."
        if char in _SPACES and name:
            return f"{name.lower()}.{_subsection(char, chars)}."
        if char not in _NAME_CHARS and char != ".":
            raise _NotUnderstood(char)
        name += char
    raise _NotUnderstood(_END)


def _subsection(char: str, chars: Iterator[str]) -> str:
    """From the space before its opening quote to the bracket after the closing one."""
    while char in _SPACES and char != _END:
        char = next(chars)
    if char != '"':
        raise _NotUnderstood(char)
    name = ""
    for char in chars:
        if char == '"':
            closing = next(chars)
            if closing != "]":
                raise _NotUnderstood(closing)
            return name
        if char == "\\":
            char = next(chars, _END)  # noqa: PLW2901
        if char == _END:
            break
        name += char
    raise _NotUnderstood(_END)


def _variable(char: str, chars: Iterator[str]) -> tuple[str, str]:
    if char not in _NAME_CHARS or not char.isalpha():
        raise _NotUnderstood(char)
    name = ""
    while char in _NAME_CHARS:
        name += char
        char = next(chars)
    while char in " \t":
        char = next(chars)
    if char == _END:
        return name.lower(), "true"
    if char != "=":
        raise _NotUnderstood(char)
    return name.lower(), _value(chars)


def _value(chars: Iterator[str]) -> str:
    """Spaces around it and a comment after it do not count, unless they are in quotes."""
    value, spaces, is_quoted = "", "", False
    for char in chars:
        if char == _END and not is_quoted:
            return value
        if char == _END:
            break
        if char in _SPACES and not is_quoted:
            spaces += char if value else ""
            continue
        if char in "#;" and not is_quoted:
            _skip_line(chars)
            return value
        value, spaces = value + spaces, ""
        if char == '"':
            is_quoted = not is_quoted
        elif char == "\\":
            escaped = next(chars, "")
            if escaped not in _ESCAPES:
                raise _NotUnderstood(escaped)
            value += _ESCAPES[escaped]
        else:
            value += char
    raise _NotUnderstood(_END)
