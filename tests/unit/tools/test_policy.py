from collections.abc import Callable
from pathlib import Path

import pytest

from talaria.tools.base import Claim
from talaria.tools.policy import ApprovalSettings, Decision, Policy, PolicyRequest, Verdict
from talaria.tools.protected import Protected

PERSON = Path("/home/ada")
HOME = PERSON / ".talaria"
PROJECT = PERSON / "project"


def decided(
    tool: str,
    claim: Claim,
    *,
    is_tainted: bool = False,
    has_private_data: bool = False,
    named: tuple[str, ...] = (),
    allow: tuple[str, ...] = (),
    ask: tuple[str, ...] = (),
    deny: tuple[str, ...] = (),
) -> Verdict:
    protected = Protected(PERSON, HOME, shared=(PERSON / "shared",))
    policy = Policy(ApprovalSettings(allow=allow, ask=ask, deny=deny), protected)
    spill, places = HOME / "spill" / "session", tuple(map(Path, named))
    return policy.decide(PolicyRequest(tool, claim, PROJECT, is_tainted, has_private_data, spill, places))


def reading(path: str) -> Claim:
    """A folder ends with a slash."""
    return Claim(reads=(Path(path),), folder=Path(path) if path.endswith("/") else Path(path).parent)


def writing(path: str) -> Claim:
    return Claim(writes=(Path(path),))


def running(command: str, *, is_confined: bool = True) -> Claim:
    return Claim(command=command, is_confined=is_confined)


@pytest.mark.parametrize(
    "path",
    [
        f"{HOME}/.env",
        f"{HOME}/state.db",
        f"{HOME}/config.yaml",
        f"{HOME}/plugins/mine/plugin.py",
        f"{HOME}/logs/talaria.log",
        f"{HOME}/spill/another-session/output.txt",
        "/etc/shadow",
        "/etc/ssh/ssh_host_ed25519_key",
        "/etc/ssh/ssh_host_of_tomorrow_key",
        "/etc/ssl/private/server.key",
        "/etc/letsencrypt/live/example.org/privkey.pem",
        "/etc/wireguard/wg0.conf",
        "/etc/NetworkManager/system-connections/home.nmconnection",
        "/run/secrets/key",
        f"{PERSON}/.local/share/uv/credentials/x",
        f"{PERSON}/.ssh/id_ed25519",
        f"{PERSON}/.aws/credentials",
        f"{PERSON}/.netrc",
        f"{PERSON}/.config/gh/hosts.yml",
        f"{PERSON}/.claude.json",
        f"{PERSON}/.gemini/oauth_creds.json",
        f"{PERSON}/.config/age/keys.txt",
        f"{PERSON}/.config/Bitwarden CLI/data.json",
        f"{PERSON}/snap/firefox/common/.mozilla/firefox/x/logins.json",
        f"{PERSON}/.var/app/org.mozilla.firefox/x",
        f"{PERSON}/.psql_history",
        f"{PERSON}/.local/share/fish/fish_history",
        f"{PERSON}/.electrum/wallets/default_wallet",
        "/proc/1/environ",
        "/proc/self/environ",
        "/proc/4242/task/4242/environ",
        "/proc/4242/mem",
        "/proc/4242/fd/3",
        "/proc/4242/root/etc/shadow",
        "/proc/4242/cwd/secret",
    ],
)
@pytest.mark.parametrize("claim", [reading, writing])
def test_private_places_are_refused_whatever_the_rules_say(path: str, claim: Callable[[str], Claim]) -> None:
    everything = ("read_file", "write_file", "*", f"*({path})")
    assert decided("read_file", claim(path), allow=everything).decision == "deny"


@pytest.mark.parametrize(
    "path",
    [
        f"{HOME}/spill/session/call-output.txt",
        f"{HOME}/skills/mine/SKILL.md",
        "/proc/cpuinfo",
        "/etc/ssh/ssh_host_rsa_key.pub",
    ],
)
def test_what_the_model_was_pointed_to_may_be_read(path: str) -> None:
    assert decided("read_file", reading(path)).decision == "allow"


@pytest.mark.parametrize("path", [f"{HOME}/spill/x", f"{HOME}/skills/x/SKILL.md", f"{HOME}/memories/x"])
def test_nothing_of_talarias_own_is_written_by_a_file_tool(path: str) -> None:
    assert decided("write_file", writing(path), allow=("write_file",)).decision == "deny"


@pytest.mark.parametrize(
    ("path", "decision"),
    [
        (f"{PROJECT}/src/main.py", "allow"),
        (f"{PROJECT}/.gitignore", "allow"),
        (f"{PROJECT}/.git/hooks/pre-commit", "ask"),
        (f"{PROJECT}/sub/repo/.git/hooks/pre-commit", "ask"),
        (f"{PROJECT}/.git/config", "ask"),
        (f"{PROJECT}/.git", "ask"),
        (f"{PROJECT}/.git/commondir", "ask"),
        (f"{PROJECT}/.git/modules/lib/hooks/pre-commit", "ask"),
        (f"{PROJECT}/.git/worktrees/w/commondir", "ask"),
        (f"{PROJECT}/.git/config.worktree", "ask"),
        (f"{PROJECT}/.git/info/exclude", "allow"),
        (f"{PROJECT}/.claude/settings.json", "ask"),
        (f"{PROJECT}/.talaria/plugins/x.py", "ask"),
        (f"{PROJECT}/.mcp.json", "ask"),
        (f"{PROJECT}/.vscode/tasks.json", "ask"),
        (f"{PERSON}/.bashrc", "ask"),
        (f"{PERSON}/notes.txt", "ask"),
        ("/etc/hosts", "ask"),
    ],
)
def test_writes_are_asked_about_outside_the_project_and_where_other_programs_look(
    path: str, decision: Decision
) -> None:
    assert decided("write_file", writing(path)).decision == decision


@pytest.mark.parametrize(
    ("path", "decision"),
    [
        (f"{PROJECT}/src/main.py", "allow"),
        (f"{PERSON}/shared/data.csv", "allow"),
        ("/etc/hosts", "allow"),
        ("/usr/share/doc/make/readme", "allow"),
        ("/sys/devices/system/cpu/online", "allow"),
        (f"{PERSON}/.rustup/toolchains/x/lib/x.rs", "allow"),
        (f"{PERSON}/project-of-another/main.py", "ask"),
        (f"{PERSON}/notes.txt", "ask"),
        (f"{PERSON}/", "ask"),
        (f"{PERSON}/.cargo/registry/src/x.rs", "ask"),
        ("/", "ask"),
        ("/tmp/x", "ask"),
        ("/mnt/stick/x", "ask"),
        ("/var/log/syslog", "ask"),
        ("/proc/kcore", "ask"),
        ("/sys/kernel/security", "ask"),
        ("/root/x", "ask"),
    ],
)
def test_reads_are_asked_about_outside_the_project_and_what_programs_need(path: str, decision: Decision) -> None:
    assert decided("read_file", reading(path)).decision == decision
    assert decided("read_file", reading(path), allow=("read_file",)).decision == "allow"


@pytest.mark.parametrize(
    ("project", "decision"), [(f"{PERSON}", "allow"), ("/home", "ask"), ("/", "ask"), (f"{PERSON}/letters", "allow")]
)
def test_a_folder_that_holds_the_whole_home_is_not_a_project(project: str, decision: Decision) -> None:
    policy = Policy(ApprovalSettings(), Protected(PERSON, HOME))
    letter = PolicyRequest("read_file", reading(f"{PERSON}/letters/bank.txt"), Path(project))
    assert policy.decide(letter).decision == decision
    assert policy.decide(PolicyRequest("read_file", reading(f"{PERSON}/.ssh/id"), Path(project))).decision == "deny"


@pytest.mark.parametrize(
    ("path", "covers", "longest"),
    [
        ("/data/old/x.txt", "/data/old/**", "always"),
        ("/data/old/", "/data/old/**", "always"),
        (f"{PERSON}/notes.txt", f"{PERSON}/notes.txt", "always"),
        (f"{PERSON}/", f"{PERSON}", "once"),
        ("/home/", "/home", "once"),
        ("/", "/", "once"),
        ("/x", "/x", "always"),
    ],
)
def test_a_yes_to_reading_covers_the_folder_but_never_a_whole_home(path: str, covers: str, longest: str) -> None:
    verdict = decided("read_file", reading(path))
    assert (verdict.covers, verdict.longest) == (covers, longest)
    assert decided("read_file", reading(path), is_tainted=True).longest in ("session", "once")


def test_a_call_that_reads_elsewhere_and_tells_others_is_asked_about_each_time() -> None:
    uploading = Claim(reads=(Path("/data/x"),), folder=Path("/data"), hosts=("x.org",))
    for has_private_data in (False, True):
        verdict = decided("upload", uploading, has_private_data=has_private_data)
        assert (verdict.decision, verdict.reason, verdict.longest) == ("ask", "/data/x is outside the project", "once")


@pytest.mark.parametrize(
    ("named", "decision"),
    [
        (f"{PERSON}/letters/bank.txt", "allow"),
        (f"{PERSON}/letters", "allow"),
        (f"{PERSON}/letters/bank", "ask"),
        (f"{PERSON}", "ask"),
        ("/", "ask"),
    ],
)
def test_what_the_person_named_is_read_but_not_a_whole_home(named: str, decision: Decision) -> None:
    assert decided("read_file", reading(f"{PERSON}/letters/bank.txt"), named=(named,)).decision == decision
    assert decided("read_file", reading(f"{PERSON}/.ssh/id"), named=(named, f"{PERSON}/.ssh/id")).decision == "deny"


@pytest.mark.parametrize("claim", [Claim(sends=True), Claim(reveals=True), Claim(hosts=("x.org",))])
def test_whatever_can_tell_others_something_is_asked_about_once_private_data_was_read(claim: Claim) -> None:
    assert decided("any", claim).decision == "allow"
    assert decided("any", claim, has_private_data=True).decision == "ask"
    assert decided("any", claim, has_private_data=True, allow=("any",)).decision == "allow"
    assert decided("any", Claim(is_untrusted=True), has_private_data=True).decision == "allow"


def test_confined_commands_are_allowed_and_others_asked_about() -> None:
    assert decided("terminal", running("rm -rf build")).decision == "allow"
    assert decided("terminal", running("ls", is_confined=False)).decision == "ask"


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf /",
        "/bin/rm --recursive --force ~/",
        "true;rm -rf ${HOME}",
        "cat x >/dev/sda",
        "cat x | tee /dev/nvme0n1",
        "sudo rm -rf --no-preserve-root /",
        "rm -fr ~",
        "rm -r -f $HOME",
        "cd /tmp && rm -rf /usr",
        "mkfs.ext4 /dev/sda1",
        "dd if=/dev/zero of=/dev/nvme0n1 bs=1M",
        "echo x > /dev/sda",
        "wipefs -a /dev/vda",
        ":(){ :|:& };:",
        "cat ~/.talaria/.env",
        f"sqlite3 {HOME}/state.db .dump",
        "cat /proc/1/environ",
        "tr '\\0' '\\n' < /proc/self/environ",
    ],
)
def test_ruin_and_secrets_are_refused_outside_the_sandbox_whatever_the_rules_say(command: str) -> None:
    assert decided("terminal", running(command, is_confined=False), allow=("terminal",)).decision == "deny"


@pytest.mark.parametrize(
    "command", ["rm -rf build", "rm -rf ./", "rm -rf /home/ada/project/x", "dd if=a of=b", "ls /dev"]
)
def test_everyday_commands_are_not_taken_for_ruin(command: str) -> None:
    assert decided("terminal", running(command, is_confined=False)).decision == "ask"


@pytest.mark.parametrize(
    ("command", "rule", "decision"),
    [
        ("git status", "terminal(git status)", "allow"),
        ("git  status", "terminal(git status)", "allow"),
        ("git status --short", "terminal(git status)", "ask"),
        ("git status --short", "terminal(git status *)", "allow"),
        ("git status", "terminal(git status *)", "allow"),
        ("git push origin", "terminal(git * origin)", "allow"),
        ("git push --force origin", "terminal(git * origin)", "ask"),
        ("git status; rm x", "terminal(git status *)", "ask"),
        ("git status && rm x", "terminal(git *)", "ask"),
        ("git status | sh", "terminal(git *)", "ask"),
        ("git status > /etc/passwd", "terminal(git *)", "ask"),
        ("git $(rm x)", "terminal(git *)", "ask"),
        ("git `rm x`", "terminal(git *)", "ask"),
        ("git status\nrm x", "terminal(git *)", "ask"),
        ("PATH=. git status", "terminal(git *)", "ask"),
        ("./git status", "terminal(./git *)", "ask"),
        ("./git status", "terminal(*)", "allow"),
        ("bin/git status", "terminal(bin/git *)", "ask"),
        ("/usr/bin/git status", "terminal(git *)", "ask"),
        ("sudo git status", "terminal(sudo *)", "ask"),
        ("sudo git status", "terminal(sudo git status)", "allow"),
        ("python3 -c 'evil'", "terminal(python3 *)", "ask"),
        ("env git status", "terminal(env *)", "ask"),
        ("git status", "web_fetch(git status)", "ask"),
        ("git status", "term*", "allow"),
        ("git status", "terminal", "allow"),
    ],
)
def test_a_rule_allows_a_command_only_if_nothing_else_can_happen(command: str, rule: str, decision: Decision) -> None:
    assert decided("terminal", running(command, is_confined=False), allow=(rule,)).decision == decision


@pytest.mark.parametrize(
    "command",
    [
        "git push",
        "/usr/bin/git push",
        "cd x && git push",
        "true; git push",
        "(git push)",
        "echo $(git push)",
        "if true; then git push; fi",
        "git   push",
        "'git' push",
    ],
)
def test_a_rule_denies_a_command_wherever_it_stands(command: str) -> None:
    assert decided("terminal", running(command), deny=("terminal(git push *)",)).decision == "deny"


def test_a_rule_denies_whatever_follows() -> None:
    assert decided("terminal", running("curl --version"), deny=("terminal(curl)",)).decision == "deny"
    assert decided("terminal", running("curly"), deny=("terminal(curl)",)).decision == "allow"


def test_denied_counts_more_than_asked_and_asked_more_than_allowed() -> None:
    rule = ("read_file",)
    assert decided("read_file", reading("/x"), allow=rule, ask=rule).decision == "ask"
    assert decided("read_file", reading("/x"), allow=rule, ask=rule, deny=rule).decision == "deny"


@pytest.mark.parametrize(
    ("path", "rule", "is_covered"),
    [
        ("/data/a.txt", "write_file(/data/*)", True),
        ("/data/b/a.txt", "write_file(/data/*)", False),
        ("/data/b/a.txt", "write_file(/data/**)", True),
        ("/data", "write_file(/data/**)", True),
        ("/database/a", "write_file(/data/**)", False),
        ("/data/x", "write_file(x)", False),
        ("/data/a.txt", "write_file(/data/?.txt)", True),
        ("/data/a.txt", "patch(/data/**)", False),
        ("/data/a.txt", "*(/data/**)", True),
    ],
)
def test_paths_are_matched_whole(path: str, rule: str, *, is_covered: bool) -> None:
    assert (decided("write_file", writing(path), allow=(rule,)).decision == "allow") == is_covered


@pytest.mark.parametrize(
    ("host", "rule", "is_covered"),
    [
        ("python.org", "web_fetch(python.org)", True),
        ("docs.python.org", "web_fetch(python.org)", False),
        ("docs.python.org", "web_fetch(*.python.org)", True),
        ("python.org", "web_fetch(*.python.org)", True),
        ("evilpython.org", "web_fetch(*.python.org)", False),
        ("PYTHON.org.", "web_fetch(python.org)", True),
    ],
)
def test_hosts_are_matched_whole(host: str, rule: str, *, is_covered: bool) -> None:
    assert (decided("web_fetch", Claim(hosts=(host,)), deny=(rule,)).decision == "deny") == is_covered


def test_to_allow_a_rule_must_cover_all_that_is_touched_and_to_deny_any_of_it() -> None:
    both = Claim(writes=(Path("/a/x"), Path("/b/x")))
    assert decided("write_file", both, allow=("write_file(/a/**)",)).decision == "ask"
    assert decided("write_file", both, deny=("write_file(/a/**)",)).decision == "deny"


def test_what_tells_others_something_is_asked_about_only_after_strangers_had_a_word() -> None:
    sending = Claim(sends=True, is_untrusted=True)
    assert decided("mcp_mail_send", sending).decision == "allow"
    assert decided("mcp_mail_send", sending, is_tainted=True).decision == "ask"
    assert decided("mcp_mail_send", sending, is_tainted=True, allow=("mcp_mail_*",)).decision == "allow"
    for looking in (Claim(hosts=("x.org",), is_untrusted=True), Claim(reveals=True, is_untrusted=True)):
        assert decided("web_fetch", looking, is_tainted=True).decision == "allow"


def test_a_yes_lasts_only_where_it_will_be_the_same_again() -> None:
    assert decided("terminal", running("ls -l /data", is_confined=False)).longest == "always"
    assert decided("terminal", running("git push", is_confined=False)).longest == "session"
    assert decided("terminal", running("make && make install", is_confined=False)).longest == "session"
    assert decided("terminal", running("python x.py", is_confined=False)).longest == "session"
    assert decided("terminal", running("git push", is_confined=False), is_tainted=True).longest == "once"
    bare = Claim(command="git push", is_confined=False, reveals=True)
    assert decided("terminal", bare, has_private_data=True).longest == "session"
    assert decided("terminal", bare, has_private_data=True, is_tainted=True).longest == "once"
    assert decided("web_search", Claim(reveals=True), has_private_data=True, is_tainted=True).longest == "session"
    assert decided("write_file", writing("/data/x")).longest == "always"


@pytest.mark.parametrize("rule", ["", "terminal(", "terminal(git) x", "two words"])
def test_a_rule_that_is_none_is_told(rule: str) -> None:
    with pytest.raises(ValueError, match="is not a rule"):
        ApprovalSettings(allow=(rule,))


def test_words_of_any_length_are_read_in_time() -> None:
    """Each of these took minutes when every word was looked at from every other."""
    for command in ("rm " * 30_000, "dd " * 30_000 + "of=", ";" * 90_000, "> " * 40_000, "a" * 99_000):
        assert decided("terminal", running(command, is_confined=False), deny=("terminal(evil *)",)).decision == "ask"


def test_secrets_that_are_kept_elsewhere_are_known_by_where_they_lead(tmp_path: Path) -> None:
    (tmp_path / "dotfiles/ssh").mkdir(parents=True)
    (tmp_path / ".ssh").symlink_to(tmp_path / "dotfiles/ssh")
    protected = Protected(tmp_path, tmp_path / ".talaria")
    assert protected.is_secret(tmp_path / "dotfiles/ssh/id_ed25519")
    assert not protected.is_secret(tmp_path / "dotfiles/vimrc")


@pytest.mark.parametrize("tool", ["web_search", "process", "mcp_mail_send"])
def test_a_star_stands_for_whatever_a_tool_does(tool: str) -> None:
    assert decided(tool, Claim(sends=True), deny=(f"{tool}(*)",)).decision == "deny"


def test_what_the_settings_of_a_repository_name_is_asked_about(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text("[core]\n hooksPath = tools/hooks\n[include]\n path = ../more\n")
    policy = Policy(ApprovalSettings(), Protected(PERSON, HOME))
    asked = {
        name: policy.decide(PolicyRequest("write_file", writing(f"{tmp_path}/{name}"), tmp_path)).decision
        for name in ("tools/hooks/pre-commit", "more", "tools/other", "hooks/pre-commit")
    }
    assert asked == {
        "tools/hooks/pre-commit": "ask",
        "more": "ask",
        "tools/other": "allow",
        "hooks/pre-commit": "allow",
    }
