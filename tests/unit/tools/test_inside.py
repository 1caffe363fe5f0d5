"""What is found in a project that its commands shall not reach."""

import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from talaria.tools.sandbox.inside import (
    MAX_FOLDERS,
    MAX_MOUNTS,
    find_guardable,
    fit_mounts,
    folders_between,
    scan_project,
)


def repository(folder: Path) -> Path:
    git = folder / ".git"
    (git / "hooks").mkdir(parents=True)
    (git / "config").write_text("[core]\n")
    return git


@contextmanager
def listening(file: Path) -> Generator[None]:
    """Bound from its folder: the names of sockets are short."""
    before = Path.cwd()
    os.chdir(file.parent)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(file.name)
            listener.listen()
            yield
    finally:
        os.chdir(before)


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/main.py").write_text("")
    found = scan_project(tmp_path)
    assert (found.policy, found.sockets, found.missing) == ((), (), ())
    assert found.folders == ("", "src")


def test_hooks_and_settings_of_repositories_inside_are_found_however_deep(tmp_path: Path) -> None:
    near, deep = repository(tmp_path / "lib"), repository(tmp_path / "vendor/a/b/c/d/e")
    submodule = tmp_path / "module"
    submodule.mkdir()
    (submodule / ".git").write_text("gitdir: ../.git/modules/module\n")
    assert set(scan_project(tmp_path).policy) == {
        *(near / "hooks", near / "config", deep / "hooks", deep / "config"),
        submodule / ".git",
    }


def test_what_git_would_obey_is_listed_where_it_is_missing(tmp_path: Path) -> None:
    git = tmp_path / "lib/.git"
    git.mkdir(parents=True)
    settings = (
        "[core]\n hooksPath = tools\n[include]\n path = more\n path = /elsewhere\n[extensions]\n worktreeConfig\n"
    )
    (git / "config").write_text(settings)
    (git / "worktrees/w").mkdir(parents=True)
    found = scan_project(tmp_path)
    assert found.policy == (git / "config",)
    assert set(found.missing) == {
        *(git / "hooks", git / "commondir", tmp_path / "lib/tools", git / "more", git / "config.worktree"),
        *(git / "worktrees/w" / name for name in ("commondir", "gitdir", "config.worktree")),
    }
    assert found.folders == ("", "lib")


def test_settings_that_include_each_other_do_not_hold_us_up(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        git = repository(tmp_path / name)
        many = "".join(f" path = {'./' * count}config\n" for count in range(20))
        trees = "".join(f" worktree = ../{count}\n" for count in range(1000))
        (git / "config").write_text(f"[include]\n{many} path = ../../{other}/.git/config\n[core]\n{trees}")
        (git / "commondir").write_text(f"../../{other}/.git")
    inner = {tmp_path / name / ".git" / what for name in "ab" for what in ("hooks", "config", "commondir")}
    assert set(scan_project(tmp_path).policy) == inner


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    repository(tmp_path / "elsewhere")
    project = tmp_path / "project"
    project.mkdir()
    (project / "linked").symlink_to(tmp_path / "elsewhere")
    (project / "around").symlink_to(project)
    assert scan_project(project).policy == ()


def test_what_programs_make_by_the_thousand_is_passed_over(tmp_path: Path) -> None:
    repository(tmp_path / "node_modules/package")
    assert scan_project(tmp_path).policy == ()


def test_a_large_project_is_looked_through_from_near_to_far_and_not_without_end(tmp_path: Path) -> None:
    near = repository(tmp_path / "near")
    for number in range(MAX_FOLDERS):
        (tmp_path / f"b/{number}").mkdir(parents=True)
    repository(tmp_path / "b/0/1/2/far")
    assert scan_project(tmp_path).policy == (near / "hooks", near / "config")


def test_where_there_are_too_many_repositories_to_mount_none_is_left_open(tmp_path: Path) -> None:
    near = repository(tmp_path / "near")
    inner = [repository(tmp_path / f"vendor/{number}") for number in range(MAX_MOUNTS)]
    found = scan_project(tmp_path).policy
    assert {git / name for git in (near, *inner) for name in ("hooks", "config")} <= set(found)
    fitting = fit_mounts((tmp_path,), found)
    assert len(fitting) + len(folders_between((tmp_path,), fitting)) <= MAX_MOUNTS
    assert all(any(place.is_relative_to(one) for one in fitting) for place in found)
    assert {near / "hooks", near / "config"} <= set(fitting)
    assert tmp_path not in fitting


def test_a_project_with_more_repositories_than_can_be_mounted_can_only_be_read(tmp_path: Path) -> None:
    places = [tmp_path / str(number) / ".git" / name for number in range(10) for name in ("config", "hooks")]
    assert fit_mounts((tmp_path,), places, 40) == tuple(places)
    assert fit_mounts((tmp_path,), places, 38) == (*places[:-2], tmp_path / "9/.git")
    assert set(fit_mounts((tmp_path,), places, 10)) == {place.parents[1] for place in places}
    assert fit_mounts((tmp_path,), places, 9) == (tmp_path,)


def test_a_socket_is_found_while_somebody_listens_and_not_once_it_is_only_left_over(tmp_path: Path) -> None:
    file = tmp_path / "run/database.sock"
    file.parent.mkdir()
    with listening(file):
        assert scan_project(tmp_path).sockets == (file,)
    assert file.is_socket()
    assert scan_project(tmp_path).sockets == ()


def test_what_may_not_be_looked_into_is_passed_over(tmp_path: Path) -> None:
    git = repository(tmp_path / "open")
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone/loop").symlink_to("loop")
    assert scan_project(tmp_path).policy == (git / "hooks", git / "config")


def test_a_git_that_is_a_link_and_hooks_that_are_one_are_not_followed(tmp_path: Path) -> None:
    elsewhere = repository(tmp_path / "elsewhere")
    project = tmp_path / "project"
    for name in ("one", "two/.git"):
        (project / name).mkdir(parents=True)
    (project / "one/.git").symlink_to(elsewhere)
    (project / "two/.git/hooks").symlink_to(elsewhere / "hooks")
    assert scan_project(project).policy == (project / "two/.git",)  # the whole of it: the link could be replaced


def test_what_a_link_leads_to_is_guarded_only_inside(tmp_path: Path) -> None:
    elsewhere = repository(tmp_path / "elsewhere")
    inner = repository(tmp_path / "project/inner")
    project = tmp_path / "project"
    (project / ".git").symlink_to(elsewhere)
    (project / "linked").symlink_to("inner/.git")
    (project / "plain").write_text("")
    places = [project / name for name in (".git/hooks", "linked/hooks", "plain", "missing/x")]
    assert [*find_guardable((project,), iter(places))][:2] == [inner / "hooks", project / "plain"]
    assert not any(place.is_relative_to(tmp_path / "elsewhere") for place in find_guardable((project,), iter(places)))
