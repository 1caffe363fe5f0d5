from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from talaria.tools.base import Effect

PATHS = st.lists(st.sampled_from(["/a", "/a/b", "/a/b/c", "/ab", "/d"]).map(Path), max_size=3).map(tuple)
EFFECTS = st.builds(Effect, st.sampled_from(["reads", "writes", "independent", "exclusive"]), PATHS)
WITHOUT_EXCLUSIVE = EFFECTS.filter(lambda effect: effect.kind != "exclusive")


@given(EFFECTS, EFFECTS)
def test_clashing_is_symmetric(some: Effect, other: Effect) -> None:
    assert some.clashes(other) == other.clashes(some)


@given(EFFECTS, PATHS)
def test_exclusive_clashes_with_all(effect: Effect, paths: tuple[Path, ...]) -> None:
    assert Effect("exclusive", paths).clashes(effect)


@given(PATHS, PATHS)
def test_reads_never_clash_with_reads(some: tuple[Path, ...], others: tuple[Path, ...]) -> None:
    assert not Effect("reads", some).clashes(Effect("reads", others))


@given(WITHOUT_EXCLUSIVE)
def test_independent_clashes_only_with_exclusive(effect: Effect) -> None:
    assert not Effect("independent").clashes(effect)


@given(st.sampled_from(["reads", "writes"]), PATHS)
def test_write_anywhere_clashes_with_every_path(kind: str, paths: tuple[Path, ...]) -> None:
    other = Effect("reads", paths) if kind == "reads" else Effect("writes", paths)
    assert Effect("writes").clashes(other)


@given(PATHS.filter(bool))
def test_write_clashes_with_itself_and_with_what_lies_inside(paths: tuple[Path, ...]) -> None:
    write = Effect("writes", paths)
    assert write.clashes(write)
    assert write.clashes(Effect("reads", (paths[0] / "inside",)))


def test_writes_side_by_side_do_not_clash() -> None:
    assert not Effect("writes", (Path("/a"),)).clashes(Effect("writes", (Path("/ab"),)))
