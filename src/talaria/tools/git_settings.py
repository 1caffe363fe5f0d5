"""Git's settings in the sandbox of a session. Commands write to private copies of the repositories' settings; after
each command, harmless changes are saved in the real files, and the copies are reset to the real files.

Mounts guard the real files, and nothing from a command reaches them except single settings that were judged by their
names. Git only parses and edits files of ours; it never looks at a repository.
"""

import os
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import msgspec
from msgspec import structs

from talaria.core.trees import Root, read_file
from talaria.tools.git_config import (
    MAX_CONFIG_BYTES,
    AddressChange,
    GitConfig,
    SettingChange,
    compare_settings,
    group_by_owner,
    judge_all,
)
from talaria.tools.git_program import (
    MAX_CERTIFICATES_BYTES,
    SYSTEM_PATH,
    find_git,
    find_own_certificates,
    find_system_certificates,
    list_settings,
    read_certificates,
    read_person_settings,
    run_git,
)
from talaria.tools.sandbox.base import Bind, SandboxPolicy
from talaria.tools.sandbox.system import PYTHON

MAX_CHANGES = 200
"""Settings of one repository that one command may change; if it changes more, none is saved."""
MAX_LISTED = 20
MAX_COPIES = 50
"""Repositories whose settings commands can change."""
_IDENTITY = re.compile(r"GIT_(AUTHOR|COMMITTER)_(NAME|EMAIL)")
_VISIBLE, _COPIES = Path("/run/talaria/git"), Path("/run/talaria/git-copies")
"""In the sandbox: what commands only read, and what they write."""
GIT_LOGIN = "git:talaria"
"""Identifies git to the proxy, which may terminate its TLS. Not a secret: using it gains nothing."""
PROGRAM_HOST = "broker.talaria.internal"
"""What programs in the sandbox ask the proxy for, to reach the credential broker."""
_INSIDE = Path(__file__).parent / "broker/inside_program.py"
_CERTIFICATES = "shown/certificates.pem"
_BROKER_SETTINGS = {
    "http.proxy": f"http://{GIT_LOGIN}@{{proxy}}",
    "http.proxyAuthMethod": "basic",
    "http.sslCAInfo": f"{_VISIBLE}/certificates.pem",
    "gpg.format": "openpgp",
    "gpg.program": f"{_VISIBLE}/programs/sign",
    "core.sshCommand": f"{_VISIBLE}/programs/ssh",
    "ssh.variant": "ssh",
}
"""How git in the sandbox reaches the credential broker, regardless of the repository's settings."""
_PERSONAL_KEYS = frozenset(
    (
        *("user.name", "user.email", "init.defaultbranch", "pull.rebase", "pull.ff", "push.default"),
        *("push.autosetupremote", "push.followtags", "fetch.prune", "core.autocrlf", "core.eol", "core.safecrlf"),
        *("core.quotepath", "core.whitespace", "core.abbrev", "core.commentchar", "merge.conflictstyle", "merge.ff"),
        *("diff.algorithm", "diff.renames", "diff.mnemonicprefix", "diff.colormoved", "rebase.autosquash"),
        *("rebase.autostash", "rebase.updaterefs", "rerere.enabled", "branch.autosetupmerge", "branch.autosetuprebase"),
        *("color.ui", "log.date", "commit.verbose", "commit.gpgsign", "tag.gpgsign", "status.showuntrackedfiles"),
    )
)
"""The person's own settings that commands see. With `commit.gpgsign` and no key, a commit fails, which is better than
one that is silently unsigned."""

_Stamp = tuple[int, int, int, int, int]
"""If it differs, somebody has changed the file."""
AllowChange = Callable[[Path, bytes], AbstractContextManager[None]]
"""Entered while a file is replaced by this content with the person's consent."""


class SyncedSettings(msgspec.Struct, frozen=True):
    messages: tuple[str, ...] = ()
    to_ask: tuple[AddressChange, ...] = ()
    """Changes that only a person can allow."""
    saved: tuple[Path, ...] = ()
    """Files that were replaced."""


class GitSettings:
    """For one session. All methods block."""

    def __init__(self, folder: Path, *, has_mounts: bool) -> None:
        """`folder`: in Talaria's home, where no command can write. Not `has_mounts`: commands only see the person's
        settings, and change those of repositories directly."""
        self._folder = folder
        self._has_mounts = has_mounts
        self._shown = _VISIBLE if has_mounts else folder / "shown"
        self._has_gh = False
        self._copies: dict[Path, int] = {}
        """The number of the copy of each file."""
        self._base: dict[Path, bytes] = {}
        """What each real file held when its copy was last made."""
        self._stamps: dict[Path, tuple[_Stamp | None, _Stamp | None]] = {}
        """Of the copy and the real file, at that time."""
        self._session_settings: GitConfig = {}
        """What commands have set with `git config --global`."""
        self._session_stamp: _Stamp | None = None

    def add_to_policy(self, view: SandboxPolicy) -> SandboxPolicy:
        """Adds the person's settings and the copies to what commands see. The repository's own identity wins."""
        kept = {name: value for name, value in view.environment.items() if not _IDENTITY.fullmatch(name)}
        if not self._has_mounts:
            more = {"GIT_CONFIG_GLOBAL": f"{self._shown}/settings"}
            return structs.replace(view, reads=(*view.reads, self._shown), environment={**kept, **more})
        more = {"GIT_CONFIG_SYSTEM": f"{_VISIBLE}/settings", "GIT_CONFIG_GLOBAL": f"{_COPIES}/global"}
        if self._has_gh:
            more["PATH"] = f"{_VISIBLE}/bin:{kept.get('PATH', SYSTEM_PATH)}"
        proxied = {"TALARIA_PROXY": "http://{proxy}", "GIT_CONFIG_COUNT": str(len(_BROKER_SETTINGS))}
        for number, (key, value) in enumerate(_BROKER_SETTINGS.items()):
            proxied |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        binds = (Bind(self._folder / "shown", _VISIBLE), Bind(self._folder / "copies", _COPIES, is_writable=True))
        return structs.replace(view, binds=(*view.binds, *binds), environment={**kept, **more}, proxied=proxied)

    @property
    def known(self) -> Mapping[Path, bytes]:
        """The real settings of the repositories, by file, as they were last read."""
        return dict(self._base)

    def trust_certificate(self, certificate: bytes) -> None:
        """Make git in the sandbox trust one more certificate."""
        with Root.open(self._folder) as root:
            known = root.read(_CERTIFICATES, MAX_CERTIFICATES_BYTES)
            root.replace(_CERTIFICATES, known + b"\n" + certificate, mode=0o600)

    def prepare(self, repository: Path) -> bool:
        """Recreates the folders. `repository`: the person's settings may depend on it. False: git is not installed, so
        commands cannot change any settings."""
        self._copies.clear()
        self._base.clear()
        self._stamps.clear()
        self._session_settings, self._session_stamp = {}, None
        self.remove()
        if find_git() is None:
            return False
        Root.make(self._folder.parent).close()  # each folder is for its owner only
        with Root.make(self._folder) as root:
            for name in ("shown/links", "copies", "work"):
                root.make_folder(name, 0o700).close()
            known = read_person_settings(repository)
            lines = [_format_setting(key, known[key][-1]) for key in sorted(_PERSONAL_KEYS & known.keys())]
            named = (Path(value).expanduser() for value in known.get("core.excludesfile", ())[-1:])
            with suppress(OSError, RuntimeError):
                ignored = read_file(next(named, Path.home() / ".config/git/ignore"), MAX_CONFIG_BYTES)
                _write_new(root, "shown/ignore", ignored)
                lines.append(_format_setting("core.excludesfile", f"{self._shown}/ignore"))
            _write_new(root, "shown/settings", "".join(lines).encode("utf-8", "surrogateescape"))
            if not self._has_mounts:
                return True
            # What git starts in the sandbox instead of ssh and gpg, and what replaces `gh` there.
            self._has_gh = shutil.which("gh") is not None
            _write_new(root, "shown/inside.py", read_file(_INSIDE, MAX_CERTIFICATES_BYTES))
            for folder, name in (("programs", "ssh"), ("programs", "sign"), *([("bin", "gh")] if self._has_gh else [])):
                root.make_folder(f"shown/{folder}", 0o700).close()
                script = f'#!/bin/sh\nexec {shlex.quote(PYTHON)} -IS {_VISIBLE}/inside.py {name} "$@"\n'
                _write_new(root, f"shown/{folder}/{name}", script.encode(), 0o700)
            trusted = (*filter(None, map(read_certificates, find_system_certificates())),)[:1]
            own = filter(None, map(read_certificates, find_own_certificates(known)))
            _write_new(root, _CERTIFICATES, b"\n".join((*trusted, *own)))
        return True

    def remove(self) -> None:
        with suppress(OSError), Root.open(self._folder.parent) as around:
            around.remove_tree(self._folder.name)

    def link_copies(self, guarded: Sequence[Path]) -> dict[Path, Path]:
        """For guarded files that are settings of a repository: links in the sandbox to their copies."""
        links: dict[Path, Path] = {}
        for file in guarded if self._has_mounts else ():
            if file.name not in ("config", "config.worktree"):
                continue
            if file not in self._copies and len(self._copies) < MAX_COPIES:
                content = _read_settings_file(file)
                try:
                    with Root.open(file.anchor) as top, top.folder(str(file.parent.relative_to(file.anchor))) as folder:
                        is_in_repository = folder.find("HEAD") is not None
                except OSError:
                    continue
                if content is None or not is_in_repository:
                    continue
                number = len(self._copies)
                with suppress(OSError), Root.open(self._folder) as root:
                    root.make_link(f"shown/links/{number}", f"{_COPIES}/{number}/config")
                    self._copies[file] = number
                    self._reset(file, content)
            if file in self._base:
                links[file] = _VISIBLE / "links" / str(self._copies[file])
        return links

    @property
    def may_have_changed(self) -> bool:
        """Looks only at the stamps of the files; not on the loop."""
        return self._session_stamp != _make_stamp(self._session_file) or any(
            self._stamps_of(file) != stamps for file, stamps in self._stamps.items()
        )

    def sync(self, changing: AllowChange) -> SyncedSettings:
        """Save harmless changes by commands, and take over the person's own changes."""
        messages = self._take_session_settings()
        asked: list[AddressChange] = []
        saved: list[Path] = []
        for file, base in list(self._base.items()):
            if self._stamps_of(file) == self._stamps[file]:
                continue
            copy: bytes | None = None
            with suppress(OSError), Root.open(self._folder / "copies") as copies:
                copy = copies.read(f"{self._copies[file]}/config", MAX_CONFIG_BYTES + 1)
            real = _read_settings_file(file)  # each is read once: what is judged is what is saved
            if real is None:
                continue
            changes = list[SettingChange]()
            if copy != base:
                settings = list_settings(copy) if copy is not None and len(copy) <= MAX_CONFIG_BYTES else None
                before = list_settings(base)
                if settings is None or before is None:
                    messages.append(f"git: {file} can no longer be read by git; nothing in it was saved.")
                else:
                    changes = compare_settings(before, settings, file)
            if len(changes) > MAX_CHANGES:
                messages.append(
                    f"git: {len(changes):,} settings were changed in {file}, which is too many; none was saved."
                )
                changes = []
            verdicts = judge_all(changes)
            asked += group_by_owner(file, [change for change, verdict in verdicts if verdict == "ask"])
            messages += _describe_refusals(
                [(change, verdict) for change, verdict in verdicts if verdict not in ("save", "ask")]
            )
            wanted = [change for change, verdict in verdicts if verdict == "save"]
            if wanted:
                fault = self.save(file, wanted, changing)
                messages += [fault] if fault else []
                saved += [] if fault else [file]
                real = _read_settings_file(file) or real
            try:
                self._reset(file, real)
            except OSError as fault:
                messages.append(f"git: settings in {file} are no longer saved in this session: {fault.strerror}.")
                del self._base[file], self._stamps[file]
        return SyncedSettings(tuple(messages), tuple(asked), tuple(saved))

    @property
    def _session_file(self) -> Path:
        return self._folder / "copies/global"

    def _take_session_settings(self) -> list[str]:
        """Reports what commands have newly set with `--global`: it holds for this session, but they expect it to
        last."""
        stamp = _make_stamp(self._session_file)
        if stamp == self._session_stamp:
            return []
        self._session_stamp = stamp
        settings: GitConfig | None = None
        with suppress(OSError), Root.open(self._folder / "copies") as copies:
            settings = list_settings(copies.read("global", MAX_CONFIG_BYTES))
        before, self._session_settings = self._session_settings, settings or {}
        new = [key for key, values in self._session_settings.items() if values != before.get(key)]
        names = ", ".join(key if key.isprintable() else ascii(key) for key in new[:MAX_LISTED])
        only = "for this session only: commands do not change the person's own settings"
        return [f"git: {names} was set {only}."] if new else []

    def save(self, file: Path, changes: Sequence[SettingChange], changing: AllowChange) -> str:
        """All or nothing; returns what went wrong. A setting that the person has changed in the meantime stays."""
        lock = f"{file.name}.lock"
        try:
            with Root.open(file.anchor) as top, top.folder(str(file.parent.relative_to(file.anchor))) as folder:
                folder.create(lock, 0o600).close()  # as git does, so that nobody else writes it
                try:
                    real = folder.read(file.name, MAX_CONFIG_BYTES)
                    edited = self._edit(real, changes)
                    if edited != real:
                        with changing(file, edited):
                            folder.replace(file.name, edited, mode=None)
                finally:
                    folder.remove(lock)
        except FileExistsError:
            return f"git: the settings were not saved: {file.parent}/{lock} exists."
        except (OSError, ValueError, subprocess.SubprocessError) as fault:
            return f"git: the settings were not saved in {file}: {fault}."
        if file in self._base:
            self._reset(file, edited)
        return ""

    def _edit(self, real: bytes, changes: Sequence[SettingChange]) -> bytes:
        """Raises `ValueError` if anything else would change."""
        expected = dict(list_settings(real) or {})
        with Root.open(self._folder) as root:
            root.replace("work/settings", real, mode=0o600)
            file = str(self._folder / "work/settings")
            for change in changes:
                if expected.get(change.key, ()) != change.before:
                    continue  # the person's own change wins
                if change.before:
                    run_git(("config", "--file", file, "--unset-all", change.key))
                for value in change.after:
                    run_git(("config", "--file", file, "--add", change.key, value))
                expected.pop(change.key, None)
                if change.after:
                    expected[change.key] = change.after
            edited = root.read("work/settings", MAX_CONFIG_BYTES + 1)
        if list_settings(edited) != expected:
            raise ValueError("git would have changed something else, too")
        return edited

    def _reset(self, file: Path, content: bytes) -> None:
        """Make the copy equal to the real file, discarding whatever commands have put there. Raises `OSError`."""
        name = str(self._copies[file])
        with Root.open(self._folder) as root:
            root.set_mode("copies", 0o700)
            with root.folder("copies") as copies:
                if not _can_be_replaced(copies, name):
                    odd = f"work/{os.urandom(8).hex()}"
                    with suppress(OSError):
                        copies.set_mode(name, 0o700)  # else it cannot be moved
                    copies.move(name, root, odd)
                    with suppress(OSError):
                        root.remove_tree(odd)
                    with suppress(OSError):
                        root.remove(odd)
                with copies.make_folder(name, 0o700) as folder:
                    new = f"new-{os.urandom(8).hex()}"
                    with folder.create(new, 0o600) as made:
                        made.write(content)
                    folder.move(new, folder, "config")
        self._base[file] = content
        self._stamps[file] = self._stamps_of(file)

    def _stamps_of(self, file: Path) -> "tuple[_Stamp | None, _Stamp | None]":
        copy = self._folder / "copies" / str(self._copies[file]) / "config"
        return _make_stamp(copy), _make_stamp(file)


def _can_be_replaced(copies: Root, name: str) -> bool:
    """Whether there is nothing yet, or a folder with a plain file."""
    try:
        found = copies.find(name)
        if found is None:
            return True
        if not stat.S_ISDIR(found.st_mode) or stat.S_IMODE(found.st_mode) & 0o700 != 0o700:
            return False
        inner = copies.find(f"{name}/config")
        return inner is None or stat.S_ISREG(inner.st_mode)
    except OSError:
        return False


def _make_stamp(file: Path) -> _Stamp | None:
    try:
        found = file.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _write_new(root: Root, name: str, content: bytes, mode: int = 0o600) -> None:
    """Without syncing: what is recreated for each session need not survive a power cut."""
    with root.create(name, mode) as file:
        file.write(content)


def _format_setting(key: str, value: str) -> str:
    section, _, name = key.partition(".")
    quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'[{section}]\n\t{name} = "{quoted}"\n'


def _read_settings_file(file: Path) -> bytes | None:
    """None: it is missing, too large, a link, or reached through one."""
    try:
        with Root.open(file.anchor) as top:
            content = top.read(str(file.relative_to(file.anchor)), MAX_CONFIG_BYTES + 1)
    except OSError:
        return None
    return content if len(content) <= MAX_CONFIG_BYTES else None


def _describe_refusals(refused: Sequence[tuple[SettingChange, str]]) -> list[str]:
    messages: list[str] = []
    for change, reason in refused[:MAX_LISTED]:
        key = change.key if change.key.isprintable() else ascii(change.key)
        how = f"git config {shlex.quote(key)} …" if change.after else f"git config --unset-all {shlex.quote(key)}"
        what = "was not saved" if change.after else "was not removed"
        messages.append(f"git: {key} {what}: {reason}. Set it yourself with: {how}")
    if len(refused) > MAX_LISTED:
        messages.append(f"git: {len(refused) - MAX_LISTED:,} more settings were not saved.")
    return messages
