"""Git's configuration files, read without running git: a hostile repository can make git run programs.

The parser accepts whatever git accepts and never fails. What git would refuse comes as an entry without a key.

Git's index: which files git tracks, and what they held when git last saw them.

Read without running git, which in a hostile repository would run what its settings name. Versions 2 to 4, with SHA-1 or
SHA-256. A split or damaged index, or one that is too large, is not read: then no file counts as tracked.
"""

import hashlib
import os
import re
import stat
import struct
from collections.abc import Iterator, Mapping

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
    if len(text) > MAX_CONFIG_BYTES or b"\0" in text:  # git reads a name only up to a NUL
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


MAX_INDEX_BYTES = 48 << 20
"""About 400,000 files."""
_HEADER = struct.Struct(">4sII")
_STATS = struct.Struct(">10I")
_FLAGS = struct.Struct(">H")
_CHECKSUMS = ((20, "sha1"), (32, "sha256"))
_EXTENDED = 0x4000
_INTENT_TO_ADD = 0x2000
_STAGES = 0x3000


class IndexEntry(msgspec.Struct, frozen=True, gc=False):
    mode: int
    size: int
    """The lowest 32 bits of it."""
    mtime: tuple[int, int]
    """Seconds and nanoseconds, when git looked last."""
    digest: bytes
    """Of its content as a blob; empty: git has no content that could be checked out."""

    def matches_times(self, found: os.stat_result, written_at_ns: int) -> bool:
        """Whether it looks untouched since git saw it. `written_at_ns`: when the index was written; what was changed
        at the very same time may have been changed after it."""
        seconds, nanoseconds = divmod(found.st_mtime_ns, 1_000_000_000)
        is_same_time = self.mtime[0] == seconds & 0xFFFFFFFF and self.mtime[1] in (0, nanoseconds)
        is_same_kind = stat.S_IFMT(found.st_mode) == stat.S_IFMT(self.mode)
        is_older = found.st_mtime_ns < written_at_ns
        return is_same_kind and is_same_time and is_older and found.st_size & 0xFFFFFFFF == self.size

    def matches_content(self, content: bytes) -> bool:
        """Files that git changes on checkout (line ends, filters) do not match."""
        algorithm = hashlib.sha1 if len(self.digest) == 20 else hashlib.sha256
        return bool(self.digest) and algorithm(b"blob %d\0" % len(content) + content).digest() == self.digest


class GitIndex(msgspec.Struct, frozen=True):
    entries: Mapping[str, IndexEntry]
    """By their names below the work tree. Bytes that are not UTF-8 are surrogates."""
    has_staged_changes: bool
    """Something was added since the last commit or checkout, as far as the index tells."""


def read_index(content: bytes) -> GitIndex | None:
    """None: it cannot be read."""
    try:
        return _read(content)
    except (ValueError, struct.error, IndexError):
        return None


def _read(content: bytes) -> GitIndex:
    size, body = _checked(content)
    signature, version, count = _HEADER.unpack_from(body)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("not an index")
    entries: dict[str, IndexEntry] = {}
    position, name = _HEADER.size, b""
    for _ in range(count):
        start = position
        _, _, seconds, nanoseconds, _, _, mode, _, _, length = _STATS.unpack_from(body, position)
        position += _STATS.size
        digest = body[position : position + size]
        (flags,) = _FLAGS.unpack_from(body, position + size)
        position += size + _FLAGS.size
        extended = 0
        if flags & _EXTENDED:
            (extended,) = _FLAGS.unpack_from(body, position)
            position += _FLAGS.size
        if version == 4:
            dropped, position = _number(body, position)
            end = body.index(b"\0", position)
            if dropped > len(name):
                raise ValueError("a name that is too short")
            name = name[: len(name) - dropped] + body[position:end]
            position = end + 1
        else:
            end = body.index(b"\0", position)
            name = body[position:end]
            position = start + ((end - start) // 8 + 1) * 8
        if flags & _STAGES or extended & _INTENT_TO_ADD:  # a conflict, or only announced: nothing to check out
            digest = b""
        entries[name.decode("utf-8", "surrogateescape")] = IndexEntry(mode, length, (seconds, nanoseconds), digest)
    return GitIndex(entries, _has_staged_changes(body, position))


def _checked(content: bytes) -> tuple[int, bytes]:
    """How long digests are here, and all but the checksum at the end. With `index.skipHash` that is zeros."""
    for size, name in _CHECKSUMS:
        if hashlib.new(name, content[:-size]).digest() == content[-size:]:
            return size, content[:-size]
    if content[-20:] == bytes(20):
        return 20, content[:-20]
    raise ValueError("damaged")


def _number(body: bytes, position: int) -> tuple[int, int]:
    """As in packs: seven bits at a time, the highest first."""
    byte = body[position]
    value = byte & 0x7F
    while byte & 0x80:
        position += 1
        byte = body[position]
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, position + 1


def _has_staged_changes(body: bytes, position: int) -> bool:
    """Git keeps the tree that the index was committed as or checked out from, and forgets it when a file is added."""
    while position + 8 <= len(body):
        name = body[position : position + 4]
        (length,) = struct.unpack_from(">I", body, position + 4)
        inner = body[position + 8 : position + 8 + length]
        position += 8 + length
        if name == b"TREE":
            return inner[1:].startswith(b"-1")  # the root's own name is empty: a NUL, then how many entries it has
        if name == b"link":
            raise ValueError("split: most entries are in another file")
    return True
