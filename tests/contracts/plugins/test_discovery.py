"""Which plugins are there, and what they say of themselves: found out without running any of their code."""

import importlib
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from tests.contracts.plugins.conftest import Install, OpenHarness, extensions, heard, statuses, write_plugin

from talaria.plugins.discovery import FoundPlugin, Places, discover, places
from talaria.testing.patience import PATIENCE_S

EMPTY = "def register(ctx): pass\n"


@pytest.fixture
def found(tmp_path: Path) -> Callable[[], dict[str, FoundPlugin]]:
    """What is found below `tmp_path / "user"`."""
    return lambda: discover(Places(tmp_path / "user", tmp_path / "bundled", with_packages=False))


Look = Callable[[], dict[str, FoundPlugin]]


def distribution(
    root: Path, name: str, source: str, entry_points: str, monkeypatch: pytest.MonkeyPatch, version: str = "2.1"
) -> None:
    """As pip would have installed it."""
    about = root / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: It helps.\n")
    (about / "entry_points.txt").write_text(entry_points)
    (root / f"{name}.py").write_text(source)
    monkeypatch.setattr(sys, "path", [str(root), *sys.path])
    monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()


def test_plugins_are_found_in_every_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_plugin(tmp_path / "bundled" / "shipped", EMPTY)
    write_plugin(tmp_path / "home" / "plugins" / "mine", EMPTY)
    write_plugin(tmp_path / "work" / ".talaria" / "plugins" / "ours", EMPTY)
    write_plugin(tmp_path / "work" / ".hermes" / "plugins" / "theirs", EMPTY)
    groups = "[talaria.plugins]\nnew = packed\n[hermes_agent.plugins]\nold = packed\n[console_scripts]\nno = packed\n"
    distribution(tmp_path / "site", "packed", EMPTY, groups, monkeypatch)

    environment = {"TALARIA_BUNDLED_PLUGINS": str(tmp_path / "bundled")}
    found = discover(places(tmp_path / "home", tmp_path / "work", environment, with_project=True))

    sources = {key: one.source for key, one in found.items()}
    assert sources == {
        "shipped": "bundled",
        "mine": "user",
        "ours": "project",
        "theirs": "project",
        "new": "package",
        "old": "package",
    }
    assert (found["new"].manifest.version, found["new"].manifest.description) == ("2.1", "It helps.")
    assert {key: found[key].is_hermes_style for key in ("mine", "new", "old")} == {
        "mine": True,
        "new": False,
        "old": True,
    }


@pytest.mark.parametrize(
    ("with_project", "environment", "is_found"),
    [
        (False, {}, False),
        (True, {}, True),
        (False, {"HERMES_ENABLE_PROJECT_PLUGINS": "1"}, True),
        (False, {"HERMES_ENABLE_PROJECT_PLUGINS": "0"}, False),
    ],
)
def test_plugins_of_the_working_directory_are_found_only_if_they_are_wanted(
    tmp_path: Path, with_project: bool, environment: Mapping[str, str], is_found: bool
) -> None:
    write_plugin(tmp_path / "work" / ".talaria" / "plugins" / "ours", EMPTY)
    found = discover(places(tmp_path / "home", tmp_path / "work", environment, with_project=with_project))
    assert ("ours" in found) is is_found


def test_of_equal_names_the_one_nearer_to_the_person_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("bundled", "home/plugins", "work/.talaria/plugins"):
        write_plugin(tmp_path / folder / "same", EMPTY)
    environment = {"TALARIA_BUNDLED_PLUGINS": str(tmp_path / "bundled")}

    def source(*, with_project: bool) -> str:
        return discover(places(tmp_path / "home", tmp_path / "work", environment, with_project=with_project))[
            "same"
        ].source

    assert source(with_project=False) == "user"
    assert source(with_project=True) == "project"
    distribution(tmp_path / "site", "packed", EMPTY, "[hermes_agent.plugins]\nsame = packed\n", monkeypatch)
    assert source(with_project=True) == "package"


def test_what_another_program_has_bundled_is_not_ours(tmp_path: Path) -> None:
    """A person who comes from there may still have it set; what is bundled is loaded without being asked about."""
    write_plugin(tmp_path / "theirs" / "shipped", EMPTY)
    environment = {"HERMES_BUNDLED_PLUGINS": str(tmp_path / "theirs")}
    assert "shipped" not in discover(places(tmp_path / "home", tmp_path, environment, with_project=False))


def test_a_plugin_in_a_folder_of_its_kind_is_known_by_both_names(tmp_path: Path, found: Look) -> None:
    write_plugin(tmp_path / "user" / "voices" / "loud", EMPTY, name="Loud Voice")
    write_plugin(tmp_path / "user" / "plain", EMPTY, name="other-name")
    assert {key: (one.category, one.manifest.name) for key, one in found().items()} == {
        "voices/loud": ("voices", "Loud Voice"),
        "other-name": ("", "other-name"),
    }


@pytest.mark.parametrize("category", ["context_engine", "memory", "model-providers"])
def test_in_the_folders_of_single_kinds_code_alone_makes_a_plugin(tmp_path: Path, found: Look, category: str) -> None:
    for name in (category, "voices"):
        folder = tmp_path / "user" / name / "bare"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(EMPTY)
    assert list(found()) == [f"{category}/bare"]


def test_a_folder_behind_a_link_is_a_plugin_like_any_other(tmp_path: Path, found: Look) -> None:
    write_plugin(tmp_path / "checkout" / "linked", EMPTY)
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "linked").symlink_to(tmp_path / "checkout" / "linked")
    assert found()["linked"].problem == ""


def test_what_is_hidden_too_deep_or_no_folder_is_no_plugin(tmp_path: Path, found: Look) -> None:
    for path in (".hidden", "__pycache__", "a/b/deep", ".git/x"):
        write_plugin(tmp_path / "user" / path, EMPTY)
    (tmp_path / "user" / "plugin.yaml").write_text("name: file\n")
    assert found() == {}


def test_there_may_be_no_folder_of_plugins_at_all(found: Look) -> None:
    assert found() == {}


def test_nothing_is_imported_to_find_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor to find where its code is."""
    mark = tmp_path / "imported"
    code = f"open({str(mark)!r}, 'w').close()\n{EMPTY}"
    write_plugin(tmp_path / "home" / "plugins" / "eager", code)
    write_plugin(tmp_path / "home" / "plugins" / "memory" / "keen", code)
    distribution(tmp_path / "site", "eager_packed", code, "[talaria.plugins]\npacked = eager_packed\n", monkeypatch)
    found = discover(places(tmp_path / "home", tmp_path, {}, with_project=True))
    assert {bool(found[key].places) for key in ("eager", "memory/keen", "packed")} == {True}
    assert not mark.exists()


def test_the_manifest_says_what_it_says_and_what_it_says_besides_is_left_alone(tmp_path: Path, found: Look) -> None:
    write_plugin(tmp_path / "user" / "x", EMPTY)
    (tmp_path / "user" / "x" / "plugin.yaml").write_text("""
manifest_version: 1
name: teapot
label: The teapot
version: 1.10
description: |
  Makes
  tea.
author: somebody
homepage: https://example.invalid
license: MIT
hooks: [pre_llm_call]
provides_web_providers: [{deep: {er: 1}}]
pip_dependencies: [kettle>=2, 7]
requires_env:
- TEAPOT_KEY
- {name: TEAPOT_URL, description: Where it stands, url: "https://example.invalid/u", secret: false}
- {description: nameless}
- 12
optional_env: [TEAPOT_LID]
""")
    manifest = found()["teapot"].manifest
    assert (manifest.version, manifest.description, manifest.author) == ("1.1", "Makes tea.", "somebody")
    assert manifest.packages == ("kettle>=2", "7")
    assert [(need.name, need.description, need.is_secret) for need in manifest.requires_env] == [
        ("TEAPOT_KEY", "", True),
        ("TEAPOT_URL", "Where it stands", False),
    ]
    assert [need.name for need in manifest.optional_env] == ["TEAPOT_LID"]
    assert manifest.warnings == ()


def test_a_manifest_may_end_in_yml_and_leave_the_name_to_the_folder(tmp_path: Path, found: Look) -> None:
    write_plugin(tmp_path / "user" / "pot", EMPTY)
    (tmp_path / "user" / "pot" / "plugin.yaml").unlink()
    (tmp_path / "user" / "pot" / "plugin.yml").write_text("version: 3\n")
    assert found()["pot"].manifest.version == "3"


def test_a_kind_that_nobody_knows_is_taken_as_standalone_and_told(tmp_path: Path, found: Look) -> None:
    write_plugin(tmp_path / "user" / "x", EMPTY, kind="teapot")
    manifest = found()["x"].manifest
    assert (manifest.kind, len(manifest.warnings)) == ("standalone", 1)
    assert "'teapot' is unknown" in manifest.warnings[0]


FAR = "#" * 8192 + "\n"
GUESSES = {
    "memory by its base": ("from agent.memory_provider import MemoryProvider", "exclusive"),
    "memory by what it registers": ("def register(ctx): ctx.register_memory_provider(x)", "exclusive"),
    "a model provider": ("from providers import register_provider, ProviderProfile", "model-provider"),
    "half a model provider": ("def register_provider(): pass", "standalone"),
    "nothing special": (EMPTY, "standalone"),
    "too far behind": (FAR + "register_memory_provider", "standalone"),
}


@pytest.mark.parametrize("what", GUESSES)
def test_a_kind_that_is_not_said_is_guessed_from_the_beginning_of_the_code(
    tmp_path: Path, found: Look, what: str
) -> None:
    source, kind = GUESSES[what]
    write_plugin(tmp_path / "user" / "x", source)
    assert found()["x"].manifest.kind == kind
    write_plugin(tmp_path / "user" / "said", source, kind="backend")
    assert found()["said"].manifest.kind == "backend"


BAD = {
    "nothing": b"",
    "no YAML": b"name: [",
    "a list": b"- name: x",
    "no text": b"name: caf\xe9",
    "a NUL": b"name: a\x00b",
    "too long": b"name: x\ndescription: " + b"y" * 300_000,
    "a date that is none": b"version: 2024-13-45",
    "objects": b"x: !!python/object/apply:os.system [true]",
    "a tag on the wrong value": b"x: !!timestamp soon",
    "a number of no digits": b"x: !!int ''",
    "a truth of its own": b"x: !!bool perhaps",
}


@pytest.mark.parametrize("what", BAD)
def test_a_manifest_that_cannot_be_read_is_its_plugins_problem_alone(tmp_path: Path, found: Look, what: str) -> None:
    write_plugin(tmp_path / "user" / "good", EMPTY)
    write_plugin(tmp_path / "user" / "bad", EMPTY)
    (tmp_path / "user" / "bad" / "plugin.yaml").write_bytes(BAD[what])
    seen = found()
    assert seen["good"].problem == ""
    assert seen["bad"].problem.startswith("plugin.yaml ")


def test_a_number_too_long_to_be_written_down_hides_nobody(tmp_path: Path, found: Look) -> None:
    write_plugin(tmp_path / "user" / "good", EMPTY)
    write_plugin(tmp_path / "user" / "odd", EMPTY, version="0x" + "f" * 5000)
    assert set(found()) == {"good", "odd"}


def _grown(line: str) -> str:
    """Each line is nine times the one before."""
    names = "abcdefghij"
    return "a: &a {x: 1}\n" + "".join(
        line.format(name=name, many=", ".join([f"*{before}"] * 9)) for before, name in pairwise(names)
    )


BOMBS = {
    "references in a list that is read": _grown("{name}: &{name} [{many}]\n") + "pip_dependencies: *j\n",
    "references as a kind": _grown("{name}: &{name} [{many}]\n") + "kind: *j\n",
    "references in references": _grown("{name}: &{name}\n  <<: [{many}]\n"),
    "lists without a bottom": "a: " + "[" * 100_000,
}
LOOK = """
import sys
from pathlib import Path
from talaria.plugins.discovery import Places, discover
print(*discover(Places(Path(sys.argv[1]), Path("/nonexistent"), with_packages=False)))
"""


def _modest() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (5, 5))


@pytest.mark.parametrize("what", BOMBS)
def test_a_manifest_that_grows_without_end_takes_neither_time_nor_memory(tmp_path: Path, what: str) -> None:
    """In a process of its own, which may well die of it."""
    write_plugin(tmp_path / "user" / "good", EMPTY)
    write_plugin(tmp_path / "user" / "bomb", EMPTY)
    (tmp_path / "user" / "bomb" / "plugin.yaml").write_text(BOMBS[what])
    command = [sys.executable, "-c", LOOK, str(tmp_path / "user")]
    looked = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, preexec_fn=_modest, check=False
    )
    assert (looked.returncode, looked.stdout.split()) == (0, ["bomb", "good"]), looked.stderr[-300:]


def test_a_plugin_without_code_is_told_of(tmp_path: Path, found: Look) -> None:
    write_plugin(tmp_path / "user" / "x", EMPTY)
    (tmp_path / "user" / "x" / "__init__.py").unlink()
    assert found()["x"].problem == "has no __init__.py"


@pytest.mark.parametrize("name", ["link", "bad/plugin.yaml", "bad/__init__.py"])
def test_a_link_that_cannot_even_be_followed_hides_nobody(tmp_path: Path, found: Look, name: str) -> None:
    write_plugin(tmp_path / "user" / "good", EMPTY)
    write_plugin(tmp_path / "user" / "bad", EMPTY)
    link = tmp_path / "user" / name
    link.unlink(missing_ok=True)
    link.symlink_to("x" * 300)
    assert "good" in found()


async def test_packages_of_both_groups_are_loaded_as_a_module_or_a_function(
    harness: OpenHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = 'def register(ctx): ctx.register_command(ctx.manifest.name, lambda args: "")\n'
    groups = "[talaria.plugins]\nnew-one = packed_two:register\n[hermes_agent.plugins]\nold-one = packed_two\n"
    distribution(tmp_path / "site", "packed_two", source, groups, monkeypatch)
    async with harness("new-one", "old-one") as one:
        assert {key: statuses(one)[key] for key in ("new-one", "old-one")} == {"new-one": "loaded", "old-one": "loaded"}
        assert {"new-one", "old-one"} <= {command.name for command in one.app.commands.visible("terminal")}


async def test_a_package_in_several_places_is_pinned_in_all_of_them(
    harness: OpenHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As namespaces are."""
    point = "[talaria.plugins]\nspread = spread_out.second\n"
    distribution(tmp_path / "site", "spread_about", "", point, monkeypatch)
    for place, name in (("first", "first"), ("site", "second")):
        (tmp_path / place / "spread_out").mkdir(parents=True)
        (tmp_path / place / "spread_out" / f"{name}.py").write_text(EMPTY)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), *sys.path])
    importlib.invalidate_caches()
    async with harness("spread") as one:
        assert statuses(one)["spread"] == "loaded"
    (tmp_path / "site" / "spread_out" / "second.py").write_text(f"{EMPTY}# changed\n")
    async with harness("spread") as one:
        assert statuses(one)["spread"] == "changed"


async def test_a_package_takes_the_place_of_a_folder_only_if_it_was_agreed_to(
    harness: OpenHarness, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have come with something else that was installed."""
    install("same", EMPTY)
    async with harness("same") as one:
        assert statuses(one)["same"] == "loaded"
    mark = tmp_path / "ran"
    source = f"open({str(mark)!r}, 'w').close()\n{EMPTY}"
    distribution(tmp_path / "site", "packed_same", source, "[talaria.plugins]\nsame = packed_same\n", monkeypatch)
    async with harness("same") as one:
        assert (statuses(one)["same"], extensions(one).host.plugins["same"].found.source) == ("loaded", "user")
        assert list(one.app.left_out) == []
    assert not mark.exists()


@pytest.mark.parametrize("value", ["nowhere_to_be_found:register", "packed_three:missing", "not a module!"])
async def test_an_entry_point_that_leads_nowhere_is_told_and_the_others_are_loaded(
    harness: OpenHarness, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    install("good", EMPTY)
    distribution(tmp_path / "site", "packed_three", EMPTY, f"[hermes_agent.plugins]\nlost = {value}\n", monkeypatch)
    async with harness("good", "lost") as one:
        assert (statuses(one)["good"], statuses(one)["lost"]) == ("loaded", "failed")
        assert any("Plugin lost is not loaded" in sentence for sentence in list(one.app.left_out))


async def test_a_plugins_modules_find_each_other_and_only_each_other(harness: OpenHarness, install: Install) -> None:
    """Also when two names differ by a sign that no module can have."""
    source = """
HEARD = []
def register(ctx):
    ctx.register_command(ctx.manifest.name + "-says", say)
def say(args):
    from .inner.words import WORD
    return WORD
"""
    for name in ("my-words", "my_words"):
        folder = install(name, source)
        (folder / "inner").mkdir()
        (folder / "inner" / "words.py").write_text(f"WORD = {name!r}\n")
    async with harness("my-words", "my_words") as one:
        assert statuses(one) == {"my-words": "loaded", "my_words": "loaded"}
        handlers = {
            key: plugin.registered.commands[0].handler("") for key, plugin in extensions(one).host.plugins.items()
        }
        assert handlers == {"my-words": "my-words", "my_words": "my_words"}
        assert heard("my_words") == []
