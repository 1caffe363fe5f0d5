"""The home of plugins: our settings are seen there, what plugins write stays there, and no link is followed."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from talaria.compat.hermes.plugin_home import PluginHome
from talaria.config import paths
from talaria.config.secrets import read_env

OURS = """\
model: {default: demo, api_key: '${DEMO_KEY}'}
agent: {max_turns: 3}
"""
KEY = "sk-0123456789abcdefABCDEF"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text(OURS)
    return home


@pytest.fixture
def plugins(home: Path) -> PluginHome:
    one = PluginHome(home)
    one.prepare({})
    return one


def written(plugins: PluginHome) -> dict[str, Any]:
    """As a plugin reads it that opens the file itself."""
    return yaml.safe_load((plugins.path / "config.yaml").read_text()) or {}


def write(plugins: PluginHome, document: object) -> None:
    (plugins.path / "config.yaml").write_text(yaml.safe_dump(document))


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_who_opens_the_files_finds_our_settings_and_no_secret(home: Path) -> None:
    (home / "config.yaml").write_text(f"""\
model: {{default: demo, api_key: {KEY}}}
providers:
  own:
    base_url: 'http://me:{KEY}@here'
    api_key: ${{OWN_KEY}}
    headers: {{X-Plain: hush}}
    api_keys: [{KEY}, '${{B}}']
gateway: {{platforms: {{telegram: {{token: '{KEY}', allowed_users: ['7']}}}}}}
plugins: {{entries: {{almanac: {{api_key: {KEY}, place: here}}}}}}
""")
    (home / ".env").write_text(f"OWN_KEY={KEY}\n")
    plugins = PluginHome(home)
    plugins.prepare({"OWN_KEY": KEY, "DEMO_KEY": KEY})
    assert written(plugins) == {
        "model": {"default": "demo"},
        "providers": {"own": {"api_key": "${OWN_KEY}", "headers": {}, "api_keys": ["${B}"]}},
        "gateway": {"platforms": {"telegram": {"allowed_users": ["7"]}}},
        "plugins": {"entries": {"almanac": {"place": "here"}}},
    }
    assert [file for file in plugins.path.iterdir() if file.is_file() and KEY in file.read_text()] == []
    assert (mode(plugins.path), mode(plugins.path / "config.yaml"), mode(plugins.path / ".env")) == (
        0o700,
        0o600,
        0o600,
    )
    assert read_env(plugins.path / ".env") == {}


def test_who_asks_has_the_secrets_too(home: Path, plugins: PluginHome) -> None:
    assert plugins.settings({"DEMO_KEY": KEY})["model"] == {"default": "demo", "api_key": KEY}


def test_a_plugin_finds_its_own_files_where_hermes_has_them(home: Path, plugins: PluginHome) -> None:
    (home / "plugins" / "almanac").mkdir(parents=True)
    (home / "plugins" / "almanac" / "moons.json").write_text("[]")
    assert (plugins.path / "plugins" / "almanac" / "moons.json").read_text() == "[]"


def test_what_a_plugin_wrote_into_the_file_stays_and_is_seen(plugins: PluginHome) -> None:
    write(plugins, {**written(plugins), "streaming": False, "lossless": {"threshold": 3}, "agent": {"max_turns": 9}})
    for _ in range(2):
        plugins.prepare({})
        assert written(plugins)["lossless"] == {"threshold": 3}
        found = plugins.settings({})
        assert (found["streaming"], found["lossless"], found["agent"]) == (False, {"threshold": 3}, {"max_turns": 9})


def test_what_the_person_says_later_counts_more_than_a_plugins_copy(home: Path, plugins: PluginHome) -> None:
    plugins.change([(("agent", "max_turns"), 9), (("lossless", "depth"), 1)], {})
    assert plugins.settings({})["agent"] == {"max_turns": 9}
    (home / "config.yaml").write_text("model: {default: demo}\nagent: {max_turns: 5, max_wait_s: 1}\n")
    assert plugins.settings({})["agent"] == {"max_turns": 5, "max_wait_s": 1}
    plugins.prepare({})
    assert written(plugins)["agent"] == {"max_turns": 5, "max_wait_s": 1}
    assert plugins.settings({})["lossless"] == {"depth": 1}
    plugins.change([(("agent", "max_turns"), 7)], {})
    assert plugins.settings({})["agent"]["max_turns"] == 7


def test_a_change_counts_also_if_the_person_changed_the_same_a_moment_ago(home: Path, plugins: PluginHome) -> None:
    (home / "config.yaml").write_text("agent: {max_turns: 4}\n")
    plugins.change([(("agent", "max_turns"), 8)], {})
    assert plugins.settings({})["agent"] == {"max_turns": 8}


def test_a_setting_that_the_person_takes_out_is_gone_for_plugins_too(home: Path, plugins: PluginHome) -> None:
    write(plugins, {**written(plugins), "agent": {"max_turns": 3, "own": 1}})
    (home / "config.yaml").write_text("model: {default: demo}\n")
    plugins.prepare({})
    assert written(plugins)["agent"] == {"own": 1}


def test_a_stale_copy_after_a_crash_is_not_taken_for_a_wish(home: Path, plugins: PluginHome) -> None:
    """Between the two files that are written: the first is new, what says what was copied is old."""
    copied = (plugins.path / ".settings.yaml").read_text()
    (home / "config.yaml").write_text("agent: {max_turns: 5}\n")
    plugins.prepare({})
    (plugins.path / ".settings.yaml").write_text(copied)
    (home / "config.yaml").write_text("agent: {max_turns: 6}\n")
    assert plugins.settings({})["agent"] == {"max_turns": 6}


def test_secrets_that_a_plugin_dumped_into_its_file_are_taken_out(plugins: PluginHome) -> None:
    write(plugins, {**plugins.settings({"DEMO_KEY": KEY}), "own": 1})
    plugins.prepare({"DEMO_KEY": KEY})
    assert KEY not in (plugins.path / "config.yaml").read_text()
    assert (written(plugins)["own"], mode(plugins.path / "config.yaml")) == (1, 0o600)


@pytest.mark.parametrize("text", ["own: [", "- a", "when: 2025-99-99", "own: &a {b: *a}"])
def test_a_file_that_a_plugin_broke_is_kept_beside_a_new_one(plugins: PluginHome, text: str) -> None:
    (plugins.path / "config.yaml").write_text(text)
    assert plugins.settings({})["agent"] == {"max_turns": 3}
    if "&a" not in text:
        plugins.prepare({})
        assert (plugins.path / "config.yaml.broken").read_text() == text
        assert written(plugins)["agent"] == {"max_turns": 3}


def test_secrets_of_plugins_are_theirs_alone_whatever_a_plugin_made_of_the_file(plugins: PluginHome) -> None:
    file = plugins.path / ".env"
    file.write_text("ACME_KEY=1\nnonsense\nTALARIA_SAFE_MODE=1\nB=2\n")
    file.chmod(0o644)
    plugins.prepare({})
    assert mode(file) == 0o600
    assert plugins.secrets() == {"ACME_KEY": "1", "B": "2"}
    plugins.save_secret("ACME_KEY", "3")
    assert file.read_text() == "nonsense\nTALARIA_SAFE_MODE=1\nB=2\nACME_KEY=3\n"


@pytest.mark.parametrize("name", ["config.yaml", ".env", ".settings.yaml"])
def test_a_link_that_a_plugin_left_is_not_written_through(home: Path, plugins: PluginHome, name: str) -> None:
    victim = home / "victim"
    victim.write_text("mine: 1\n")
    victim.chmod(0o644)
    (plugins.path / name).unlink()
    (plugins.path / name).symlink_to(victim)
    for attempt in (
        lambda: plugins.prepare({}),
        lambda: plugins.change([(("a",), 1)], {}),
        lambda: plugins.save_secret("A", "1"),
    ):
        try:
            attempt()
        except OSError:
            continue
    assert (victim.read_text(), mode(victim)) == ("mine: 1\n", 0o644)
    assert plugins.settings({})["agent"] == {"max_turns": 3}


def test_a_home_that_is_a_link_is_refused(home: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (home / "hermes").symlink_to(elsewhere)
    with pytest.raises(NotADirectoryError):
        PluginHome(home).prepare({})
    assert list(elsewhere.iterdir()) == []
    assert PluginHome(home).settings({})["agent"] == {"max_turns": 3}
    assert PluginHome(home).secrets() == {}


def test_a_file_that_has_not_changed_is_not_written_again(plugins: PluginHome) -> None:
    before = (plugins.path / "config.yaml").stat().st_ino
    plugins.prepare({})
    assert (plugins.path / "config.yaml").stat().st_ino == before


def test_every_name_that_we_use_in_a_home_is_known_as_ours() -> None:
    source = Path(paths.__file__).parents[1]
    used = {
        name
        for file in source.rglob("*.py")
        if not {"testing", "platforms", "sandbox", "compat"} & {*file.relative_to(source).parts}
        for name in re.findall(r"\b(?:home\)?|parent\.parent) / \"([^\"]+)\"", file.read_text())
    }
    told = (source.parents[1] / "docs" / "reference" / "settings.md").read_text()
    used.update(re.findall(r"`([^`/]+)/?`", told.partition("The home also holds")[2].partition("\n\n")[0]))
    assert {"config.yaml", "run", "spill", "mcp-trust.json", "todos", "checkpoints", "SOUL.md"} <= used
    assert [name for name in used - {"hermes", ".mcp.json"} if not paths.is_own(name)] == []
    for name in ("state.db-wal", "config.yaml.bak", "config.yaml~", ".env", "history", "memories", "platforms"):
        assert paths.is_own(name)
    for name in ("lcm.db", "lcm.db-wal", "honcho.json", "history.json", "statement", "hindsight"):
        assert not paths.is_own(name)
