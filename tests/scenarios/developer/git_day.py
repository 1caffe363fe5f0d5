"""Git: from a subfolder, in a worktree and a submodule, settings, a rebase with conflicts, a worktree beside, signed
commits, pushing and fetching."""

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.contracts.sandboxes.git_server import LOGIN, GitServer
from tests.contracts.sandboxes.tls_server import served
from tests.scenarios.developer.day import Day, wanted

SOURCE = "def price():\n    return 1\n"


async def spend(day: Day) -> None:
    library = day.person / "src/library"
    library.mkdir()
    for repository, name in ((library, "words.py"), (day.project, "shop.py")):
        day.outside("git init -q", repository)
        day.write({name: SOURCE, "api/notes.txt": "one\n"}, repository)
        day.outside("git add . && git commit -qm one", repository)
    day.outside(f"git -c protocol.file.allow=always submodule --quiet add {library} lib && git commit -qm lib")
    day.outside("git worktree add -q ../side")
    await _work_in_subfolder(day)
    await _work_elsewhere(day, day.person / "src/side", day.project / "lib")
    await _rebase(day)
    await _add_worktree_beside(day)
    folder = day.person / "server"
    folder.mkdir()
    with served(GitServer(folder)) as server, _signing_key():
        await _sign_and_push(day, server)
    day.was_asked()


async def _work_in_subfolder(day: Day) -> None:
    folder = day.project / "api"
    await day.begin()
    assert "On branch main" in await day.run("git status", project=folder)
    await day.run("echo two >> notes.txt && git commit -qam 'from below'", project=folder)
    await day.run("git config user.name Grace && git switch -qc topic main && git branch --track follows main")
    await day.run(
        "echo three >> notes.txt && git stash && git switch -q main && git stash pop && git commit -qam three"
    )
    await day.run("git remote add origin https://code.example/shop.git")
    if day.level == "bubblewrap":
        day.was_asked(f"Set remote origin of {day.project} to https://code.example/shop.git?")
        refused = await day.run("git config core.pager ./look")
        assert "core.pager was not saved" in refused
    else:
        day.was_asked("Commands have changed files that other programs obey. Keep these changes?")
    await day.end()
    assert day.outside("git log --format=%s,%an -2") == "three,Grace\nfrom below,Ada\n"
    assert day.outside("git config user.name && git remote get-url origin && git config branch.follows.merge") == (
        "Grace\nhttps://code.example/shop.git\nrefs/heads/main\n"
    )
    assert "pager" not in day.outside("git config --list --local")


async def _work_elsewhere(day: Day, *folders: Path) -> None:
    for folder in folders:
        await day.begin()
        await day.run(f"echo new > {folder.name}.txt && git add . && git commit -qm new && git status", project=folder)
        await day.end()
        assert day.outside("git log -1 --format=%s && git status -s", folder) == "new\n"


async def _rebase(day: Day) -> None:
    await day.begin()
    change = "sed -i s/1/{0}/ shop.py && git commit -qam {0}"
    await day.run(f"git switch -q topic && {change.format(2)} && git switch -q main && {change.format(3)}")
    stopped = await day.fail("git rebase main topic")
    assert "CONFLICT" in stopped
    await day.run("sed -i '/^[<=>]/d; /return 3/d' shop.py && git add shop.py && GIT_EDITOR=true git rebase --continue")
    await day.end()
    assert day.outside("git log --format=%s -2") == "2\n3\n"
    assert (day.project / "shop.py").read_text() == "def price():\n    return 2\n"
    assert day.outside("git fsck --no-dangling 2>/dev/null && git status -s --ignore-submodules") == ""


async def _add_worktree_beside(day: Day) -> None:
    beside = day.person / "src/beside"
    await day.begin()
    refused = await day.fail("git worktree add ../beside")
    need = f"write {beside}/"
    assert f'needs: ["{need}"]' in refused, refused
    assert not beside.exists()
    await day.run("git worktree add ../beside && echo kept > ../beside/new.txt", needs=[need])
    day.was_asked(f"Let commands make the folder {beside}, and read, change and delete everything in it?")
    await day.run("cd ../beside && git add new.txt && git commit -qm beside && git status")
    await day.end()
    assert (beside / "new.txt").read_text() == "kept\n"
    assert day.outside("git log -1 --format=%s,%an", beside) == "beside,Grace\n"

    await day.begin()
    next_day = "cd ../beside && git commit -q --allow-empty -m 'next day'"
    if day.level == "bubblewrap":
        await day.run(next_day)
    else:
        assert f"{beside} stays closed" in await day.fail(next_day), "its .git cannot be guarded there"
        await day.run(next_day, needs=["unsandboxed"])
        day.was_asked("Run this command outside the sandbox, with your rights: your files, keys and network?")
    await day.fail("touch ../other")
    await day.end()
    assert day.outside("git log -1 --format=%s beside") == "next day\n"


@contextmanager
def _signing_key() -> Generator[None]:
    """Of gpg, whose sockets need a short path."""
    wanted("gpg")
    with TemporaryDirectory(prefix="gpg-") as folder:
        os.environ["GNUPGHOME"] = folder
        make = (
            "gpg",
            "-q",
            "--batch",
            "--passphrase",
            "",
            "--quick-gen-key",
            "Ada <ada@example.org>",
            "ed25519",
            "sign",
        )
        subprocess.run(make, capture_output=True, check=True)
        try:
            yield
        finally:
            subprocess.run(("gpgconf", "--kill", "all"), capture_output=True, check=False)


async def _sign_and_push(day: Day, server: GitServer) -> None:
    address = f"{server.address}/shop.git"
    day.write({".git-credentials": f"https://{LOGIN}@{server.address.removeprefix('https://')}\n"}, day.person)
    day.outside(f"git init -q --bare {server.folder}/shop.git")
    for setting in (
        f"http.sslCAInfo {server.certificate}",
        "credential.helper store",
        "commit.gpgSign true",
        "user.signingKey ada@example.org",
    ):
        day.outside(f"git config --global {setting}")
    day.outside(f"git switch -q main && git remote add upstream {address}")
    change = "echo {0} > {0}.txt && git add . && git commit -qm {0} && git push -q upstream main"
    await day.begin()
    if not day.has_network:
        assert "cannot be signed at the landlock level" in await day.fail(change.format("four"))
        push = "git push -q upstream main"
        refused = await day.fail(push)
        assert "no network at the landlock level" in refused, refused
        await day.run(push, needs=["unsandboxed"])
        day.was_asked("Run this command outside the sandbox, with your rights: your files, keys and network?")
        return
    await day.run(change.format("four"))
    day.was_asked(
        "Let commands sign commits and tags with your key ada@example.org (gpg)?",
        f"Let commands push main to {address} with your login?",
    )
    elsewhere = day.person / "src/elsewhere"
    day.outside(
        f"git clone -q {address} {elsewhere} && cd {elsewhere} && git commit -q --allow-empty -m five && git push -q"
    )
    await day.run("git pull -q --rebase upstream main")
    day.was_asked(f"Let commands fetch from {address} with your login?")
    await day.run(change.format("six"))
    await day.begin()
    await day.run(f"{change.format('seven')} && git fetch -q upstream")
    await day.end()
    assert day.outside("git log --format=%s,%G? -4", server.folder / "shop.git") == "seven,G\nsix,G\nfive,G\nfour,G\n"
