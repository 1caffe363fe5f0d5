"""What a push would do is told from commits that are what they are called."""

import hashlib
import subprocess
from pathlib import Path

import pytest
from tests.contracts.sandboxes.desktop import git, make

from talaria.tools.broker.commits import RefUpdate, describe_push, read_commits
from talaria.tools.sandbox.base import SandboxPolicy
from talaria.tools.sandbox.local import Local


async def describe(folder: Path, old: str, new: str, ref: str = "refs/heads/main") -> tuple[bool, str]:
    update = RefUpdate(old, new, ref)
    async with Local().open(SandboxPolicy(project=folder, home=folder)) as host:
        push = describe_push(update, await read_commits(host, [folder / ".git"], [update]))
    return push.is_forced, push.text


def commit(folder: Path, subject: str) -> str:
    (folder / "file").write_text(subject)
    git(folder, "commit", "-qam", subject)
    return git(folder, "rev-parse", "HEAD").strip()


async def test_commits_are_listed_and_lost_ones_are_told(tmp_path: Path) -> None:
    work = make(tmp_path / "work")
    one = git(work, "rev-parse", "HEAD").strip()
    two = commit(work, "two")
    three = commit(work, "three")
    is_forced, text = await describe(work, one, three)
    assert not is_forced
    assert [line.split()[-1] for line in text.splitlines()[1:]] == ["three", "two"]
    is_forced, text = await describe(work, three, two)
    assert is_forced
    assert "replaces what is there (forced)" in text
    is_forced, _ = await describe(work, "9" * 40, three)
    assert is_forced, "nothing is known of what the server has"
    is_forced, text = await describe(work, "0" * 40, three)
    assert not is_forced
    assert [line.split()[-1] for line in text.splitlines()[1:]] == ["three", "two", "one"]
    _, text = await describe(work, one, "8" * 40)
    assert "its commits cannot be read here" in text


async def test_a_commit_that_is_not_what_it_is_called_does_not_count(tmp_path: Path) -> None:
    """Control: git itself does not look when it reads one."""
    work = make(tmp_path / "work")
    old = commit(work, "old")
    git(work, "checkout", "-q", "--orphan", "other")
    git(work, "commit", "-qm", "unrelated")
    new = git(work, "rev-parse", "HEAD").strip()
    tree = git(work, "rev-parse", "HEAD^{tree}").strip()
    forged = git(work, "commit-tree", tree, "-p", old, "-m", "child of old").strip()
    objects = work / ".git/objects"
    place = objects / new[:2] / new[2:]
    place.chmod(0o644)
    place.write_bytes((objects / forged[:2] / forged[2:]).read_bytes())
    assert git(work, "rev-list", "--parents", "-n", "1", new).split()[1:] == [old]
    assert hashlib.sha1(git(work, "cat-file", "commit", forged).encode()).hexdigest() != new
    is_forced, text = await describe(work, old, new)
    assert is_forced
    assert "child of old" not in text


def store_commit(folder: Path, text: str) -> str:
    words = ("git", "-C", str(folder), "hash-object", "-t", "commit", "-w", "--literally", "--stdin")
    return subprocess.run(words, input=text, capture_output=True, text=True, check=True).stdout.strip()


async def test_a_parent_in_a_place_where_git_does_not_look_makes_no_push_a_harmless_one(tmp_path: Path) -> None:
    work = make(tmp_path / "work")
    old = git(work, "rev-parse", "HEAD").strip()
    who = "Ada <ada@example.org> 1700000000 +0000"
    tree = git(work, "rev-parse", "HEAD^{tree}").strip()
    new = store_commit(work, f"tree {tree}\nauthor {who}\ncommitter {who}\nparent {old}\n\nharmless\n")
    assert git(work, "rev-list", "--parents", "-n", "1", new).split() == [new], "control: git sees no parent"
    is_forced, _ = await describe(work, old, new)
    assert is_forced


@pytest.mark.parametrize("lie", ["graft", "shallow", "remote ref", "forged old"])
async def test_no_commit_is_left_out_because_the_repository_says_that_the_server_has_it(
    tmp_path: Path, lie: str
) -> None:
    work = make(tmp_path / "work")
    base = git(work, "rev-parse", "HEAD").strip()
    git(work, "switch", "-qc", "side")
    evil = commit(work, "evil")
    git(work, "switch", "-q", "main")
    git(work, "commit", "-q", "--allow-empty", "-m", "old")
    old = git(work, "rev-parse", "HEAD").strip()
    git(work, "merge", "-q", "--no-ff", "-m", "merged", "side")
    new = git(work, "rev-parse", "HEAD").strip()
    match lie:
        case "graft":
            (work / ".git/info/grafts").write_text(f"{new} {old}\n")
        case "shallow":
            (work / ".git/shallow").write_text(f"{new}\n")
        case "remote ref":
            git(work, "update-ref", "refs/remotes/origin/x", evil)
        case _:
            tree = git(work, "rev-parse", f"{old}^{{tree}}").strip()
            forged = git(work, "commit-tree", tree, "-p", base, "-p", evil, "-m", "old").strip()
            place = work / ".git/objects" / old[:2] / old[2:]
            place.chmod(0o644)
            place.write_bytes((work / ".git/objects" / forged[:2] / forged[2:]).read_bytes())
    known_to_git = git(work, "rev-list", new, f"^{old}", "--not", "--remotes").split()
    assert evil not in known_to_git, "control"
    _, text = await describe(work, old, new)
    assert "evil" in text or "there may be more" in text
    _, text = await describe(work, "0" * 40, new)
    assert "evil" in text or "there may be more" in text


async def test_a_tag_is_told_with_what_it_names_and_moving_one_is_forced(tmp_path: Path) -> None:
    work = make(tmp_path / "work")
    git(work, "tag", "-a", "v1", "-m", "Release one")
    one = git(work, "rev-parse", "v1").strip()
    _, text = await describe(work, "0" * 40, one, "refs/tags/v1")
    assert text.startswith("tag v1: new")
    assert "Release one" in text
    two = commit(work, "two")
    is_forced, _ = await describe(work, git(work, "rev-parse", "HEAD~1").strip(), two, "refs/tags/v1")
    assert is_forced


async def test_a_long_subject_says_that_it_goes_on_and_one_after_empty_lines_is_shown(tmp_path: Path) -> None:
    work = make(tmp_path / "work")
    tree, who = git(work, "rev-parse", "HEAD^{tree}").strip(), "Ada <ada@example.org> 1700000000 +0000"
    new = store_commit(work, f"tree {tree}\nauthor {who}\ncommitter {who}\n\n\n\n{'x' * 200}\n")
    _, text = await describe(work, "0" * 40, new)
    assert f"{'x' * 100}…" in text
    assert new in text, "a short name could be that of another commit"
