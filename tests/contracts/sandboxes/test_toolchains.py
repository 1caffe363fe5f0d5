"""Toolchains, package caches and variables of the person, as commands find them."""

import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from tests.contracts.sandboxes.conftest import Alone, Use, calling

from talaria.core.clock import SystemClock
from talaria.tools.base import Scope
from talaria.tools.builtin.terminal import terminal_tools
from talaria.tools.sandbox.sandbox_settings import Backend, TerminalSettings
from talaria.tools.workspaces import Workspaces

SANDBOXES: tuple[Backend, ...] = ("seatbelt",) if sys.platform == "darwin" else ("bubblewrap", "landlock")


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "person"
    for name in (".cache/pip", ".cargo/bin", ".cargo/registry"):
        (home / name).mkdir(parents=True)
    (home / ".cache/pip/mine").write_text("the person's")
    (home / ".cargo/credentials.toml").write_text("hush")
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "RUSTUP_HOME", "CARGO_HOME", "PYENV_ROOT", "NVM_DIR", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    return home


@asynccontextmanager
async def session(settings: TerminalSettings, scope: Scope) -> AsyncGenerator[tuple[Use, Workspaces]]:
    async with aclosing(Workspaces(settings, scope.spill.parents[1], SystemClock())) as workspaces:
        yield calling(scope, terminal_tools(workspaces), Alone()), workspaces


@pytest.mark.parametrize("backend", SANDBOXES, indirect=True)
async def test_commands_find_toolchains_variables_and_their_own_caches(
    backend: Backend, person: Path, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = person / ".cache/pypoetry/virtualenvs/shop"  # where Poetry puts it
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\n")
    (venv / "bin/greet").write_text("#!/bin/sh\necho hello from $VIRTUAL_ENV\n")
    (venv / "bin/greet").chmod(0o755)
    monkeypatch.setenv("VIRTUAL_ENV", str(venv))
    monkeypatch.setenv("PATH", f"{venv}/bin:/usr/local/bin:/usr/bin:/bin")
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "shop.settings")
    monkeypatch.setenv("GH_TOKEN", "hush")
    settings = TerminalSettings(backend=backend, env=("DJANGO_SETTINGS_MODULE",))
    keep = "c=${PIP_CACHE_DIR:-$HOME/.cache/pip}; mkdir -p $c && echo kept > $c/wheel"
    async with session(settings, scope) as (use, _):
        said = (
            await use(
                "terminal",
                command=f"greet; echo $DJANGO_SETTINGS_MODULE [$GH_TOKEN]; touch {venv}/x || echo read-only; {keep}; "
                f"cat {person}/.cargo/credentials.toml {person}/.cache/pip/mine; echo ended",
            )
        ).text
    assert f"hello from {venv}\nshop.settings []\n" in said
    assert "read-only" in said
    assert "the person's" not in said
    assert "hush" not in said
    assert not (venv / "x").exists()
    assert [path.name for path in (person / ".cache/pip").iterdir()] == ["mine"]
    async with session(settings, scope) as (use, _):
        assert (await use("terminal", command="cat ${PIP_CACHE_DIR:-~/.cache/pip}/wheel")).text.startswith("kept\n")
    async with session(TerminalSettings(backend=backend, cache_gb=0), scope) as (use, _):
        assert "No such file" in (await use("terminal", command="cat ${PIP_CACHE_DIR:-~/.cache/pip}/wheel")).text


PATH = "/usr/local/bin:/usr/bin:/bin"
ASKING = {
    "pip": ("pip download --no-deps --no-input --retries 0 --index-url https://pypi.org/simple idna", "pypi.org"),
    "uv": ("uv pip install --no-config --index-url https://pypi.org/simple --target uv idna", "pypi.org"),
    "npm": ("npm view --fetch-retries 0 left-pad", "registry.npmjs.org"),
    "pnpm": ("pnpm view --fetch-retries 0 left-pad", "registry.npmjs.org"),
    "cargo": ("cargo init -q --name shop rust && (cd rust && cargo -q add rand)", "index.crates.io"),
    "go": ("go mod download golang.org/x/text@v0.14.0", "proxy.golang.org"),
}
"""Of those that are not installed nothing is shown."""


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
async def test_package_managers_ask_the_egress_proxy_for_their_registries(
    backend: Backend, person: Path, scope: Scope
) -> None:
    assert person.is_dir()
    tools = {name: asked for name, asked in ASKING.items() if shutil.which(name, path=PATH)}
    if not tools:
        pytest.skip("no package manager is installed")
    async with session(TerminalSettings(backend=backend), scope) as (use, workspaces):
        await use("terminal", command="; ".join(f"timeout 30 {command}" for command, _ in tools.values()))
        blocked = (await workspaces.open(scope)).egress.blocked
    assert {f"{host}:443" for _, host in tools.values()} <= set(blocked)
