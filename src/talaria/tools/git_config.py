"""Git's configuration: its files, read without running git, and which changes of settings are harmless.

A hostile repository can make git run programs, so the parser accepts whatever git accepts and never fails. What git
would refuse comes as an entry without a key.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

MAX_CONFIG_BYTES = 1 << 18
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


def judge_setting(key: str, value: str | None) -> str:
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


def parse_config(text: bytes) -> Iterator[tuple[str, str]]:
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
                section = _read_section(chars)
            else:
                name, value = _read_variable(char, chars)
                yield f"{section}{name}", value
        except _NotUnderstood as fault:
            yield NOT_UNDERSTOOD, ""
            if not fault.is_at_end_of_line:
                _skip_line(chars)


def is_harmless(text: bytes) -> bool:
    """Whether git does nothing but keep a repository with these settings: no program is run, nothing is read from
    elsewhere. What is unknown is not harmless."""
    if len(text) > MAX_CONFIG_BYTES or b"\0" in text:  # git reads a name only up to a NUL
        return False
    for key, value in parse_config(text):
        section, _, rest = key.partition(".")
        _, dot, name = rest.rpartition(".")
        values = _HARMLESS.get(f"{section}.*.{name}" if dot else key)
        if values is None or not values.fullmatch(value):
            return False
    return True


def has_new_address(before: bytes, after: bytes) -> bool:
    """Whether a remote, submodule or branch leads elsewhere than before. One that only got another name does not."""
    known, now = (
        {(key, value) for key, value in parse_config(text) if judge_setting(key, value) == "ask"}
        for text in (before, after)
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


def _read_section(chars: Iterator[str]) -> str:
    """After the opening bracket, up to the closing one: `core.` or `remote.origin.`."""
    name = ""
    for char in chars:
        if char == "]" and name:
            return f"{name.lower()}."
        if char in _SPACES and name:
            return f"{name.lower()}.{_read_subsection(char, chars)}."
        if char not in _NAME_CHARS and char != ".":
            raise _NotUnderstood(char)
        name += char
    raise _NotUnderstood(_END)


def _read_subsection(char: str, chars: Iterator[str]) -> str:
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


def _read_variable(char: str, chars: Iterator[str]) -> tuple[str, str]:
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
    return name.lower(), _read_value(chars)


def _read_value(chars: Iterator[str]) -> str:
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


GitConfig = Mapping[str, tuple[str, ...]]
"""By key, all values in order."""


class SettingChange(msgspec.Struct, frozen=True):
    """What a command has changed in the settings of a repository."""

    file: Path
    key: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    """Empty: it was removed."""


class AddressChange(msgspec.Struct, frozen=True):
    """Settings of one remote, submodule or branch that go together, with an address in them that is new."""

    file: Path
    changes: tuple[SettingChange, ...]

    @property
    def effect(self) -> str:
        """As an infinitive, for whoever decides."""
        folder = self.file.parent
        repository = folder.parent if folder.name == ".git" else folder
        found: list[str] = []
        for change in self.changes:
            section, name = change.key.partition(".")[0], change.key.rpartition(".")[2]
            whose, to = change.key[len(section) + 1 : -len(name) - 1], " and ".join(change.after)
            match section, name:
                case (("remote" | "submodule"), "url"):
                    found.append(f"set {section} {whose} of {repository} to {to}")
                case "remote", "pushurl":
                    found.append(f"push to {to} as remote {whose} of {repository}")
                case "branch", ("remote" | "pushremote"):
                    found.append(f"connect branch {whose} of {repository} to {to}")
                case _:
                    pass
        return " and ".join(found) or f"change settings in {self.file}"

    @property
    def text(self) -> str:
        """All of it."""
        lines = [f"in {self.file}"]
        for change in self.changes:
            lines += (f"- {change.key} = {value}" for value in change.before)
            lines += (f"+ {change.key} = {value}" for value in change.after)
        return "\n".join(lines)


def compare_settings(before: GitConfig, after: GitConfig, file: Path) -> list[SettingChange]:
    keys = dict.fromkeys((*before, *after))
    pairs = ((key, before.get(key, ()), after.get(key, ())) for key in keys)
    return [SettingChange(file, key, old, new) for key, old, new in pairs if old != new]


def judge_change(change: SettingChange) -> str:
    """As `judge`, of all its values. What is removed counts by its name alone."""
    verdicts = [judge_setting(change.key, value) for value in change.after or (None,)]
    refused = [one for one in verdicts if one not in ("save", "ask")]
    return refused[0] if refused else "ask" if "ask" in verdicts else "save"


def judge_all(changes: Sequence[SettingChange]) -> list[tuple[SettingChange, str]]:
    """What belongs to one remote, submodule or branch is asked about together with its address. A remote that only got
    another name is not asked about: its address was there before."""
    removed = {(_kind(change), change.before) for change in changes if not change.after}
    verdicts: list[tuple[SettingChange, str]] = []
    for change in changes:
        verdict = judge_change(change)
        is_renamed = not change.before and (_kind(change), change.after) in removed
        verdicts.append((change, "save" if verdict == "ask" and is_renamed else verdict))
    asked = {_owner(change) for change, verdict in verdicts if verdict == "ask"}
    return [
        (change, "ask" if verdict == "save" and _owner(change) in asked else verdict) for change, verdict in verdicts
    ]


def _kind(change: SettingChange) -> tuple[str, str]:
    """Whatever it belongs to is called."""
    return change.key.partition(".")[0], change.key.rpartition(".")[2]


def _owner(change: SettingChange) -> str:
    return change.key.rpartition(".")[0]


def group_by_owner(file: Path, asked: Sequence[SettingChange]) -> list[AddressChange]:
    groups: dict[str, list[SettingChange]] = {}
    for change in asked:
        groups.setdefault(_owner(change), []).append(change)
    return [AddressChange(file, tuple(changes)) for changes in groups.values()]
