from pathlib import Path

import pytest

from talaria.config.load import load
from talaria.core.errors import BadConfig
from talaria.core.secret import Secret
from talaria.tools.mcp.server_entries import ServerEntry, ToolFilter, digest, make_environment, redact_secrets

GIT = "{command: uvx, args: [mcp-server-git, --port, 8080], env: {TOKEN: '${T}'}, timeout: 5, tools: {include: [a]}}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


@pytest.mark.parametrize(
    "text", [f"mcp_servers: {{git: {GIT}}}", f"mcp: {{servers: {{git: {GIT}}}}}", f"mcpServers: {{git: {GIT}}}"]
)
def test_servers_are_read_wherever_programs_keep_them(file: Path, text: str) -> None:
    file.write_text(text)
    entry = load(file, {"T": "s3cret"}).all_mcp_servers["git"]
    assert (entry.command, [str(word) for word in entry.args]) == ("uvx", ["mcp-server-git", "--port", "8080"])
    assert (entry.env, entry.timeout, entry.tools) == ({"TOKEN": Secret("s3cret")}, 5.0, ToolFilter(include=("a",)))
    assert "s3cret" not in repr(entry)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("mcp_servers: {a: {}}", "mcp_servers.* is wrong: an MCP server has either a `command` or a `url`."),
        ("mcp_servers: {a: {command: x, url: 'http://x'}}", "mcp_servers.* is wrong: an MCP server has either"),
        ("mcp_servers: {a: {url: 'file:///etc'}}", "the `url` of an MCP server begins with http:// or https://"),
        ("mcp_servers: {a: {comand: x}}", "there is no setting 'mcp_servers.*.comand'; did you mean 'command'?"),
        ("mcp: {servers: {a: {command: x, timeout: 0}}}", "mcp.servers.*.timeout is wrong"),
        ("mcp_servers: {a: {command: x}}\nmcpServers: {a: {command: y}}", "the MCP server 'a' is named twice."),
    ],
)
def test_mistakes_are_one_sentence(file: Path, text: str, sentence: str) -> None:
    file.write_text(text)
    with pytest.raises(BadConfig) as caught:
        load(file, {})
    assert sentence in str(caught.value)


def test_digest_follows_what_may_change_the_tools_and_tells_no_secret() -> None:
    entry = ServerEntry(command="x", env={"K": Secret("v1")})
    assert digest(entry) == digest(ServerEntry(command="x", env={"K": Secret("v1")}, timeout=3, enabled=False))
    others = [ServerEntry(command="x", env={"K": Secret("v2")}), ServerEntry(command="x", args=("v1",))]
    assert digest(entry) not in {digest(other) for other in others}


def test_entry_goes_over_what_is_passed_on() -> None:
    entry = ServerEntry(command="x", env={"HOME": Secret("/other")})
    assert make_environment(entry, {"HOME": "/me", "TERM": "vt100", "AWS_KEY": "k"}) == {
        "HOME": "/other",
        "TERM": "vt100",
    }


def test_place_tells_no_password() -> None:
    assert ServerEntry(url="https://me:pw@host/mcp?key=1").place == "https://host/mcp"


def test_redaction_takes_the_longest_first() -> None:
    entry = ServerEntry(command="x", env={"A": Secret("abcd"), "B": Secret("abcdef"), "C": Secret("1")})
    assert redact_secrets("abcdef abcd 1", entry) == "••• ••• 1"


def test_address_is_told_without_what_follows_it() -> None:
    entry = ServerEntry(url="https://host/mcp?key=k-1")
    assert redact_secrets("no answer from https://host/mcp?key=k-1", entry) == "no answer from https://host/mcp"
