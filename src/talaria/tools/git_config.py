"""Git's configuration: parses its files without running git, and judges which changes of settings are harmless.

A hostile repository can make git run programs, so the parser accepts whatever git accepts and never fails. What git
would refuse becomes an entry without a key.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

MAX_CONFIG_BYTES = 1 << 18
"""Of one file. A larger file was not written by git or by hand."""

NOT_UNDERSTOOD = ""
"""The key of what is not an entry. Git stops there; we continue on the next line."""

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
            *("core.safecrlf", "user.name", "user.email", "user.useconfigonly", "init.defaultbranch", "pull.rebase"),
            *("pull.ff", "push.default", "rerere.enabled", "rerere.autoupdate", "gc.auto", "submodule.active"),
            *("remote.*.fetch", "remote.*.tagopt", "remote.*.prune", "submodule.*.active", "submodule.*.branch"),
            *("branch.*.merge", "branch.*.rebase", "branch.*.description", "branch.*.vscode-merge-base"),
            *("branch.*.gh-merge-base", "extensions.worktreeconfig", "branch.autosetupmerge", "branch.autosetuprebase"),
            *("core.abbrev", "core.quotepath", "core.whitespace", "core.commentchar", "core.sparsecheckout"),
            *("core.sparsecheckoutcone", "fetch.prune", "push.autosetupremote", "push.followtags", "rebase.autosquash"),
            *("rebase.autostash", "merge.conflictstyle", "merge.ff", "diff.algorithm", "diff.renames"),
            *("diff.mnemonicprefix", "diff.colormoved", "color.ui", "log.date", "commit.verbose"),
            "status.showuntrackedfiles",
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
"""Keys that can neither run a program nor make git read settings, hooks or a repository from elsewhere, with their
harmless values. Left out on purpose: `branch.*.mergeoptions` and `pull.twohead` choose programs, `init.templatedir`
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
    """What to do with a setting that a command has made in a repository, or removed (None): "save", "ask", or why it is
    not saved."""
    section, _, rest = key.partition(".")
    _, dot, name = rest.rpartition(".")
    kind = f"{section}.*.{name}" if dot else key
    values = _HARMLESS.get(kind)
    if kind == "core.filemode":  # `git init` in a sandbox believes it is false, because it looks at a link
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
    """All keys and values, in order. Names of sections and variables are in lower case, those of subsections as
    written: `core.hookspath`, `remote.Upstream.url`. A variable without a value is "true", as in git.

    Bytes that are not UTF-8 become surrogates, so that `os.fsencode` restores them.
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
    """Whether these settings neither make git run a program nor read anything from elsewhere. What is unknown is not
    harmless."""
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
    """Whether a remote, submodule or branch has a new address. One that was only renamed has not."""
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
    """Reads from after the opening bracket to the closing one: `core.` or `remote.origin.`."""
    section, subsection, char = "", "", next(chars, _END)
    while char in _NAME_CHARS or char == ".":
        section += char
        char = next(chars, _END)
    if char == "]" and section:
        return f"{section.lower()}."
    if char not in _SPACES or not section:
        raise _NotUnderstood(char)
    while char in _SPACES and char != _END:
        char = next(chars)
    if char != '"':
        raise _NotUnderstood(char)
    for char in chars:
        if char == '"':
            closing = next(chars)
            if closing != "]":
                raise _NotUnderstood(closing)
            return f"{section.lower()}.{subsection}."
        if char == "\\":
            char = next(chars, _END)  # noqa: PLW2901
        if char == _END:
            break
        subsection += char
    raise _NotUnderstood(_END)


def _read_variable(char: str, chars: Iterator[str]) -> tuple[str, str]:
    """Spaces around the value and a comment after it do not count, unless they are in quotes."""
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
    value, spaces, is_quoted = "", "", False
    for char in chars:
        if char == _END:
            if is_quoted:
                break
            return name.lower(), value
        if char in _SPACES and not is_quoted:
            spaces += char if value else ""
            continue
        if char in "#;" and not is_quoted:
            _skip_line(chars)
            return name.lower(), value
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
"""All values of each key, in order."""


class SettingChange(msgspec.Struct, frozen=True):
    """A setting of a repository that a command has changed."""

    file: Path
    key: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    """Empty: it was removed."""


class AddressChange(msgspec.Struct, frozen=True):
    """Settings of one remote, submodule or branch that belong together and contain a new address."""

    file: Path
    changes: tuple[SettingChange, ...]

    @property
    def effect(self) -> str:
        """As an infinitive, for the person who decides."""
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
    """As `judge_setting`, for all its values. If it was removed, only its name counts."""
    verdicts = [judge_setting(change.key, value) for value in change.after or (None,)]
    refused = [one for one in verdicts if one not in ("save", "ask")]
    return refused[0] if refused else "ask" if "ask" in verdicts else "save"


def judge_all(changes: Sequence[SettingChange]) -> list[tuple[SettingChange, str]]:
    """Settings of one remote, submodule or branch are asked about together with its address. A remote that was only
    renamed is not asked about: its address is not new."""
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
    """The setting, whatever the remote, submodule or branch is called."""
    return change.key.partition(".")[0], change.key.rpartition(".")[2]


def _owner(change: SettingChange) -> str:
    return change.key.rpartition(".")[0]


def group_by_owner(file: Path, asked: Sequence[SettingChange]) -> list[AddressChange]:
    groups: dict[str, list[SettingChange]] = {}
    for change in asked:
        groups.setdefault(_owner(change), []).append(change)
    return [AddressChange(file, tuple(changes)) for changes in groups.values()]
