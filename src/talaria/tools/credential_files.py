"""Where programs keep keys, tokens, cookies and the like. No tool reads these, whatever anybody says.

Only places that hold little else: their list need not be complete, because whatever is outside the project and is not
needed to run programs is asked about.
"""

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
"""Also as snaps and flatpaks, where password managers are, too; and some of macOS."""
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
"""With what CI services and registries are told."""
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
