"""The examples in docs/how-to work as they stand."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import cast

from talaria.app.settings import read_settings
from talaria.config.routes import plan
from talaria.config.selection import ModelChoice, choose, endpoint
from talaria.core.secret import Secret
from talaria.testing import ModelServer, Reply, call
from talaria.testing.servers.scripted_replies import ReplyUsage
from talaria.tools.sandbox_permissions import (
    Permission,
    PermissionKind,
    make_unsandboxed_permission,
    network_permission,
)

TALARIA = (sys.executable, "-m", "talaria.cli.main")
HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
REPOSITORY = "work-on-a-real-repository.md"


def blocks(file: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (HOW_TO / file).read_text("utf-8"), re.DOTALL)


def block(file: str, language: str) -> str:
    return blocks(file, language)[0]


def test_the_tool_of_the_how_to_runs(tmp_path: Path) -> None:
    environment = {**os.environ, "TALARIA_HOME": str(tmp_path / "home")}
    ran = subprocess.run(
        [sys.executable, "-c", block("add-a-tool.md", "python")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "100.0" in ran.stdout


def test_the_agent_of_the_how_to_answers(environment: dict[str, str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", block("use-it-from-python.md", "python")],
        env=environment,
        cwd=environment["PWD"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "5" in ran.stdout


def test_the_model_of_the_how_to_is_chosen_with_its_fallback_and_limit(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(block("choose-a-model.md", "yaml"))
    config, keys = read_settings(tmp_path).config, {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "b"}
    planned = plan(endpoint(choose(config, keys) or ModelChoice("demo"), config, keys), config, keys)
    assert [one.label for one in planned.route.endpoints] == ["anthropic:claude-sonnet-4-5", "openai:gpt-5"]
    assert (planned.left_out, config.limits.turn.cost_usd) == ((), 2.0)


def test_the_tests_of_the_how_to_pass(tmp_path: Path) -> None:
    for number, text in enumerate(blocks("test-what-you-write.md", "python")):
        (tmp_path / f"test_{number}.py").write_text(text)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "XDG_RUNTIME_DIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "3 passed" in ran.stdout, ran.stdout


def test_the_provider_of_the_how_to_is_understood(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(block("add-a-provider.md", "yaml"))
    (tmp_path / ".env").write_text("HOUSE_KEY=k\n")
    (tmp_path / ".env").chmod(0o600)
    settings = read_settings(tmp_path)
    choice = choose(settings.config, settings.environment)
    assert choice is not None
    chosen = endpoint(choice, settings.config, settings.environment)
    assert (chosen.label, chosen.keys, chosen.window) == ("house:llama-4", (Secret("k"),), 131072)


def test_the_fallbacks_of_the_how_to_are_understood(tmp_path: Path) -> None:
    _, fallbacks = blocks("add-a-provider.md", "yaml")
    given = fallbacks.replace("house: {", "house: {base_url: 'http://127.0.0.1:9/v1', ")
    (tmp_path / "config.yaml").write_text(f"model: {{default: 'groq:m', api_key: k}}\n{given}")
    settings = read_settings(tmp_path)
    primary = endpoint(choose(settings.config, {}) or ModelChoice("groq"), settings.config, {})
    planned = plan(primary, settings.config, {"OPENROUTER_API_KEY": "k"})
    first, second = planned.route.fallbacks
    assert (first.label, len(first.keys), first.rotation, first.timeouts.first_byte_s) == (
        "house:llama-4",
        2,
        "round_robin",
        900,
    )
    assert second.label == "openrouter:openrouter/auto"


def run(home: Path, *arguments: str) -> str:
    environment = {**os.environ, "TALARIA_HOME": str(home / "home")}
    ran = subprocess.run(
        [*TALARIA, *arguments], cwd=home, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return ran.stdout


def written(folder: Path, file: str, name: str) -> Path:
    folder.mkdir()
    manifests = blocks(file, "yaml")
    (folder / "plugin.yaml").write_text(manifests[0] if manifests else f"name: {name}\n")
    (folder / "__init__.py").write_text(block(file, "python"))
    return folder


def test_the_plugin_of_the_how_to_works(tmp_path: Path) -> None:
    written(tmp_path / "almanac", "add-a-plugin.md", "almanac")
    lines = block("add-a-plugin.md", "sh").splitlines()
    said = [run(tmp_path, *shlex.split(line)[1:]) for line in lines][-1]
    assert "full" in said
    blocked = run(tmp_path, "chat", "-m", "demo", "-q", "run rm notes.txt")
    assert "does not let things be deleted" in blocked
    moon = subprocess.run(
        [*TALARIA, "chat", "-m", "demo"],
        cwd=tmp_path,
        env={**os.environ, "TALARIA_HOME": str(tmp_path / "home")},
        input="/moon 21\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "waning" in moon.stderr


def test_the_context_engine_of_the_how_to_works(tmp_path: Path) -> None:
    written(tmp_path / "attic", "add-a-context-engine.md", "attic")
    for line in block("add-a-context-engine.md", "sh").splitlines():
        run(tmp_path, *shlex.split(line)[1:])
    config = tmp_path / "home" / "config.yaml"
    with ModelServer() as server:
        model = f"model: {{default: m, base_url: '{server.base_url}', context_length: 4000}}\n"
        config.write_text(model + config.read_text())
        server.say(*(Reply(f"answer {n} " + "word " * 20, usage=ReplyUsage(input=500 * n)) for n in range(8)))
        server.say(Reply(calls=(call("attic_search", word="answer 2"),)), "found")
        lines = "".join(f"question {n}\n" for n in range(9))
        subprocess.run(
            [*TALARIA, "chat"],
            cwd=tmp_path,
            env={**os.environ, "TALARIA_HOME": str(tmp_path / "home")},
            input=lines,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        sent = [request.body.decode() for request in server.requests]
    assert "older messages are in the attic" in sent[-1]
    assert "answer 2" in json.loads(json.loads(sent[-1])["messages"][-1]["content"])[0]


def test_the_questions_of_the_how_to_are_those_that_people_are_asked() -> None:
    text = (HOW_TO / REPOSITORY).read_text("utf-8")
    asked = dict(
        re.findall(r"^\| `((?:network|write|port|socket|publish) \S+|unsandboxed)` \| (.*\?) \|$", text, re.MULTILINE)
    )
    assert len(asked) == 6
    for need, question in asked.items():
        kind, _, what = need.partition(" ")
        permission = (
            network_permission(what) if kind == "network" else Permission(cast("PermissionKind", kind), (what,))
        )
        assert question in (permission.question, permission.question.replace("Let commands run", "Run this command"))


def test_the_commands_of_the_how_to_are_those_that_a_yes_for_longer_is_offered_for() -> None:
    text = " ".join((HOW_TO / REPOSITORY).read_text("utf-8").split())
    listed = text.partition("that run nothing else: ")[2].partition(". You are only offered")
    commands = [
        f"{group.split()[0]} {subcommand}"
        for group in (re.sub("`([^`]*)`", r"\1", one).strip() for one in listed[0].split(";"))
        for subcommand in re.sub(",| and ", " ", group).split()[1:]
    ]
    assert len(commands) == 15
    assert all(make_unsandboxed_permission(f"{command} x").may_last for command in commands)
    others = re.findall("`([^`]*)`", listed[2].partition("everything else, such as ")[2].partition(", or ")[0])
    assert len(others) == 5
    assert not any(make_unsandboxed_permission(f"{command} x").may_last for command in others)


def test_the_settings_of_a_project_in_the_how_to_reach_its_commands(tmp_path: Path) -> None:
    environment = {**os.environ, "TALARIA_HOME": str(tmp_path / "home"), "DJANGO_SETTINGS_MODULE": "shop.settings"}
    project = tmp_path / "shop"
    project.mkdir()

    def talaria(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*TALARIA, *arguments],
            cwd=project,
            env=environment,
            input=typed,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )

    for line in block(REPOSITORY, "sh").splitlines():
        told = talaria(*shlex.split(line)[1:])
        if line.endswith("get --project"):
            assert json.loads(told.stdout)["terminal"]["ports"] == [5432]
    shown = talaria("chat", "-m", "demo", typed="run echo $DJANGO_SETTINGS_MODULE\n/sandbox all\n")
    assert "shop.settings" in shown.stdout + shown.stderr
    assert "Hosts allowed without asking: pypi.org, files.pythonhosted.org" in shown.stderr
    assert "Variables: DJANGO_SETTINGS_MODULE" in shown.stderr
    assert "Ports of this machine" not in shown.stderr
    assert [*project.iterdir()] == []
    assert talaria("approvals", "list").stdout == ""
