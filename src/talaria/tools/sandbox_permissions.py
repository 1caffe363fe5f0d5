"""What a person can open in the sandbox: a host, a folder, a service of the machine (by its port or socket), an address
in git's settings, or one command outside the sandbox.

The question states the effect in our words; the model's reason comes second. A lasting yes is a grant
(`store/permission_ports.py`) with the tool name `SANDBOX`, which no tool of a model has.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, cast, get_args

import msgspec

from talaria.core.errors import BadArguments
from talaria.store.permission_ports import Grant
from talaria.tools.sandbox.sandbox_settings import is_this_machine
from talaria.tools.shell_words import command_prefix, runs_anything, split_simple

SANDBOX = "sandbox"
"""Stands for a tool's name in grants and approvals."""
EVERYWHERE = ""
"""Stands for the project in a grant that holds in every project."""

REGISTRIES: dict[str, tuple[str, ...]] = {
    "the Python package index": ("pypi.org", "files.pythonhosted.org"),
    "the npm registry": ("registry.npmjs.org",),
    "the Yarn registry": ("registry.yarnpkg.com",),
    "the Rust package registry": ("crates.io", "index.crates.io", "static.crates.io"),
    "the Go module proxy": ("proxy.golang.org", "sum.golang.org"),
    "Maven Central": ("repo.maven.apache.org", "repo1.maven.org"),
    "the Ruby package registry": ("rubygems.org", "index.rubygems.org"),
    "Debian's package archive": ("deb.debian.org", "security.debian.org"),
}
"""Package registries use more than one host: one yes covers them together."""

PermissionKind = Literal[
    "network", "write", "port", "socket", "publish", "unsandboxed", "git-url", "fetch", "push", "sign", "gh"
]
FORMS = "`network HOST`, `write PATH`, `port NUMBER`, `socket PATH`, `publish NUMBER` or `unsandboxed`"

_TITLES: dict[str, str] = {
    "network": "Open the network?",
    "write": "Open a folder?",
    "port": "Open a port of this machine?",
    "socket": "Open a socket of this machine?",
    "publish": "Open a port of the sandbox?",
    "unsandboxed": "Leave the sandbox?",
    "git-url": "Change an address of git?",
    "fetch": "Use your login?",
    "push": "Push with your login?",
    "sign": "Sign with your key?",
    "gh": "Use your login?",
}

_SOCKETS_OF_THE_DESKTOP = (
    *("/run/user/*", "/run/docker*", "/run/podman/*", "/run/containerd/*", "/run/crio/*", "/run/buildkit/*"),
    *("/run/libvirt/*", "/run/systemd/*", "/run/dbus/*", "/run/snapd*", "/run/screen/*", "/run/pcscd/*"),
    *("/run/k3s/*", "/run/lxd/*", "/run/incus/*", "/run/nix/*", "/run/udev/*", "/run/cups/*", "/run/tailscale/*"),
    *("/var/lib/lxd/*", "/var/lib/incus/*", "/var/lib/docker/*", "/var/snap/*", "/nix/var/*", "/dev/*"),
    *("/tmp/.*-unix/*", "/tmp/tmux-*", "/tmp/screen*", "/tmp/dbus-*", "/tmp/talaria-*", "/tmp/emacs*"),  # noqa: S108
    *("*/docker*.sock", "*/podman*.sock", "*/containerd*.sock", "*/crio.sock", "*/buildkitd.sock", "*/colima/*"),
    *("*/.colima/*", "*/.lima/*", "*/.rd/*", "*/.orbstack/*", "*/containers/podman/*", "*/libvirt*-sock*"),
    *("*/S.gpg-agent*", "*/S.scdaemon", "*/S.keyboxd", "*/agent.*", "*agent*.sock", "*/ssh-*", "*/keyring*/*"),
    *("*/nvim.*", "*/vscode-*.sock", "*/kitty-*", "*/wezterm/*", "*/zellij/*", "*/dtach/*", "*/abduco/*"),
    *("*/wayland-*", "*/X11-unix/*", "*/bus", "*/*_bus_socket", "*/snapd*.socket", "*/supervisor*.sock"),
)
"""Of container engines, service managers, the desktop, terminals, editors, debuggers, and agents that hold keys. Any
other socket is asked about."""
_KEPT_CLOSED = "holds too much to be opened, is private, or runs when the person logs in; name another folder."
_HOST = re.compile(r"(?=.{1,253}$)(?!-)[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63})*")


class Permission(msgspec.Struct, frozen=True):
    kind: PermissionKind
    what: tuple[str, ...]
    """Hosts; a path; a port; the path of a socket; the words of a command, empty if it is more than one program with
    plain words; for `git-url`, what it does, as an infinitive; the address of a remote, and for `push` the refs (`+`
    before one that would lose commits, `:` before one that would be deleted); the name of a key; a repository and what
    `gh` does."""
    is_missing: bool = False
    """For `write`: a folder that is created once the person says yes."""

    @property
    def title(self) -> str:
        return _TITLES.get(self.kind, "Open the sandbox?")

    @property
    def effect(self) -> str:  # noqa: PLR0911  (a sentence for each kind)
        """What becomes possible, as an infinitive, for the person who decides."""
        match self.kind:
            case "network":
                hosts = " and ".join(self.what)
                return f"reach {self._registry} ({hosts})" if self._registry else f"reach {hosts}"
            case "write":
                if self.is_missing:
                    return f"make the folder {self.what[0]}, and read, change and delete everything in it"
                return f"read, change and delete everything in {self.what[0]}"
            case "port":
                return f"connect to whatever listens on port {self.what[0]} of this machine"
            case "socket":
                return f"connect, as you, to whatever listens on the socket {self.what[0]} of this machine"
            case "publish":
                return f"be reached from this machine on port {self.what[0]}"
            case "unsandboxed":
                return "run outside the sandbox, with your rights: your files, keys and network"
            case "git-url":
                return " and ".join(self.what)
            case "fetch":
                return f"fetch from {self.what[0]} with your login"
            case "push":
                address, *refs = self.what
                at = "at" if any(ref.startswith(("+", ":")) for ref in refs) else "to"
                return f"{' and '.join(map(_describe_push, refs))} {at} {address} with your login"
            case "sign":
                return f"sign commits and tags with your key {self.what[0]}"
            case "gh":
                repository, *command = self.what
                if command == ["read"]:
                    return f"read issues, pull requests and runs of {repository} with gh and your login"
                return f"run `gh {' '.join(command)}` on {repository} with your login"

    @property
    def question(self) -> str:
        effect = self.effect
        return f"{effect[:1].upper()}{effect[1:]}?" if self.kind == "git-url" else f"Let commands {effect}?"

    @property
    def key(self) -> str:
        """What a lasting yes covers, as stored in grants."""
        return f"{self.kind} {shlex.join(self.covered)}"

    @property
    def covered(self) -> tuple[str, ...]:
        return command_prefix(self.what) if self.kind == "unsandboxed" else self.what

    @property
    def description(self) -> str:
        """What a lasting yes covers, as an infinitive, for people."""
        if self.kind == "unsandboxed":
            return f"run commands that start with `{shlex.join(self.covered)}` outside the sandbox"
        return self.effect

    @property
    def short_description(self) -> str:  # noqa: PLR0911  (a sentence for each kind)
        """The same, next to an answer below the question that says it in full."""
        match self.kind:
            case "network":
                return f"reach {self._registry or ' and '.join(self.what)}"
            case "write":
                return f"change files in {self.what[0]}"
            case "port":
                return f"connect to port {self.what[0]}"
            case "socket":
                return f"connect to {self.what[0]}"
            case "publish":
                return f"be reached on port {self.what[0]}"
            case "unsandboxed":
                return f"commands that start with `{shlex.join(self.covered)}`"
            case "fetch":
                return "fetch from there"
            case "push":
                return f"{' and '.join(map(_describe_push, self.what[1:]))} there"
            case "sign":
                return "sign with this key"
            case "gh":
                return "read there" if self.what[1:] == ("read",) else f"`gh {' '.join(self.what[1:])}` there"
            case _:
                return self.description

    @property
    def reads_untrusted(self) -> bool:
        """Whether commands can then read what strangers write."""
        return self.kind == "network" or (self.kind == "gh" and self.what[1:] == ("read",))

    @property
    def _registry(self) -> str:
        return next((name for name, hosts in REGISTRIES.items() if hosts == self.what), "")

    @property
    def may_last(self) -> bool:
        """Whether a yes can hold for more than one time."""
        match self.kind:
            case "unsandboxed":
                return bool(self.covered)
            case "git-url":
                return False
            case "push":
                return not any(ref.startswith(("+", ":")) for ref in self.what[1:])
            case _:
                return True


def network_permission(host: str) -> Permission:
    """With the other hosts of the same package registry. Raises `BadArguments` for what is not one host."""
    name = host.strip().lower().rstrip(".")
    if "*" in name:
        raise BadArguments(f"{host!r} stands for many hosts; name one of them, such as pypi.org.")
    if not _HOST.fullmatch(name):
        import ipaddress  # noqa: PLC0415  (hosts are usually named)

        try:
            ipaddress.ip_address(name)
        except ValueError:
            raise BadArguments(f"{host!r} is not the name of a host.") from None
    return Permission("network", next((hosts for hosts in REGISTRIES.values() if name in hosts), (name,)))


def write_permission(path: str, project: Path, may_be_shared: Callable[[Path], bool]) -> Permission:
    """A path with a slash at its end is a folder, which may be missing. Raises `BadArguments` for anything but one
    folder or file by its true name."""
    try:
        given = Path(path).expanduser()
    except RuntimeError:
        raise BadArguments(f"{path!r} names a user that does not exist here.") from None
    if ".." in given.parts:
        raise BadArguments(f"{path!r} leads upwards; give the whole path, without `..`.")
    named = given if given.is_absolute() else project / given
    if not may_be_shared(named):  # before looking: not even its existence is revealed
        raise BadArguments(f"{named} {_KEPT_CLOSED}")
    is_missing = path.endswith("/") and not named.is_symlink() and not named.exists() and named.parent.is_dir()
    try:
        real = named.resolve(strict=not is_missing)
    except FileNotFoundError:
        nearest = next(parent for parent in named.parents if parent.exists())
        raise BadArguments(
            f"{named} does not exist; name a folder that does, such as {nearest}, or a new one in such a folder, "
            "with a slash at its end."
        ) from None
    except (OSError, RuntimeError, ValueError) as fault:
        raise BadArguments(f"{path!r} is not a usable path: {fault}.") from fault
    if real != named:
        raise BadArguments(f"{named} is a link, or leads through one; what it leads to is {real}.")
    if not is_missing and not real.is_dir() and not real.is_file():
        raise BadArguments(f"{real} is neither a folder nor a file.")
    if not may_be_shared(real) or len(real.parts) < 3:
        raise BadArguments(f"{real} {_KEPT_CLOSED}")
    return Permission("write", (str(real),), is_missing)


def port_permission(number: str, kind: Literal["port", "publish"] = "port") -> Permission:
    if not number.isdecimal() or not 1 <= int(number) <= 65535:
        raise BadArguments(f"{number!r} is not a port: that is a number from 1 to 65535.")
    return Permission(kind, (str(int(number)),))


def socket_permission(path: str, project: Path, is_secret: Callable[[Path], bool]) -> Permission:
    """By its true name, to which a link may lead. Raises `BadArguments` for what is not a socket, or would let commands
    do whatever the person can."""
    try:
        named = project / Path(path).expanduser()
        real = named.resolve()
    except (OSError, RuntimeError, ValueError) as fault:
        raise BadArguments(f"{path!r} is not a usable path: {fault}.") from fault
    if is_secret(named) or is_secret(real):  # before looking: not even its existence is revealed
        raise BadArguments(f"{named} is private.")
    if (why := explain_closed_socket(real)) is not None:
        raise BadArguments(f"{named} stays closed: {why}.")
    if not real.is_socket():
        raise BadArguments(f"{named} is not a socket." if real.exists() else f"{named} does not exist.")
    return Permission("socket", (str(real),))


def explain_closed_socket(path: Path) -> str | None:
    """Why a socket cannot be opened; None: a person can open it. `path` is its true name."""
    name = str(path)
    if any(fnmatchcase(name, pattern) for pattern in _SOCKETS_OF_THE_DESKTOP):
        return (
            "the programs that listen there run commands for you, or use your keys, so it would open everything; ask "
            'to run the command outside the sandbox with needs: ["unsandboxed"]'
        )
    return None


def make_unsandboxed_permission(command: str) -> Permission:
    words = split_simple(command) if command.isprintable() else None
    return Permission("unsandboxed", tuple(words or ()))


def parse_need(
    need: str,
    command: str,
    project: Path,
    may_be_shared: Callable[[Path], bool],
    is_secret: Callable[[Path], bool],
) -> Permission:
    """Parse what a call declares that its command needs. Raises `BadArguments`."""
    kind, _, what = need.strip().partition(" ")
    what = what.strip()
    match kind:
        case "network" if what and is_this_machine(what):
            raise BadArguments(f"{what!r} is this machine itself; ask for `port NUMBER` instead.")
        case "network" if what:
            return network_permission(what)
        case "write" if what:
            return write_permission(what, project, may_be_shared)
        case "port" | "publish" if what:
            return port_permission(what, kind)
        case "socket" if what:
            return socket_permission(what, project, is_secret)
        case "unsandboxed" if not what:
            return make_unsandboxed_permission(command)
        case _:
            raise BadArguments(f"{need!r} cannot be asked for; use one of {FORMS}.")


def read_grant(granted: str) -> Permission | None:
    """What a grant of `SANDBOX` allows; None: nothing that this version knows."""
    kind, _, what = granted.partition(" ")
    words = tuple(shlex.split(what))
    return Permission(cast("PermissionKind", kind), words) if kind in get_args(PermissionKind) and words else None


def is_granted(permission: Permission, grants: Sequence[Grant], project: str) -> bool:
    """`grants`: everything that one person has granted in this project, this conversation or everywhere."""
    if not permission.may_last:  # it is asked about each time
        return False
    return is_covered(permission, [*select_grants(permission.kind, grants, project)])


def is_covered(permission: Permission, given: Sequence[tuple[str, ...]]) -> bool:
    """`given`: the words of each grant of the same kind."""
    open_here = [words for words in given if words]
    if permission.kind == "unsandboxed":
        begins = any(permission.covered == words for words in open_here)
        return begins and not any(map(runs_anything, permission.what))
    if permission.kind == "write":
        return any(Path(permission.what[0]).is_relative_to(words[0]) for words in open_here)
    if permission.kind == "push":
        address, *refs = permission.what
        return {ref for words in open_here if words[0] == address for ref in words[1:]}.issuperset(refs)
    if permission.kind in ("sign", "fetch", "gh"):
        return permission.what in open_here
    return {word for words in open_here for word in words}.issuperset(permission.what)


def select_grants(kind: PermissionKind, grants: Sequence[Grant], project: str) -> Iterator[tuple[str, ...]]:
    """The words of each grant of a kind that holds here."""
    for grant in grants:
        if grant.tool == SANDBOX and (grant.session is not None or grant.cwd in (project, EVERYWHERE)):
            given, _, what = grant.what.partition(" ")
            if given == kind:
                yield tuple(shlex.split(what))


def _describe_push(ref: str) -> str:
    name = ref.lstrip("+:").removeprefix("refs/heads/")
    name = f"tag {name.removeprefix('refs/tags/')}" if name.startswith("refs/tags/") else name
    return {"+": f"replace {name} (forced)", ":": f"delete {name}"}.get(ref[:1], f"push {name}")
