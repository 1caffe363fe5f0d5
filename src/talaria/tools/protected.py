"""Protected places: what no tool ever reads, and what none changes without asking.

Programs keep keys, tokens, cookies and the like in the first kind. It lists only places that hold little else, and need
not be complete: anything outside the project that is not needed to run programs is asked about.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from talaria.tools.repositories import ADDRESSES, OBEYED, OF_WORKTREES, WORKTREE_SETTINGS, is_obeyed

KEYS = (
    *(".ssh", ".gnupg", ".putty", ".netrc", ".authinfo", ".authinfo.gpg", ".config/age", ".age", ".config/sops/age"),
    *(".minisign", ".step/secrets", ".acme.sh", ".config/rclone", ".config/filezilla", ".local/share/remmina"),
    *(".vnc/passwd", ".krb5"),
)
PASSWORD_MANAGERS = (
    *(".password-store", ".local/share/gopass", ".config/gopass", ".local/share/keyrings", ".local/share/kwalletd"),
    *(".config/op", ".config/1Password", ".config/Bitwarden", ".config/Bitwarden CLI", ".config/rbw", ".cache/rbw"),
    *(".local/share/rbw", ".config/keepassxc", ".cache/keepassxc", ".keepass", ".lpass", ".local/share/lpass"),
    *(".config/Enpass", ".config/Proton Pass", ".google_authenticator", ".config/Authy Desktop", ".config/Yubico"),
)
BROWSERS = (
    *(".mozilla", ".config/mozilla", ".librewolf", ".waterfox", ".zen", ".local/share/torbrowser", ".config/vivaldi"),
    *(".config/google-chrome", ".config/google-chrome-beta", ".config/chromium", ".config/BraveSoftware"),
    *(".config/microsoft-edge", ".config/opera", ".local/share/qutebrowser", ".local/share/epiphany", "snap/firefox"),
    *("snap/chromium", "snap/brave", "snap/opera", "snap/bitwarden", "snap/bw", ".var/app/org.mozilla.firefox"),
    *(".var/app/org.chromium.Chromium", ".var/app/com.google.Chrome", ".var/app/com.brave.Browser"),
    *(".var/app/com.microsoft.Edge", ".var/app/io.gitlab.librewolf-community", ".var/app/app.zen_browser.zen"),
    *(".var/app/com.bitwarden.desktop", ".var/app/org.keepassxc.KeePassXC", "Library/Keychains", "Library/Cookies"),
    *("Library/Safari", "Library/Application Support/Firefox"),
    *("Library/Application Support/Google/Chrome", "Library/Application Support/BraveSoftware"),
)
"""Also as snaps and flatpaks, including password managers; and some of macOS."""
CLOUDS = (
    *(".aws", ".azure", ".config/gcloud", ".boto", ".s3cfg", ".oci", ".aliyun", ".bluemix", ".config/doctl"),
    *(".config/hcloud", ".config/scw", ".config/linode-cli", ".fly", ".config/netlify"),
    *(".local/share/com.vercel.cli", ".config/.wrangler", ".wrangler", ".cloudflared", ".railway", ".supabase"),
    *(".config/configstore", ".config/stripe", ".config/ngrok", ".ngrok2", ".mc", ".kube", ".docker"),
    *(".config/containers", ".minikube", ".vault-token", ".terraform.d/credentials.tfrc.json"),
    *(".pulumi/credentials.json", ".databrickscfg", ".snowflake", ".snowsql"),
)
CODE_AND_PACKAGES = (
    *(".git-credentials", ".config/git/credentials", ".config/gh", ".config/hub", ".config/glab-cli", ".config/tea"),
    *(".circleci", ".travis", ".sentryclirc", ".buildkite-agent", ".npmrc", ".yarnrc.yml", ".pypirc"),
    *(".config/pypoetry/auth.toml", ".local/share/uv/credentials", ".gem/credentials", ".bundle/config"),
    *(".cargo/credentials", ".cargo/credentials.toml", ".m2/settings.xml", ".m2/settings-security.xml"),
    *(".gradle/gradle.properties", ".composer/auth.json", ".config/composer/auth.json", ".nuget/NuGet/NuGet.Config"),
    *(".config/cachix", ".cache/huggingface/token", ".cache/huggingface/stored_tokens", ".kaggle/kaggle.json"),
    *(".local/share/jupyter/runtime", ".streamlit/secrets.toml"),
)
"""Including logins of CI services and registries."""
AGENTS = (
    *(".talaria", ".hermes", ".openclaw", ".claude.json", ".claude/.credentials.json", ".config/Claude", ".gemini"),
    *(".codex/auth.json", ".qwen/oauth_creds.json", ".config/goose/secrets.yaml", ".local/share/opencode/auth.json"),
    *(".config/Cursor", ".codeium", ".config/github-copilot", ".copilot", ".config/io.datasette.llm/keys.json"),
    *(".config/Code/User/globalStorage", ".ollama/id_ed25519", ".pi/agent/auth.json", ".aider.conf.yml"),
)
MAIL_AND_MESSENGERS = (
    *(".thunderbird", "snap/thunderbird", ".var/app/org.mozilla.Thunderbird", ".local/share/evolution", ".msmtprc"),
    *(".config/msmtp", ".mbsyncrc", ".config/isyncrc", ".offlineimaprc", ".fetchmailrc", ".config/himalaya"),
    *(".config/aerc", ".config/Signal", ".var/app/org.signal.Signal", ".local/share/signal-cli"),
    *(".local/share/TelegramDesktop", ".config/Slack", ".config/discord", ".config/Element", ".config/Mattermost"),
    *(".config/teams-for-linux", ".purple", ".weechat", ".config/weechat", ".irssi", ".config/goa-1.0"),
    *(".config/Nextcloud", ".dropbox", ".config/onedrive"),
)
WALLETS = (
    *(".bitcoin", ".litecoin", ".dogecoin", ".electrum", ".ethereum", ".bitmonero", "Monero", ".sparrow", ".lnd"),
    *(".config/Exodus", ".config/atomic", ".config/Ledger Live", ".config/@trezor"),
    *(".config/solana", ".foundry/keystores"),
)
VPN = (
    *(".config/wireguard", ".config/openvpn", ".cert", ".config/protonvpn", ".config/Proton", ".config/mullvad-vpn"),
    *(".config/nordvpn", ".local/share/tailscale", ".cisco"),
)
DATABASES = (
    *(".pgpass", ".pg_service.conf", ".my.cnf", ".mylogin.cnf", ".config/MongoDB Compass"),
    *(".local/share/DBeaverData", ".dbeaver4", ".clickhouse-client", ".influxdbv2", ".config/turso"),
    *(".config/neonctl", ".config/planetscale"),
)
HISTORIES = (
    *(".bash_history", ".zsh_history", ".zhistory", ".histfile", ".zsh_sessions", ".local/share/fish/fish_history"),
    *(".local/share/atuin", ".local/share/mcfly", ".config/nushell/history.txt", ".python_history"),
    *(".node_repl_history", ".irb_history", ".psql_history", ".mysql_history", ".sqlite_history"),
    *(".rediscli_history", ".mongosh", ".dbshell"),
)

SECRETS = (
    *(*KEYS, *PASSWORD_MANAGERS, *BROWSERS, *CLOUDS, *CODE_AND_PACKAGES, *AGENTS),
    *(*MAIL_AND_MESSENGERS, *WALLETS, *VPN, *DATABASES, *HISTORIES),
)
"""In the person's home."""

SYSTEM_SECRETS = (
    *("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/security/opasswd", "/etc/sudoers"),
    *("/etc/sudoers.d", "/run/secrets", "/var/run/secrets", "/run/credentials", "/etc/credstore"),
    *("/etc/credstore.encrypted", "/var/lib/systemd/credential.secret", "/etc/krb5.keytab", "/etc/luks-keys"),
    *("/etc/ssl/private", "/etc/pki/tls/private", "/etc/pki/CA/private", "/etc/letsencrypt", "/var/lib/acme"),
    *("/etc/wireguard", "/etc/openvpn", "/etc/ipsec.secrets", "/etc/ipsec.d/private", "/etc/swanctl/private"),
    *("/etc/NetworkManager/system-connections", "/etc/netplan", "/etc/wpa_supplicant", "/var/lib/iwd", "/etc/ppp"),
    *("/var/lib/tailscale", "/var/lib/bluetooth", "/etc/kubernetes", "/etc/rancher", "/var/lib/kubelet"),
    *("/var/lib/rancher", "/etc/docker/key.json", "/etc/mysql/debian.cnf", "/etc/exim4/passwd.client"),
    *("/etc/postfix/sasl_passwd", "/etc/cups/ssl", "/var/lib/sss/secrets", "/var/lib/samba/private"),
)
"""Of this machine: root can read them, and Talaria may run as root."""

HOST_KEYS = (Path("/etc/ssh"), "ssh_host_*_key")

POLICY = (
    *(".git/hooks", ".git/config", ".talaria", ".mcp.json", ".vscode", ".idea", ".envrc", ".husky", ".githooks"),
    *(".pre-commit-config.yaml", "lefthook.yml", ".lefthook.yml", ".claude", ".cursor", ".codex", ".gemini", ".zed"),
    *(".devcontainer", ".mise.toml", "mise.toml", ".exrc", ".nvim.lua"),
)
"""In a project: what other programs run or obey without asking."""

COMPARED_POLICY = (
    *("AGENTS.md", "CLAUDE.md", "GEMINI.md", "TALARIA.md", ".cursorrules", ".windsurfrules"),
    *(".cargo/config.toml", ".cargo/config", ".github/workflows", ".github/actions", ".github/copilot-instructions.md"),
    *(".gitlab-ci.yml", ".lefthook", ".lefthook.yaml", "lefthook.yaml", ".vimrc", ".lvimrc"),
)
"""The same, but branches of a repository differ in them, so commands may change them temporarily: the result is
compared afterwards."""

STARTUP = (
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zshenv", ".zprofile"),
    *(".gitconfig", ".config/git", ".config/autostart", ".config/systemd", ".config/fish", ".local/bin"),
    ".pam_environment",
)
"""In the person's home: what runs when they log in or open a shell."""

_OF_GIT = frozenset({"hooks", "config", "config.worktree", "commondir"})
POLICY_AT_ANY_DEPTH = frozenset(name for name in (*POLICY, *COMPARED_POLICY) if not name.startswith(".git/"))

LINKED_SETTINGS = ("config.yaml", ".env", "plugins.json", "plugins")
"""In Talaria's own home: some people keep them elsewhere, with a link here."""

OWN_CODE = (Path(sys.prefix), Path(__file__).parents[1])
"""The code that Talaria itself runs."""

SYSTEM = tuple(
    map(
        Path,
        (
            *("/usr", "/opt", "/nix", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc"),
            *("/proc/cpuinfo", "/proc/meminfo", "/proc/version", "/proc/loadavg", "/proc/uptime", "/proc/filesystems"),
            *("/sys/devices/system/cpu", "/System", "/Library/Apple", "/Library/Developer", "/Library/Frameworks"),
            *("/private/etc/hosts", "/private/etc/services", "/private/etc/ssl"),
        ),
    )
)
"""What programs need from the system: the same on many machines, except for the secrets in it."""

TOOLCHAINS = (
    *(".local/bin", ".local/share/uv/python", ".local/share/uv/tools", ".local/share/pipx", ".local/share/mise"),
    *(".pyenv", ".rbenv", ".nvm", ".asdf"),
    *(".cargo/bin", ".rustup", ".bun/bin", ".deno/bin", ".volta", ".sdkman/candidates", "go/bin", ".local/lib"),
)
"""In the person's home: programs that they have installed for themselves. Commands in a sandbox can use them."""

OPEN_IN_HOME = ("skills", "memories", "hermes/skills", "hermes/memories")
"""In Talaria's own home and that of its plugins: what the model may read, besides its session's own output."""


class Protected:
    """Takes resolved paths. What does not exist yet is protected, too."""

    def __init__(
        self,
        person_home: Path,
        home: Path,
        people: Path | None = None,
        programs: Sequence[Path] = (),
        shared: Sequence[Path] = (),
    ) -> None:
        """`people`: the folder with those of people in chats. `programs`: files that run outside the sandbox, wherever
        they are. `shared`: what the settings let commands read or write.

        Looks at the file system: not on the loop.
        """
        self._home = home
        self.people = people
        self.person = person_home
        others = (home.parent.parent,) if home.parent.name == "profiles" else ()
        linked = _with_link_targets(home, LINKED_SETTINGS) if home.exists() else ()
        host_keys = HOST_KEYS[0].glob(HOST_KEYS[1])
        places = (*_with_link_targets(person_home, SECRETS), *map(Path, SYSTEM_SECRETS), *host_keys, *others, *linked)
        self._secrets = dict.fromkeys(places)
        self._startup = _with_link_targets(person_home, STARTUP)
        self._programs = (*OWN_CODE, *programs)
        interpreter = Path(sys.base_prefix).resolve()
        self._readable = frozenset(
            (*SYSTEM, *OWN_CODE, interpreter, *_with_link_targets(person_home, TOOLCHAINS), *shared)
        )

    @property
    def names(self) -> tuple[str, ...]:
        """How a command might spell what is never read."""
        return (str(self._home), "$TALARIA_HOME", ".talaria", "/environ")

    def is_secret(self, path: Path, spill: Path | None = None) -> bool:
        """Whether no tool may read it, let alone write it. `spill` holds the session's own output."""
        if path.is_relative_to(self._home):
            shown = (*(self._home / name for name in OPEN_IN_HOME), *((spill,) if spill else ()))
            return not any(path.is_relative_to(place) for place in shown)
        is_host_key = path.parent == HOST_KEYS[0] and path.match(HOST_KEYS[1])
        is_listed = any(place in self._secrets for place in (path, *path.parents))
        # /proc holds the memory and environment of every process, including ours
        process = path.parts[2] if path.parts[1:2] == ("proc",) and len(path.parts) > 2 else ""
        return is_listed or is_host_key or process.isdigit() or process in ("self", "thread-self")

    def belongs_to_another(self, path: Path, project: Path) -> bool:
        """Whether it is in the folder of another person, if the project is one of those folders."""
        people = self.people
        if people is None or people not in project.parents:
            return False
        return path.is_relative_to(people) and not path.is_relative_to(project)

    def is_private(self, path: Path, project: Path) -> bool:
        """Whether it is neither in the project nor needed to run programs: reading it is asked about, and others should
        not learn what it holds."""
        holds_home = project != self.person and self.person.is_relative_to(project)  # then it is not a project
        if (path.is_relative_to(project) and not holds_home) or path.is_relative_to(self._home):
            return False
        return self._readable.isdisjoint((path, *path.parents))

    def may_be_shared(self, folder: Path) -> bool:
        """Whether a yes may cover a whole folder: not if it holds the home of the person or of Talaria."""
        return not any(home.is_relative_to(folder) for home in (self.person, self._home))

    def is_startup(self, path: Path) -> bool:
        """Whether it belongs to what runs when the person logs in or opens a shell."""
        return any(path.is_relative_to(place) for place in self._startup)

    def is_talaria_home(self, path: Path) -> bool:
        """Whether it is in Talaria's own home, where no tool writes."""
        return path.is_relative_to(self._home)

    def is_policy(self, path: Path, project: Path) -> bool:
        """Whether it may be written only if a person says so. Reads the settings of the repositories around it."""
        if ".git" in path.parts:  # of any repository, wherever it is, and of the submodules in it
            inner = path.parts[path.parts.index(".git") + 1 :]
            obeyed = {*OBEYED, *OF_WORKTREES, *ADDRESSES, WORKTREE_SETTINGS}
            is_nested = bool(inner) and inner[0] in ("modules", "worktrees") and not obeyed.isdisjoint(inner)
            if not inner or inner[0] in obeyed or is_nested:
                return True
        places = (*self._startup, *_policy(project), *self._programs)
        if any(path.is_relative_to(place) for place in places) or is_obeyed(path, project):
            return True
        return path.is_relative_to(project) and policy_place(str(path.relative_to(project))) is not None

    def missing_below(self, root: Path) -> Iterator[Path]:
        """What does not exist in a writable folder, but would run when the person logs in, or let others in."""
        for place in (*self._startup, self.person / ".ssh"):
            if place.is_relative_to(root) and not place.exists():
                yield place

    def secrets_below(self, root: Path) -> Iterator[Path]:
        """Those that exist inside `root`."""
        others = (self.people,) if self.people else ()
        for place in (self._home, *self._secrets, *others, Path("/proc")):
            if place != root and place.is_relative_to(root) and place.exists():
                yield place

    def is_around_secrets(self, folder: Path) -> bool:
        """Whether programs would keep secrets somewhere in a folder."""
        begin = f"{folder}/".replace("//", "/")
        return any(str(place).startswith(begin) for place in (self._home, *self._secrets))

    def policy_below(self, root: Path) -> Iterator[Path]:
        """Those that exist inside a writable folder."""
        for place in (*_policy(root), *self._startup, *self._programs):
            if place.is_relative_to(root) and place.exists():
                yield place


def policy_place(name: str) -> str | None:
    """The file or folder that other programs obey and that a name, at any depth below a project, belongs to."""
    parts = name.split("/")
    for at, part in enumerate(parts, 1):
        if part == ".git":
            inner = parts[at:]
            obeyed = next((at for at in range(len(inner)) if _is_obeyed_in_git(inner, at)), None)
            if not inner:
                return name
            return None if obeyed is None else "/".join(parts[: at + obeyed + 1])
        if part in POLICY_AT_ANY_DEPTH or f"{part}/{''.join(parts[at : at + 1])}" in POLICY_AT_ANY_DEPTH:
            return "/".join(parts[: at if part in POLICY_AT_ANY_DEPTH else at + 1])
    return None


def _is_obeyed_in_git(inner: Sequence[str], at: int) -> bool:
    """`inner`: the parts of a name below `.git`. Whether the part `at` this position is obeyed."""
    if inner[at] in ADDRESSES:  # not refs/remotes of a submodule, nor a worktree of that name
        return at == 0 or (inner[0] == "modules" and at > 1 and inner[at - 1] != "refs")
    return inner[at] in _OF_GIT and (at == 0 or inner[0] in ("modules", "worktrees"))


def _with_link_targets(home: Path, names: tuple[str, ...]) -> tuple[Path, ...]:
    """These places, and where they lead: some people keep theirs elsewhere. A link to the home itself or to a folder
    around it is a trick that would make everything private."""
    existing = frozenset[str]()
    with suppress(OSError):
        existing = frozenset(one.name for one in home.iterdir())
    places: list[Path] = []
    for name in names:
        places.append(home / name)
        if name.partition("/")[0] in existing:  # most do not exist, and lead nowhere
            places.append((home / name).resolve())
    return tuple(dict.fromkeys(place for place in places if not home.is_relative_to(place)))


def _policy(project: Path) -> tuple[Path, ...]:
    return tuple(project / name for name in POLICY)
