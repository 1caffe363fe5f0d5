"""What a push would do is told from commits that are what they are called."""

import hashlib
from pathlib import Path

from tests.contracts.sandboxes.test_git import git, make

from talaria.tools.broker.commits import describe_push
from talaria.tools.broker.packets import RefUpdate
from talaria.tools.sandbox.base import View
from talaria.tools.sandbox.local import Local


async def describe(folder: Path, old: str, new: str) -> tuple[bool, str]:
    async with Local().opened(View(project=folder, home=folder)) as host:
        push = await describe_push(RefUpdate(old, new, "refs/heads/main"), host, folder / ".git")
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
    assert "new, " in text


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
