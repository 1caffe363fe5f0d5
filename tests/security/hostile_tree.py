"""Changes a tree at random, for as long as its parent lives. Arguments: the tree, what it goes for, a seed, the parent.

It changes nothing but the tree, as a command in a sandbox could: what it goes for is the other side's to harm."""

import ctypes
import os
import random
import shutil
import sys
from contextlib import suppress
from pathlib import Path

NAMES = ("a", "b", ".git", "hooks", "config", "commondir", "AGENTS.md", ".local", "bin", "x.txt")
INNER = ("", "/a", "/hooks", "/commondir", "/x.txt", "/.git", "/.git/hooks", "/key", "/b/a")

tree, outside, seed, parent = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
chance = random.Random(seed)
exchange = ctypes.CDLL(None).renameat2


def somewhere() -> Path:
    """In the tree, whatever links are on the way."""
    while True:
        path = tree.joinpath(*chance.choices(NAMES, k=chance.randint(1, 3)))
        real = path.parent.resolve()
        if real.is_relative_to(tree) and real.is_dir():
            return real / path.name


def outwards() -> str:
    inner = chance.choice(INNER)
    return chance.choice(("../outside", "../../outside", outside, f"/proc/self/root{outside}")) + inner


def link() -> None:
    somewhere().symlink_to(outwards())


def inner_link() -> None:
    somewhere().symlink_to(chance.choice((".", "..", "a", "../b", str(somewhere()))))


def folder() -> None:
    somewhere().mkdir()


def file() -> None:
    with somewhere().open("xb") as made:
        made.write(chance.choice((b"ours", b"gitdir: ../outside\n", b"[core]\n", b"")))


def repository() -> None:
    git = somewhere().with_name(".git")
    git.mkdir()
    for name in ("hooks", "modules/m/hooks", "worktrees/w"):
        (git / name).mkdir(parents=True)


def worktree() -> None:
    place = somewhere().with_name(".git")
    with place.open("x") as made:
        made.write(f"gitdir: {outwards()}\n")


def pipe() -> None:
    os.mkfifo(somewhere())


def rename() -> None:
    somewhere().rename(somewhere())


def swap() -> None:
    """A thing and a link, many times: races are won by whoever tries often."""
    one, other = somewhere(), tree / "swapped"
    with suppress(FileExistsError):
        other.symlink_to(outwards())
    for _ in range(chance.randint(1, 200)):
        exchange(-100, os.fsencode(one), -100, os.fsencode(other), 2)  # AT_FDCWD, RENAME_EXCHANGE


def remove() -> None:
    path = somewhere()
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()


STEPS = (*(link, folder, file, rename) * 2, *(swap,) * 3, inner_link, repository, worktree, pipe, remove)


def main() -> None:
    print("on", flush=True)
    while os.getppid() == parent:
        with suppress(OSError, RuntimeError):
            chance.choice(STEPS)()


main()
