"""The package caches of a project: where commands find them, and how they stay within their limit."""

import threading
from pathlib import Path

import pytest
from msgspec import json

from talaria.tools.sandbox.base import Bind, SandboxPolicy
from talaria.tools.sandbox.caches import use_caches, with_caches


def wait_for_tidying() -> None:
    for thread in threading.enumerate():
        if thread.name == "package caches":
            thread.join(30)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What is kept for a project, after a first session."""
    with use_caches(tmp_path / "kept", 1 << 20):
        wait_for_tidying()
    return tmp_path / "kept"


def view(person: Path, **more: object) -> SandboxPolicy:
    return SandboxPolicy(**{"project": Path("/project"), "home": person, **more})  # pyright: ignore[reportArgumentType]


def test_caches_are_where_tools_look_for_them(folder: Path, tmp_path: Path) -> None:
    seen = with_caches(view(tmp_path, environment={"GOFLAGS": "-mod=mod"}), folder, can_mount=True)
    places = {str(bind.at.relative_to(tmp_path)) for bind in seen.binds if bind.is_writable}
    assert places >= {".cache", ".npm", "go/pkg", ".cargo/registry", ".m2/repository", ".local/share/pnpm/store"}
    assert places.isdisjoint({".cargo", ".m2", ".gradle", ".config"})
    assert seen.environment["GOFLAGS"] == "-mod=mod"  # the person's own
    assert (folder / "pnpm-rc").read_text() == f"store-dir={tmp_path}/.local/share/pnpm/store\n"


def test_without_mounts_variables_lead_there(folder: Path, tmp_path: Path) -> None:
    seen = with_caches(view(tmp_path), folder, can_mount=False)
    assert seen.environment["PIP_CACHE_DIR"] == f"{folder}/cache/cache/pip"
    assert seen.environment["CARGO_HOME"] == f"{folder}/cache/cargo-home"
    assert all(bind.source == bind.at and bind.source.parent == folder / "cache" for bind in seen.binds)


def test_what_is_shown_below_a_cache_stays_and_nothing_is_put_over_what_can_be_written(
    folder: Path, tmp_path: Path
) -> None:
    venv = tmp_path / ".cache/pypoetry/virtualenvs/shop"
    seen = with_caches(view(tmp_path, reads=(venv,)), folder, can_mount=True)
    assert seen.binds.index(Bind(venv, venv)) > seen.binds.index(
        Bind(folder / "cache/cache", tmp_path / ".cache", True)
    )
    in_home = with_caches(view(tmp_path, project=tmp_path), folder, can_mount=True)
    assert in_home.binds == ()
    around = with_caches(view(tmp_path, writes=(tmp_path / ".cache/models",)), folder, can_mount=True)
    assert tmp_path / ".cache" not in {bind.at for bind in around.binds}


def test_a_link_is_not_taken_for_a_cache(folder: Path, tmp_path: Path) -> None:
    (folder / "cache/npm").rmdir()
    (folder / "cache/npm").symlink_to(tmp_path)
    for can_mount in (True, False):
        seen = with_caches(view(tmp_path), folder, can_mount=can_mount)
        assert folder / "cache/npm" not in {bind.source for bind in seen.binds}
    with pytest.raises(OSError, match="link"), use_caches(folder, 1 << 30):
        pass


def fill(folder: Path, **used_at: float) -> None:
    for name in used_at:
        (folder / "cache/cache" / name / "deep").mkdir(parents=True)
        (folder / "cache/cache" / name / "deep/file").write_bytes(b"x" * 600_000)
    sizes = {f"cache/{name}": (600_000, at) for name, at in used_at.items()}
    (folder / "cache/.sizes").write_bytes(json.encode(sizes))


def test_the_least_recently_used_goes_when_there_is_too_much(folder: Path) -> None:
    fill(folder, pip=2.0, uv=1.0)
    (folder / "cache/cache/uv/deep").chmod(0o500)  # as Go leaves modules
    with use_caches(folder, 1_000_000):
        wait_for_tidying()
        assert [path.name for path in (folder / "cache/cache").iterdir()] == ["pip"]
        assert not [path for path in (folder / "cache").iterdir() if path.name.startswith(".gone")]
        sizes = json.decode((folder / "cache/.sizes").read_bytes())
        assert 600_000 <= sizes["cache/pip"][0] < 700_000


def test_nothing_is_emptied_while_another_session_of_the_project_runs(folder: Path) -> None:
    with use_caches(folder, 1 << 30):
        fill(folder, pip=2.0, uv=1.0)
        with use_caches(folder, 1_000_000):
            wait_for_tidying()
            assert {path.name for path in (folder / "cache/cache").iterdir()} == {"pip", "uv"}
