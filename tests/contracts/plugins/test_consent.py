"""Whose code runs: only of plugins that the person has agreed to, as they were then."""

import importlib.util
import json
import os
import py_compile
import sys
from pathlib import Path

import pytest
from tests.contracts.plugins.conftest import Install, OpenHarness, module, problems_of, statuses, write_plugin

from talaria.core.errors import BadConfig
from talaria.plugins.consent import content_of

PLAIN = "def register(ctx): pass\n"


def marked(home: Path, mark: str = "ran") -> str:
    """A plugin that leaves a file behind when it is imported."""
    return f"open({str(home / mark)!r}, 'w').close()\n{PLAIN}"


async def test_no_plugin_is_loaded_because_its_folder_is_there(
    harness: OpenHarness, install: Install, home: Path
) -> None:
    install("other", PLAIN)
    install("lurking", marked(home))
    write_plugin(home / "plugins" / "memory" / "keen", marked(home))
    write_plugin(home / "plugins" / "context_engine" / "eager", marked(home))
    async with harness("other", memory={"provider": "keen"}, context={"engine": "eager"}) as one:
        assert statuses(one) == {
            "other": "loaded",
            "lurking": "available",
            "memory/keen": "available",
            "context_engine/eager": "available",
        }
    assert not (home / "ran").exists()


async def test_a_name_in_the_settings_is_consent_to_what_is_there_now_and_that_is_told_once(
    harness: OpenHarness, install: Install, home: Path
) -> None:
    install("new", PLAIN)
    async with harness("new") as one:
        assert list(one.app.left_out) == ["Plugin new is loaded for the first time, and pinned as it is now."]
    assert len(json.loads((home / "plugins.json").read_text())["new"]["content"]) == 64
    assert (home / "plugins.json").stat().st_mode & 0o777 == 0o600
    async with harness("new") as one:
        assert (statuses(one), list(one.app.left_out)) == ({"new": "loaded"}, [])


CHANGES = {
    "its code": "__init__.py",
    "its manifest": "plugin.yaml",
    "code further down": "inner/deep/more.py",
    "a text that it reads": "data/prompt.md",
    "a library": "inner/fast.so",
    "code behind a link to a file": "linked.py",
    "code behind a link to a folder": "elsewhere/there.py",
    "bytecode without its source": "compiled.pyc",
    "code of another kind": "node_modules/main.js",
    "a module among cached bytecode": "__pycache__/trap.py",
    "bytecode that is a module": "__pycache__/trap.pyc",
    "a module in a folder named like data": "state.db/part.py",
    "a module in a folder named like a journal": "state-journal/part.py",
    "a file named like a folder that is left out": ".venv",
    "a module that was not there": "brand_new.py",
}


@pytest.mark.parametrize("what", CHANGES)
async def test_one_changed_byte_and_it_is_not_loaded_but_told_of(
    harness: OpenHarness, install: Install, home: Path, tmp_path: Path, what: str
) -> None:
    folder = install("pinned", marked(home))
    install("other", PLAIN)
    outside = tmp_path / "outside"
    (folder / "inner" / "deep").mkdir(parents=True)
    (folder / "data").mkdir()
    outside.mkdir()
    (folder / "linked.py").symlink_to(outside / "file.py")
    (folder / "elsewhere").symlink_to(outside)
    names = ("inner/deep/more.py", "data/prompt.md", "inner/fast.so", "compiled.pyc")
    for file in (outside / "file.py", outside / "there.py", *(folder / name for name in names)):
        file.write_text("1\n")
    async with harness("pinned", "other") as one:
        assert statuses(one) == {"pinned": "loaded", "other": "loaded"}
    (home / "ran").unlink()

    (folder / CHANGES[what]).parent.mkdir(exist_ok=True)
    with (folder / CHANGES[what]).open("a") as file:
        file.write("#")

    async with harness("pinned", "other") as one:
        assert statuses(one) == {"pinned": "changed", "other": "loaded"}
        assert problems_of(one, "pinned") == ["has changed since you enabled it"]
        (told,) = list(one.app.left_out)
        assert "Plugin pinned has changed" in told
        assert "talaria plugins enable pinned" in told
    assert not (home / "ran").exists()


async def test_a_file_that_moves_or_goes_is_a_change(harness: OpenHarness, install: Install) -> None:
    for name in ("moved", "gone"):
        (install(name, PLAIN) / "part.py").write_text("1\n")
    async with harness("moved", "gone") as one:
        assert set(statuses(one).values()) == {"loaded"}
    (one.home / "plugins" / "moved" / "part.py").rename(one.home / "plugins" / "moved" / "trap.py")
    (one.home / "plugins" / "gone" / "part.py").unlink()
    async with harness("moved", "gone") as one:
        assert set(statuses(one).values()) == {"changed"}


async def test_what_a_plugin_writes_beside_its_code_is_no_change(harness: OpenHarness, install: Install) -> None:
    folder = install("busy", "from . import part\ndef register(ctx): pass\n")
    (folder / "part.py").write_text("")
    async with harness("busy") as one:
        assert statuses(one) == {"busy": "loaded"}
    for name in ("state.db", "state.db-wal", "state.db-shm", "x.sqlite3", "plugin.log", ".git/index", ".venv/a.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("data")
    async with harness("busy") as one:
        assert statuses(one) == {"busy": "loaded"}


async def test_bytecode_that_lies_beside_the_code_is_not_run_in_its_place(
    harness: OpenHarness, install: Install, home: Path
) -> None:
    """Of the kind that Python takes without looking at the source."""
    folder = install("cached", "from . import part\ndef register(ctx): pass\n")
    part, evil = folder / "part.py", home / "evil.py"
    part.write_text("SAID = 'what was agreed to'\n")
    async with harness("cached") as one:
        assert statuses(one) == {"cached": "loaded"}
    evil.write_text("SAID = 'something else'\n")
    plant(evil, part)

    async with harness("cached") as one:
        assert statuses(one) == {"cached": "loaded"}
        assert module("cached").part.SAID == "what was agreed to"


async def test_nor_is_bytecode_of_a_module_that_is_imported_late(
    harness: OpenHarness, install: Install, home: Path
) -> None:
    """Also while another application comes and goes."""
    folder = install("lazy", "def register(ctx): pass\ndef late():\n    from . import part\n    return part.SAID\n")
    part, evil = folder / "part.py", home / "evil.py"
    part.write_text("SAID = 'what was agreed to'\n")
    evil.write_text("SAID = 'something else'\n")
    plant(evil, part)
    before = sys.pycache_prefix
    async with harness("lazy") as one:
        late = module("lazy").late
        async with harness("lazy"):
            pass
        assert statuses(one) == {"lazy": "loaded"}
        assert late() == "what was agreed to"
    assert sys.pycache_prefix == before


def plant(source: Path, module: Path) -> None:
    cached = Path(importlib.util.cache_from_source(str(module)))
    cached.parent.mkdir(exist_ok=True)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(source), cfile=str(cached), invalidation_mode=mode, doraise=True)


async def test_links_that_go_in_circles_are_followed_once(harness: OpenHarness, install: Install) -> None:
    folder = install("round", PLAIN)
    (folder / "self").symlink_to(folder)
    (folder / "up").symlink_to(folder.parent)
    async with harness("round") as one:
        assert statuses(one)["round"] == "loaded"


async def test_what_cannot_be_read_whole_is_not_loaded(harness: OpenHarness, install: Install) -> None:
    install("good", PLAIN)
    folder = install("odd", PLAIN)
    (folder / "link.py").symlink_to("x" * 300)
    async with harness("good", "odd") as one:
        assert statuses(one) == {"good": "loaded", "odd": "failed"}
        assert problems_of(one, "odd")[0].startswith("cannot be read: ")


async def test_disabled_counts_more_than_enabled(harness: OpenHarness, install: Install, home: Path) -> None:
    install("one", marked(home))
    write_plugin(home / "plugins" / "kind" / "two", marked(home), name="second")
    install("three", PLAIN)
    async with harness("one", "kind/two", "three", plugins={"disabled": ["one", "second"]}) as one:
        assert statuses(one) == {"one": "disabled", "kind/two": "disabled", "three": "loaded"}
    assert not (home / "ran").exists()


async def test_a_plugin_that_borrows_the_name_of_another_is_not_loaded_with_it(
    harness: OpenHarness, install: Install, home: Path
) -> None:
    """The person has agreed to the one; the other came later, perhaps with a folder that somebody else made."""
    install("trusted", PLAIN)
    async with harness("trusted") as one:
        assert statuses(one) == {"trusted": "loaded"}
    write_plugin(home / "plugins" / "kind" / "impostor", marked(home), name="trusted")
    async with harness("trusted") as one:
        assert statuses(one)["trusted"] == "loaded"
        assert statuses(one)["kind/impostor"] != "loaded"
    assert not (home / "ran").exists()


async def test_a_name_that_two_plugins_go_by_enables_neither_and_that_is_told(harness: OpenHarness, home: Path) -> None:
    for kind in ("one", "two"):
        write_plugin(home / "plugins" / kind / "twin", marked(home))
    async with harness("twin") as one:
        assert set(statuses(one).values()) == {"available"}
        assert list(one.app.left_out) == [
            "Several plugins are called twin; enable one of them by its full name: one/twin, two/twin."
        ]
    assert not (home / "ran").exists()


ENVIRONMENT = {"ANTHROPIC_API_KEY": "k-1", "ANTHROPIC_API_KEY_2": "k-2", "OPENAI_API_KEY": "k-3", "TEAPOT_KEY": "t"}


async def test_a_plugin_is_given_what_the_settings_have_but_of_keys_of_models_only_those_that_it_declares(
    harness: OpenHarness, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    install("needy", "import os\nSEEN = dict(os.environ)\ndef register(ctx): pass\n", requires_env="[OPENAI_API_KEY]")
    async with harness("needy", environment=ENVIRONMENT):
        seen = module("needy").SEEN
        assert {name: seen[name] for name in ENVIRONMENT if name in seen} == {
            "OPENAI_API_KEY": "k-3",
            "TEAPOT_KEY": "t",
        }
    assert not ENVIRONMENT.keys() & os.environ.keys()


async def test_one_that_is_not_loaded_cannot_declare_a_key_for_the_others(
    harness: OpenHarness, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has agreed to what its manifest says now."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    install("other", "import os\nSEEN = dict(os.environ)\ndef register(ctx): pass\n")
    folder = install("turned", PLAIN)
    async with harness("other", "turned") as one:
        assert set(statuses(one).values()) == {"loaded"}
    with (folder / "plugin.yaml").open("a") as file:
        file.write("requires_env: [OPENAI_API_KEY]\n")
    async with harness("other", "turned", environment=ENVIRONMENT) as one:
        assert statuses(one) == {"other": "loaded", "turned": "changed"}
        assert "OPENAI_API_KEY" not in module("other").SEEN


async def test_a_project_cannot_take_the_place_of_a_plugin_that_was_agreed_to(
    harness: OpenHarness, install: Install, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("trusted", PLAIN)
    async with harness("trusted") as one:
        assert statuses(one) == {"trusted": "loaded"}
    write_plugin(tmp_path / "work" / ".talaria" / "plugins" / "x", marked(home), name="trusted")
    write_plugin(tmp_path / "work" / ".talaria" / "plugins" / "a" / "b", marked(home), name="trusted")
    monkeypatch.chdir(tmp_path / "work")
    async with harness("trusted", plugins={"project": True}) as one:
        assert "loaded" not in statuses(one).values()
    assert not (home / "ran").exists()


async def test_a_plugin_that_came_with_a_project_is_not_agreed_to_by_a_name_in_the_settings(
    harness: OpenHarness, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plugin(tmp_path / "work" / ".talaria" / "plugins" / "helper", marked(home))
    monkeypatch.chdir(tmp_path / "work")
    async with harness("helper", plugins={"project": True}) as one:
        assert statuses(one) == {"helper": "changed"}
        assert "you have not agreed to it" in problems_of(one, "helper")[0]
        assert any("Plugin helper" in sentence for sentence in list(one.app.left_out))
    assert not (home / "ran").exists()


@pytest.mark.parametrize("variable", ["TALARIA_SAFE_MODE", "HERMES_SAFE_MODE"])
async def test_in_safe_mode_nothing_is_loaded_and_that_is_the_reason_given(
    harness: OpenHarness, install: Install, home: Path, variable: str
) -> None:
    install("mine", marked(home))
    async with harness("mine", environment={variable: "1"}) as one:
        assert "loaded" not in statuses(one).values()
        assert any("safe mode" in sentence.lower() for sentence in list(one.app.left_out))
        assert not any("was not found" in sentence for sentence in list(one.app.left_out))
    assert not (home / "ran").exists()
    async with harness("mine", environment={variable: "0"}) as one:
        assert statuses(one) == {"mine": "loaded"}


async def test_an_enabled_plugin_that_is_not_there_is_told_of(harness: OpenHarness) -> None:
    async with harness("ghost") as one:
        assert list(one.app.left_out) == ["Plugin ghost is enabled, but was not found."]


async def test_a_record_of_consents_that_is_damaged_lets_nobody_in(
    harness: OpenHarness, install: Install, home: Path
) -> None:
    install("mine", marked(home))
    (home / "plugins.json").write_text('{"mine": ')
    with pytest.raises(BadConfig, match=r"plugins\.json is damaged"):
        async with harness("mine"):
            pass
    assert not (home / "ran").exists()


async def test_a_plugin_of_the_project_runs_as_it_was_agreed_to_whatever_is_written_there_later(
    harness: OpenHarness, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands of the model can write there; and a module may be imported long after the plugin was."""
    folder = tmp_path / "work/.talaria/plugins/ours"
    late = "def register(ctx): pass\n\ndef later():\n    from . import more\n    return more.WORD\n"
    write_plugin(folder, late, name="ours")
    (folder / "more.py").write_text("WORD = 'agreed'\n")
    monkeypatch.chdir(tmp_path / "work")
    (home / "plugins.json").write_text(json.dumps({"ours": {"content": content_of((folder,))}}))
    async with harness("ours", plugins={"project": True}) as one:
        assert statuses(one) == {"ours": "loaded"}
        (folder / "more.py").write_text("WORD = 'other'\n")
        assert module("ours").later() == "agreed"
    async with harness("ours", plugins={"project": True}) as one:
        assert statuses(one) == {"ours": "changed"}


async def test_a_plugin_of_the_project_holds_no_link_that_leads_elsewhere(
    harness: OpenHarness, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work/.talaria/plugins/ours"
    write_plugin(folder, PLAIN, name="ours")
    (tmp_path / "secret").write_text("x")
    (folder / "data").symlink_to(tmp_path / "secret")
    monkeypatch.chdir(tmp_path / "work")
    (home / "plugins.json").write_text(json.dumps({"ours": {"content": content_of((folder,))}}))
    async with harness("ours", plugins={"project": True}) as one:
        assert problems_of(one, "ours") == ["data in it is a link to a folder, or leads out of it"]
