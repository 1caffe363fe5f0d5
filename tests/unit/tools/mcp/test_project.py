from pathlib import Path

import pytest

from talaria.core.errors import BadConfig
from talaria.core.secret import Secret
from talaria.tools.mcp import project_servers
from talaria.tools.mcp.server_entries import ServerEntry

TEXT = """{"mcpServers": {
  "notes": {"type": "stdio", "command": "./serve", "args": ["${MODE:-plain}"], "env": {"K": "${K}"}, "autoApprove": []},
  "off": {"url": "https://example.org/mcp", "disabled": true}
}}"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    (made / ".mcp.json").write_text(TEXT)
    return made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def found(folder: Path) -> project_servers.Project:
    one = project_servers.find(folder)
    assert one is not None
    return one


def test_project_counts_only_after_somebody_agreed(folder: Path, home: Path) -> None:
    before = project_servers.choose({}, folder, home, {"K": "v"})
    assert before.entries == {}
    assert before.notices == (f"{folder / '.mcp.json'} is not used until you agree to it: talaria mcp trust",)

    project_servers.trust(found(folder), home)
    after = project_servers.choose({}, folder, home, {"K": "v"})
    assert after.notices == ()
    notes = ServerEntry(command="./serve", args=("plain",), env={"K": Secret("v")}, cwd=str(folder), type="stdio")
    assert after.entries == {"notes": notes, "off": ServerEntry(url="https://example.org/mcp", enabled=False)}


def test_changed_file_is_asked_about_again(folder: Path, home: Path) -> None:
    project_servers.trust(found(folder), home)
    (folder / ".mcp.json").write_text(TEXT.replace("./serve", "./steal"))
    assert project_servers.choose({}, folder, home, {"K": "v"}).entries == {}


def test_agreement_is_for_one_place(folder: Path, home: Path, tmp_path: Path) -> None:
    project_servers.trust(found(folder), home)
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / ".mcp.json").write_text(TEXT)
    assert not project_servers.is_trusted(found(copy), home)


def test_damaged_agreements_agree_to_nothing(folder: Path, home: Path) -> None:
    project_servers.trust(found(folder), home)
    (home / "mcp-trust.json").write_text("{")
    assert not project_servers.is_trusted(found(folder), home)


def test_settings_go_before_the_project(folder: Path, home: Path) -> None:
    project_servers.trust(found(folder), home)
    own = ServerEntry(command="mine")
    assert project_servers.choose({"notes": own}, folder, home, {"K": "v"}).entries["notes"] == own


def test_folder_without_the_file_adds_nothing(tmp_path: Path, home: Path) -> None:
    assert project_servers.choose({}, tmp_path, home, {}) == project_servers.ChosenServers({})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not valid JSON"),
        ('{"mcpServers": [1]}', "mcpServers must hold servers by name"),
        ('{"mcpServers": {"a": 1}}', "the server a is not an object"),
        ('{"mcpServers": {"a": {}}}', "the server a is not valid: an MCP server has either"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"K": "${UNSET}"}}}}', "it uses ${UNSET}, which is not set"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"K": 1}}}}', "Expected `str`"),
    ],
)
def test_mistakes_in_a_trusted_file_are_told_and_hurt_nobody(
    folder: Path, home: Path, text: str, sentence: str
) -> None:
    (folder / ".mcp.json").write_text(text)
    project_servers.trust(found(folder), home)
    own = {"mine": ServerEntry(command="mine")}
    chosen = project_servers.choose(own, folder, home, {})
    assert chosen.entries == own
    (notice,) = chosen.notices
    assert sentence in notice
    with pytest.raises(BadConfig):
        project_servers.entries(found(folder), {})


def test_only_the_person_can_take_a_server_out_of_the_sandbox(folder: Path) -> None:
    (folder / ".mcp.json").write_text('{"mcpServers": {"a": {"command": "x", "sandbox": {"network": ["a.example"]}}}}')
    assert project_servers.entries(found(folder), {})["a"].needs.hosts == ("a.example",)
    (folder / ".mcp.json").write_text('{"mcpServers": {"a": {"command": "x", "sandbox": false}}}')
    with pytest.raises(BadConfig, match=r"only your config\.yaml can take a server out of the sandbox"):
        project_servers.entries(found(folder), {})
