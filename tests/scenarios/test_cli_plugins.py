"""`talaria plugins`, and what plugins add to `talaria` itself."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from tests.plugin_sources import engine, memory, write_plugin
from tests.scenarios.typescript import Terminal

from talaria.cli import command_tree
from talaria.core.errors import OperatorError
from talaria.plugins.contributions import OWN_COMMANDS
from talaria.plugins.installing import install_plugin
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply, call

Talaria = Callable[..., subprocess.CompletedProcess[str]]

GREETER = """
def greet(args):
    print("hello", args.name, "loudly" if args.loud else "softly")
    return args.code

def setup(parser):
    parser.add_argument("name", nargs="?", default="you")
    parser.add_argument("--loud", action="store_true")
    parser.add_argument("--code", type=int, default=0)

def register(ctx):
    ctx.register_cli_command("greet", "Greets somebody.", setup, greet)
    ctx.register_command("greet", lambda args: f"hello {args}", "Greets.")
    ctx.register_tool("wave", "hands", {"parameters": {"type": "object"}}, lambda args: "waved")
    ctx.register_hook("pre_llm_call", lambda **facts: None)
"""
FINE = "def register(ctx): pass\n"


def made(folder: Path, source: str = GREETER, **manifest: str) -> Path:
    return write_plugin(folder, source, **{"version": "1.0", "description": "A plugin.", **manifest})


def listed(talaria: Talaria) -> dict[str, dict[str, Any]]:
    told = talaria("plugins", "list", "--json")
    assert told.returncode == 0, told.stderr
    return {row["name"]: row for row in json.loads(told.stdout)["plugins"]}


def statuses(talaria: Talaria) -> dict[str, str]:
    return {name: row["status"] for name, row in listed(talaria).items()}


@pytest.fixture
def enabled(talaria: Talaria, home: Path, server: ModelServer) -> Callable[..., Path]:
    """A plugin in the home, agreed to: `enabled("name", SOURCE)`."""

    def make(name: str, source: str = GREETER, **manifest: str) -> Path:
        folder = made(home / "plugins" / name, source, **manifest)
        done = talaria("plugins", "enable", name)
        assert done.returncode == 0, done.stderr
        return folder

    return make


@pytest.fixture
def open_terminal(environment: dict[str, str]) -> Iterator[Callable[..., Terminal]]:
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(Terminal(environment, *arguments))


def test_a_plugin_from_a_folder_is_installed_enabled_and_used(
    talaria: Talaria, server: ModelServer, home: Path, tmp_path: Path
) -> None:
    source = made(tmp_path / "greeter")
    (source / "after-install.md").write_text("Say hello.\n")
    with (source / "plugin.yaml").open("a") as file:
        file.write("requires_env: [GREET_KEY]\npip_dependencies: [kettle]\n")
    for name in ("__pycache__/x.pyc", ".git/config", "inner/part.py"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("")

    done = talaria("plugins", "install", str(source))

    assert (done.returncode, (home / "plugins" / "greeter" / "inner" / "part.py").is_file()) == (0, True)
    for text in ("Installed greeter 1.0", "Say hello.", "pip install kettle", "GREET_KEY", "plugins enable greeter"):
        assert text in done.stdout
    assert {path.name for path in (home / "plugins" / "greeter").iterdir()} == {
        "plugin.yaml", "__init__.py", "after-install.md", "inner",
    }  # fmt: skip
    assert statuses(talaria) == {"greeter": "available"}

    assert talaria("plugins", "enable", "greeter").stdout == "Enabled greeter.\n"
    assert statuses(talaria) == {"greeter": "loaded"}
    server.say(Reply(calls=(call("wave"),)), "Waved.")
    asked = talaria("-q", "wave!")
    assert (asked.returncode, asked.stdout) == (0, "Waved.\n")
    assert "greeter" not in asked.stderr  # nothing is new to the person


def git(*arguments: str, cwd: Path) -> None:
    settings = ("-c", "user.name=x", "-c", "user.email=x@example.invalid", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *settings, *arguments], cwd=cwd, check=True, capture_output=True)


def test_a_plugin_from_a_git_repository_is_installed_and_put_in_place_of_an_older_one(
    talaria: Talaria, server: ModelServer, home: Path, tmp_path: Path
) -> None:
    repository = made(tmp_path / "somewhere" / "repo", FINE, name="fetched")
    git("init", cwd=repository)
    git("add", ".", cwd=repository)
    git("commit", "-m", "one", cwd=repository)
    address = f"file://{repository}"

    assert talaria("plugins", "install", address, "--enable").returncode == 0
    assert not (home / "plugins" / "fetched" / ".git").exists()
    assert statuses(talaria) == {"fetched": "loaded"}

    (repository / "__init__.py").write_text("# newer\n" + FINE)
    git("commit", "-a", "-m", "two", cwd=repository)
    again = talaria("plugins", "install", address)
    assert (again.returncode, "--force" in again.stderr) == (2, True)
    assert "newer" not in (home / "plugins" / "fetched" / "__init__.py").read_text()

    assert talaria("plugins", "install", address, "--force").returncode == 0
    assert "newer" in (home / "plugins" / "fetched" / "__init__.py").read_text()
    assert statuses(talaria) == {"fetched": "changed"}  # agreed was to the older one
    assert talaria("plugins", "enable", "fetched").returncode == 0
    assert statuses(talaria) == {"fetched": "loaded"}


@pytest.mark.parametrize("source", ["file:///nonexistent/repo", "ext::sh -c 'touch ran' .git", "-u.git"])
def test_a_repository_that_is_none_is_one_sentence(
    talaria: Talaria, server: ModelServer, home: Path, environment: dict[str, str], source: str
) -> None:
    done = talaria("plugins", "install", "--", source)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("talaria: ")
    assert not (home / "plugins").exists()
    assert not (Path(environment["PWD"]) / "ran").exists()


def no_manifest(folder: Path) -> None:
    (folder / "plugin.yaml").unlink()


def no_code(folder: Path) -> None:
    (folder / "__init__.py").unlink()


def bad_manifest(folder: Path) -> None:
    (folder / "plugin.yaml").write_text("- a\n- b\n")


def link_out(folder: Path) -> None:
    (folder.parent / "secret").write_text("x")
    (folder / "data").symlink_to("../secret")


def link_to_a_folder_outside(folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "etc").symlink_to("/etc")


def link_in_a_circle(folder: Path) -> None:
    (folder / "again").symlink_to(".")


def nameless(folder: Path) -> None:
    (folder / "plugin.yaml").write_text('name: "../.."\n')


REFUSED = {
    change.__name__: change
    for change in (no_manifest, no_code, bad_manifest, link_out, link_to_a_folder_outside, link_in_a_circle, nameless)
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_plugin_or_leads_out_of_itself_is_refused_and_leaves_nothing(
    talaria: Talaria, home: Path, tmp_path: Path, what: str
) -> None:
    folder = made(tmp_path / "odd")
    REFUSED[what](folder)
    done = talaria("plugins", "install", str(folder))
    assert done.returncode == 2
    said = done.stderr.splitlines()[-1]
    assert said.startswith("talaria: ")
    assert len(said) < 1000
    assert list(home.rglob("*.py")) == []


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil", ".hidden"])
def test_a_name_that_leads_elsewhere_leads_nowhere(talaria: Talaria, home: Path, tmp_path: Path, name: str) -> None:
    folder = made(tmp_path / "source" / "odd", FINE, name=f'"{name}"')
    done = talaria("plugins", "install", str(folder))
    code = [path for path in tmp_path.rglob("__init__.py") if "source" not in path.parts]
    assert done.returncode in (0, 2)
    assert all(path.parent.parent == home / "plugins" for path in code)
    assert len(code) == int(done.returncode == 0)


def test_what_is_nowhere_is_one_sentence(talaria: Talaria) -> None:
    for command in (("install", "/nonexistent"), ("enable", "ghost"), ("info", "ghost"), ("disable", "ghost")):
        done = talaria("plugins", *command)
        assert (done.returncode, done.stderr.splitlines()[-1][:9]) == (2, "talaria: ")
    assert talaria("plugins", "remove", "ghost").returncode == 2


def test_a_newer_one_takes_the_place_of_a_link_without_touching_what_it_leads_to(
    talaria: Talaria, home: Path, tmp_path: Path
) -> None:
    """As installers of others make them."""
    checkout = made(tmp_path / "checkout" / "linked", FINE)
    (home / "plugins").mkdir(parents=True)
    (home / "plugins" / "linked").symlink_to(checkout)
    newer = made(tmp_path / "newer", "# newer\n" + FINE, name="linked")
    done = talaria("plugins", "install", str(newer), "--force")
    assert (done.returncode, done.stderr.splitlines()[1:]) == (0, [])
    assert (checkout / "__init__.py").read_text() == FINE
    assert "newer" in (home / "plugins" / "linked" / "__init__.py").read_text()


def test_enabling_runs_it_once_and_what_fails_is_not_enabled(talaria: Talaria, server: ModelServer, home: Path) -> None:
    made(home / "plugins" / "broken", "raise ValueError('not today')\n")
    done = talaria("plugins", "enable", "broken")
    assert done.returncode == 2
    assert "raised ValueError: not today" in done.stderr
    assert statuses(talaria) == {"broken": "available"}
    assert "broken" not in (home / "config.yaml").read_text()
    assert "broken" not in talaria("--help").stdout


def test_what_cannot_be_read_whole_cannot_be_enabled(talaria: Talaria, server: ModelServer, home: Path) -> None:
    folder = made(home / "plugins" / "odd", FINE)
    (folder / "link.py").symlink_to("x" * 300)
    done = talaria("plugins", "enable", "odd")
    assert (done.returncode, "Internal error" in done.stderr) == (2, False)


def test_one_that_the_settings_disable_is_not_said_to_be_enabled(
    talaria: Talaria, server: ModelServer, home: Path
) -> None:
    made(home / "plugins" / "fine", FINE)
    with (home / "config.yaml").open("a") as file:
        file.write("plugins: {disabled: [fine]}\n")
    done = talaria("plugins", "enable", "fine")
    is_loaded = statuses(talaria)["fine"] == "loaded"
    assert is_loaded == (done.returncode == 0)


@pytest.mark.parametrize("how", ["safe mode", "disabled"])
def test_what_cannot_be_enabled_now_is_one_sentence(
    talaria: Talaria, server: ModelServer, home: Path, how: str
) -> None:
    made(home / "plugins" / "fine", FINE)
    if how == "disabled":
        with (home / "config.yaml").open("a") as file:
            file.write("plugins: {disabled: [fine]}\n")
    done = talaria("plugins", "enable", "fine", env={"TALARIA_SAFE_MODE": "1" if how == "safe mode" else ""})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert how in done.stderr
    assert not (home / "plugins.json").exists()


def test_in_safe_mode_plugins_can_be_looked_at_and_nothing_breaks(
    talaria: Talaria, enabled: Callable[..., Path], server: ModelServer
) -> None:
    enabled("fine", FINE)
    safe = {"TALARIA_SAFE_MODE": "1"}
    for command in (("list",), ("enable", "fine"), ("info", "fine"), ("disable", "fine")):
        done = talaria("plugins", *command, env=safe)
        assert "Internal error" not in done.stderr, command
    server.say("ok")
    assert talaria("-q", "x", env=safe).stdout == "ok\n"


def test_disable_takes_consent_and_choice_back(talaria: Talaria, enabled: Callable[..., Path], home: Path) -> None:
    enabled("ledgerlike", engine("ledgerlike"))
    assert talaria("plugins", "choose", "engine", "ledgerlike").returncode == 0
    done = talaria("plugins", "disable", "ledgerlike")
    assert done.stdout.splitlines()[0] == "Disabled ledgerlike."
    assert "built-in" in done.stdout
    assert statuses(talaria) == {"ledgerlike": "available"}
    assert "ledgerlike" not in (home / "plugins.json").read_text()
    assert talaria("plugins", "disable", "ledgerlike").returncode == 2
    assert "engine: compressor" in (home / "config.yaml").read_text()


def test_an_engine_is_told_of_and_let_go_by_its_own_name(
    talaria: Talaria, enabled: Callable[..., Path], home: Path
) -> None:
    enabled("library", engine("pages"))
    assert "context engine: pages" in talaria("plugins", "info", "library").stdout.splitlines()
    assert talaria("plugins", "choose", "engine", "pages").returncode == 0
    assert "built-in" in talaria("plugins", "disable", "library").stdout
    assert "engine: compressor" in (home / "config.yaml").read_text()


@pytest.mark.parametrize("name", ["on", "123", "no", "1e3", "null"])
def test_a_name_that_looks_like_something_else_can_be_chosen(
    talaria: Talaria, enabled: Callable[..., Path], home: Path, name: str
) -> None:
    enabled("odd", engine(name))
    done = talaria("plugins", "choose", "engine", name)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{name} (chosen)" in talaria("plugins", "list").stdout
    assert yaml.safe_load((home / "config.yaml").read_text())["context"]["engine"] == name


def test_disabling_one_leaves_another_whose_name_it_has_borrowed(
    talaria: Talaria, enabled: Callable[..., Path], home: Path
) -> None:
    enabled("trusted", FINE)
    made(home / "plugins" / "kind" / "impostor", FINE, name="trusted")
    assert talaria("plugins", "enable", "kind/impostor").returncode == 0
    assert talaria("plugins", "disable", "kind/impostor").returncode == 0
    assert statuses(talaria) == {"trusted": "loaded", "kind/impostor": "available"}


def test_of_two_that_go_by_one_name_it_must_be_said_which(talaria: Talaria, server: ModelServer, home: Path) -> None:
    for kind in ("one", "two"):
        made(home / "plugins" / kind / "twin", FINE)
    done = talaria("plugins", "enable", "twin")
    assert (done.returncode, "choose one: one/twin, two/twin" in done.stderr) == (2, True)


def test_an_older_one_stays_where_the_newer_cannot_take_its_place(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = made(home / "plugins" / "same", "# older\n" + FINE)
    new = made(tmp_path / "new" / "same", "# newer\n" + FINE)
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if self.name == ".same.new":
            raise OSError(28, "No space left on device")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OperatorError):
        install_plugin(str(new), home / "plugins", replace=True)
    assert (old / "__init__.py").read_text().startswith("# older")
    assert [path.name for path in (home / "plugins").iterdir()] == ["same"]


def test_links_in_folders_that_are_not_copied_are_nobodys_concern(talaria: Talaria, tmp_path: Path, home: Path) -> None:
    folder = made(tmp_path / "fine", FINE)
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "python").symlink_to("/usr/bin/env")
    assert talaria("plugins", "install", str(folder)).returncode == 0
    assert not (home / "plugins" / "fine" / ".venv").exists()


def test_remove_deletes_the_folder_and_of_a_link_the_link_alone(
    talaria: Talaria, enabled: Callable[..., Path], home: Path, tmp_path: Path
) -> None:
    folder = enabled("going", FINE)
    checkout = made(tmp_path / "checkout" / "linked", FINE)
    (home / "plugins" / "linked").symlink_to(checkout)
    assert talaria("plugins", "remove", "going").returncode == 0
    assert talaria("plugins", "remove", "linked").returncode == 0
    assert (folder.exists(), checkout.is_dir(), (home / "plugins" / "linked").is_symlink()) == (False, True, False)
    assert listed(talaria) == {}
    assert "going" not in (home / "config.yaml").read_text()


def test_remove_leaves_what_is_not_in_the_home(talaria: Talaria, server: ModelServer, tmp_path: Path) -> None:
    made(tmp_path / "bundled" / "shipped", FINE)
    done = talaria("plugins", "remove", "shipped", env={"TALARIA_BUNDLED_PLUGINS": str(tmp_path / "bundled")})
    assert (done.returncode, (tmp_path / "bundled" / "shipped").is_dir()) == (2, True)


def test_the_list_shows_each_with_what_became_of_it(talaria: Talaria, enabled: Callable[..., Path], home: Path) -> None:
    enabled("fine", FINE)
    enabled("noisy", "def register(ctx): ctx.register_tool('terminal', 's', {}, print)\n")
    (enabled("touched", FINE) / "more.py").write_text("")
    made(home / "plugins" / "idle", FINE)
    made(home / "plugins" / "hollow", FINE)
    (home / "plugins" / "hollow" / "__init__.py").unlink()

    rows = listed(talaria)
    assert {name: row["status"] for name, row in rows.items()} == {
        "fine": "loaded",
        "noisy": "loaded",
        "touched": "changed",
        "idle": "available",
        "hollow": "available",
    }
    assert rows["fine"] == {
        "name": "fine",
        "version": "1.0",
        "source": "user",
        "status": "loaded",
        "description": "A plugin.",
        "problems": [],
    }
    assert rows["noisy"]["problems"] == ["its tool terminal is left out: another has that name"]
    assert rows["hollow"]["problems"] == ["has no __init__.py"]
    shown = talaria("plugins", "list").stdout
    assert "! its tool terminal is left out" in shown
    assert "Context engine: compressor (chosen)" in shown
    assert talaria("plugins").stdout == shown


BAD = {
    "breaks": ("raise ValueError('at import')\n", "raised ValueError: at import"),
    "leaves": ("import sys\ndef register(ctx): sys.exit(9)\n", "raised SystemExit: 9"),
    "needs": ("import teapot_of_nobody\n", "needs the Python package teapot_of_nobody"),
    "grabs": ("def register(ctx): ctx.register_command('new', print)\n", "the built-in /new does"),
    "halts": ("def register(ctx): ctx.register_command('stop', print)\n", "the built-in /stop does"),
    "sidetracks": ("def register(ctx): ctx.register_command('bg', print)\n", "the built-in /background does"),
    "engages": (engine("engages") + "    ctx.register_command('approve', print)\n", "the built-in /approve does"),
    "listens": (
        "def register(ctx): ctx.register_hook('pre_verify', print)\n",
        "registers the hook pre_verify, which Talaria never calls",
    ),
    "clobbers": ("def register(ctx): ctx.register_tool('wave', 's', {}, print)\n", "its tool wave is left out"),
    "competes": ("def register(ctx): ctx.register_cli_command('greet')\n", "greet"),
    "shadows": ("def register(ctx): ctx.register_cli_command('chat')\n", "chat"),
}


def test_bad_plugins_are_named_in_the_list_and_by_the_doctor_and_the_chat_goes_on(
    talaria: Talaria, enabled: Callable[..., Path], server: ModelServer, home: Path
) -> None:
    enabled("agood")
    for name, (source, _) in BAD.items():
        made(home / "plugins" / name, source)
    names = ", ".join(["agood", *BAD])
    config = (home / "config.yaml").read_text().partition("plugins:")[0]
    (home / "config.yaml").write_text(f"{config}plugins: {{enabled: [{names}]}}\n")

    rows = listed(talaria)
    findings = json.loads(talaria("doctor", "--json").stdout)

    def told(subject: str) -> list[str]:
        return [one["text"] for one in findings if one["subject"] == subject]

    for name, (_, said) in BAD.items():
        assert any(said in problem for problem in rows[name]["problems"]), name
        assert any(said in problem for problem in told(f"plugin {name}")), name
    assert rows["agood"]["problems"] == []
    assert any("agood" in text for text in told("plugins"))

    server.say(Reply(calls=(call("wave"),)), "Waved.")
    asked = talaria("-q", "wave!")
    assert (asked.returncode, asked.stdout) == (0, "Waved.\n")
    assert "Plugin breaks is not loaded" in asked.stderr


def test_what_a_plugin_prints_while_it_is_loaded_is_no_part_of_our_answers(
    talaria: Talaria, enabled: Callable[..., Path], server: ModelServer
) -> None:
    enabled("chatty", "print('Loaded!')\ndef register(ctx): print('Registered!')\n")
    assert statuses(talaria) == {"chatty": "loaded"}
    server.say("only this")
    assert talaria("-q", "x").stdout == "only this\n"


def test_what_a_plugin_says_of_itself_cannot_draw_on_the_terminal(
    talaria: Talaria, server: ModelServer, home: Path, tmp_path: Path
) -> None:
    trick = "\\u202e\\a\\e]0;t"
    source = "def register(ctx): ctx.register_cli_command('greet', '\\u202e\\x07')\n"
    folder = made(tmp_path / "odd", source, name=f'"odd{trick}"', description=f'"d{trick}"', author=f'"a{trick}"')
    (folder / "after-install.md").write_text("read \u202e\a")
    shown = [talaria("plugins", "install", str(folder))]
    (name,) = listed(talaria)
    command_tree = [("enable", name), ("list",), ("info", name), ("disable", name)]
    shown += [talaria("plugins", *command) for command in command_tree]
    assert [done.returncode for done in shown] == [0] * 5
    for done in shown:
        assert not set(done.stdout + done.stderr) & {"\u202e", "\a", "\x1b"}, done.args


def test_what_a_plugin_raises_or_calls_its_commands_cannot_draw_on_the_terminal_either(
    talaria: Talaria, enabled: Callable[..., Path], server: ModelServer, home: Path
) -> None:
    enabled("odd", "def register(ctx): ctx.register_cli_command('greet', '\\u202e\\x07')\n")
    made(home / "plugins" / "worse", "raise ValueError('\\u202e\\x07')\n")
    config = (home / "config.yaml").read_text().partition("plugins:")[0]
    (home / "config.yaml").write_text(f"{config}plugins: {{enabled: [odd, worse]}}\n")
    server.say("ok")
    for command in (("--help",), ("doctor",), ("plugins", "list"), ("-q", "x")):
        done = talaria(*command)
        assert not set(done.stdout + done.stderr) & {"\u202e", "\a", "\x1b"}, command


def test_info_tells_what_it_brings(talaria: Talaria, enabled: Callable[..., Path]) -> None:
    enabled("greeter", author="somebody")
    told = talaria("plugins", "info", "greeter").stdout
    for line in (
        "greeter 1.0  A plugin.",
        "status: loaded",
        "tools: wave",
        "hooks: pre_llm_call",
        "slash commands: /greet",
        "commands: talaria greet",
    ):
        assert line in told.splitlines()
    assert "author: somebody" in told


def test_engines_and_memories_are_chosen_by_name(
    talaria: Talaria, enabled: Callable[..., Path], server: ModelServer, home: Path
) -> None:
    enabled("pages", engine("pages"))
    enabled("diary", memory("diary", "def system_prompt_block(self): return 'You keep a diary.'"))
    assert json.loads(talaria("plugins", "list", "--json").stdout)["choices"] == {
        "engine": [
            ["compressor", "Built in: leaves out old tool output, then summarizes the middle with a model."],
            ["pages", "A plugin."],
        ],
        "memory": [["diary", "A plugin."]],
    }
    assert talaria("plugins", "choose", "engine", "pages").stdout == "Context engine: pages.\n"
    assert talaria("plugins", "choose", "memory", "diary").stdout == "Memory provider: diary.\n"
    shown = talaria("plugins", "list").stdout
    assert "pages (chosen)" in shown
    assert "diary (chosen)" in shown
    server.say("ok")
    assert talaria(input="hi\n/status\n").stderr.count("context engine pages") == 1
    assert "You keep a diary." in server.requests[-1].body.decode()

    wrong = talaria("plugins", "choose", "engine", "teapot")
    assert (wrong.returncode, "choose one of: compressor, pages" in wrong.stderr) == (2, True)
    asked = talaria("plugins", "choose", "engine")
    assert "compressor, pages" in asked.stderr


def test_at_a_terminal_engines_are_picked_by_number(
    talaria: Talaria, enabled: Callable[..., Path], open_terminal: Callable[..., Terminal], home: Path
) -> None:
    enabled("pages", engine("pages"))
    terminal = open_terminal("plugins", "choose", "engine")
    terminal.see("Number (Enter keeps it): ")
    terminal.type("2\n")
    assert terminal.end() == 0
    assert "engine: pages" in (home / "config.yaml").read_text()
    for answer, code in (("\n", 0), ("9\n", 2), ("pages\n", 2)):
        terminal = open_terminal("plugins", "choose", "engine")
        assert "pages (chosen)" in terminal.see("Number (Enter keeps it): ")
        terminal.type(answer)
        assert terminal.end() == code
    assert "engine: pages" in (home / "config.yaml").read_text()


def test_a_plugins_command_is_one_of_talaria(talaria: Talaria, enabled: Callable[..., Path]) -> None:
    assert "Plugin commands" not in talaria("--help").stdout
    enabled("greeter")
    assert "Greets somebody." in talaria("--help").stdout.partition("Plugin commands")[2]
    told = talaria("greet", "Ann", "--loud")
    assert (told.returncode, told.stdout) == (0, "hello Ann loudly\n")
    assert talaria("greet", "--code", "7").returncode == 7
    helped = talaria("greet", "--help")
    assert (helped.returncode, "--loud" in helped.stdout) == (0, True)
    wrong = talaria("greet", "--teapot")
    assert (wrong.returncode, "unrecognized arguments" in wrong.stderr) == (2, True)
    talaria("plugins", "disable", "greeter")
    assert "Greets somebody." not in talaria("--help").stdout
    assert talaria("greet").returncode == 2


HANDLERS = {
    "leaves with a word": ("lambda args: sys.exit('no tea')", 1, "no tea"),
    "leaves with a number": ("lambda args: sys.exit(4)", 4, ""),
    "leaves well": ("lambda args: sys.exit()", 0, ""),
    "answers true": ("lambda args: True", 0, ""),
    "answers text": ("lambda args: 'fine'", 0, ""),
    "is async": ("later", 6, ""),
    "breaks": ("lambda args: 1 / 0", 1, "ZeroDivisionError"),
}


@pytest.mark.parametrize("what", HANDLERS)
def test_a_plugins_command_ends_as_its_handler_says(talaria: Talaria, enabled: Callable[..., Path], what: str) -> None:
    handler, code, said = HANDLERS[what]
    source = f"""
import sys
async def later(args): return 6
def register(ctx):
    ctx.register_cli_command("brew", "Brews.", lambda parser: None, {handler})
"""
    enabled("pot", source)
    done = talaria("brew")
    assert said in done.stderr
    assert done.returncode == code or (code == 1 and done.returncode == 2)
    assert "never awaited" not in done.stderr
    if what == "breaks":
        assert "pot" in done.stderr or "brew" in done.stderr
        assert "inside Talaria" not in done.stderr


def test_a_plugins_command_may_have_commands_of_its_own_and_cannot_take_ours(
    talaria: Talaria, enabled: Callable[..., Path]
) -> None:
    source = """
def setup(parser):
    inner = parser.add_subparsers().add_parser("pour")
    inner.set_defaults(func=lambda args: print("poured"))
def register(ctx):
    ctx.register_cli_command("brew", "Brews.", setup)
    ctx.register_cli_command("doctor", "Not ours.", setup)
"""
    enabled("pot", source)
    assert talaria("brew", "pour").stdout == "poured\n"
    assert talaria("brew").returncode == 2
    assert "talaria" in talaria("doctor").stdout
    assert "Not ours." not in talaria("--help").stdout


def test_the_commands_that_no_plugin_may_have_are_all_of_ours(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALARIA_HOME", str(home))
    assert set(OWN_COMMANDS) == set(command_tree.talaria.list_commands(click.Context(command_tree.talaria)))


def test_a_plugin_that_has_changed_is_told_of_when_a_chat_begins(
    talaria: Talaria, enabled: Callable[..., Path], server: ModelServer
) -> None:
    folder = enabled("greeter")
    (folder / "__init__.py").write_text(GREETER + "# harmless\n")
    server.say("one", "two")
    asked = talaria("-q", "x")
    assert (asked.returncode, asked.stdout) == (0, "one\n")
    assert "greeter has changed" in asked.stderr
    assert "talaria plugins enable greeter" in asked.stderr
    assert "wave" not in server.requests[-1].body.decode()
    assert talaria("greet").returncode == 2
    doctor = talaria("doctor").stdout
    assert "warn  plugin greeter: has changed since you enabled it" in doctor
    assert "greeter has changed" in talaria(input="hi\n").stderr


def test_slash_commands_of_plugins_are_obeyed_and_listed(
    talaria: Talaria, enabled: Callable[..., Path], server: ModelServer
) -> None:
    enabled("greeter")
    done = talaria(input="/greet Ann\n/help\n")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("hello Ann\n")
    assert "/greet" in done.stderr.partition("Plugins:")[2]


def test_a_slash_command_that_breaks_does_not_end_the_chat(
    talaria: Talaria, enabled: Callable[..., Path], server: ModelServer
) -> None:
    enabled("odd", "def register(ctx): ctx.register_command('odd', lambda args: 1 / 0)\n")
    server.say("still here")
    done = talaria(input="/odd\nhello\n")
    assert (done.returncode, done.stdout) == (0, "still here\n")
    assert "/odd raised ZeroDivisionError" in done.stderr


INJECTING = """
def register(ctx):
    ctx.register_command("remind", lambda args: ctx.inject_message({content}) and "noted")
"""


def test_a_message_that_a_plugin_injects_is_a_turn_of_its_own(
    talaria: Talaria, enabled: Callable[..., Path], server: ModelServer
) -> None:
    enabled("reminder", INJECTING.format(content="f'Remember {args}'"))
    server.say("I do.", "And more.")
    done = talaria(input="/remind tea\nmore\n")
    assert (done.returncode, done.stdout) == (0, "I do.\nAnd more.\n")
    assert "Remember tea" in server.requests[0].body.decode()


@pytest.mark.parametrize("content", ["{'a': 1}", "'\\ud800'"])
def test_a_message_that_is_no_text_leaves_the_conversation_whole(
    talaria: Talaria, enabled: Callable[..., Path], server: ModelServer, content: str
) -> None:
    enabled("reminder", INJECTING.format(content=content))
    server.say("one", "two", "three")
    first = talaria(input="hello\n/remind x\n")
    again = talaria("-c", "-q", "and now?")
    assert "Internal error" not in first.stderr + again.stderr
    assert again.returncode == 0, again.stderr


def test_a_message_that_nobody_will_read_is_not_said_to_be_taken(
    talaria: Talaria, enabled: Callable[..., Path], server: ModelServer, home: Path
) -> None:
    """One question, and that is that."""
    source = """
import os
from pathlib import Path
def inject(ctx):
    taken = Path(os.environ["HERMES_HOME"], "taken")
    if not taken.exists():
        taken.write_text(str(ctx.inject_message("more")))
def register(ctx):
    ctx.register_hook("on_session_end", lambda **facts: inject(ctx))
"""
    enabled("eager", source)
    server.say("one", "two")
    done = talaria("-q", "x")
    assert ((home / "hermes" / "taken").read_text(), done.stdout) in [("False", "one\n"), ("True", "one\ntwo\n")]


def test_approval_that_a_plugin_wants_is_asked_for_at_the_terminal_and_refused_without_one(
    talaria: Talaria, enabled: Callable[..., Path], server: ModelServer, open_terminal: Callable[..., Terminal]
) -> None:
    source = GREETER + "    ctx.register_hook('pre_tool_call', doubt)\n"
    source += "def doubt(**facts): return {'action': 'approve', 'message': 'Is waving wise?'}\n"
    enabled("greeter", source)
    server.say(Reply(calls=(call("wave"),)), "Not waved.")
    assert talaria("-q", "wave!").stdout == "Not waved.\n"
    assert "nobody is here" in server.requests[-1].body.decode()

    terminal = open_terminal()
    terminal.see("/help")
    terminal.type("wave!\n")
    server.say(Reply(calls=(call("wave"),)), "Waved.")
    assert "Is waving wise?" in terminal.see("[N]o: ")
    terminal.type("y\n")
    terminal.see("Waved.")
    assert "waved" in server.requests[-1].body.decode()
    terminal.type("/quit\n")
    assert terminal.end() == 0


def test_the_doctor_is_content_where_all_plugins_are_well(
    talaria: Talaria, enabled: Callable[..., Path], server: ModelServer
) -> None:
    enabled("greeter")
    findings = json.loads(talaria("doctor", "--json").stdout)
    about = [(one["subject"], one["verdict"], one["text"]) for one in findings if "plugin" in one["subject"]]
    assert about == [("plugins", "ok", "loaded: greeter")]


def test_without_plugins_the_list_says_how_to_get_one(talaria: Talaria, home: Path) -> None:
    assert "talaria plugins install" in talaria("plugins", "list").stderr
    assert not (home / "hermes").exists()
    assert json.loads(talaria("plugins", "list", "--json").stdout)["plugins"] == []


def test_a_damaged_record_of_consents_is_one_sentence_and_help_is_still_there(
    talaria: Talaria, enabled: Callable[..., Path], server: ModelServer, home: Path
) -> None:
    enabled("greeter")
    (home / "plugins.json").write_text("{")
    done = talaria("-q", "x")
    assert (done.returncode, "plugins.json is damaged" in done.stderr) == (2, True)
    assert "Usage" in talaria("--help").stdout
    assert talaria("doctor").stdout


def test_a_command_of_an_engine_reaches_the_engine_of_the_conversation_in_use(
    talaria: Talaria, enabled: Callable[..., Path], server: ModelServer, home: Path
) -> None:
    told = """
    def on_session_start(self, session_id, **facts): self.session = session_id
def register(ctx):
    engine = Engine()
    ctx.register_context_engine(engine)
    ctx.register_command("who", lambda args: f"{engine.session} heard {args}")
"""
    enabled("made", engine("made").partition("def register")[0] + told)
    assert talaria("plugins", "choose", "engine", "made").returncode == 0
    server.say("hello")
    ended = talaria(input="/who tea\nhi\n/who tea\n/new\n/who tea\n/status\n")
    assert (ended.returncode, ended.stdout) == (0, "hello\n")
    heard = [line.removesuffix(" heard tea") for line in ended.stderr.splitlines() if line.endswith("heard tea")]
    assert heard[0] == heard[1] != heard[2]
    assert f"Session {heard[2]} " in ended.stderr
