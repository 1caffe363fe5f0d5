"""What the model knows of files, kept within bounds."""

from pathlib import Path

from talaria.core.ids import SessionId
from talaria.tools.file_content import KnownContent, ReadFiles

ONE, TWO, THREE = (SessionId(name) for name in ("one", "two", "three"))
SIGHT = KnownContent((1, 2, 3, 4), "x")


def test_what_one_session_has_seen_is_news_to_another() -> None:
    seen = ReadFiles()
    seen.note(ONE, Path("/a"), SIGHT)
    assert seen.find(ONE, Path("/a")) == SIGHT
    assert seen.find(TWO, Path("/a")) is None
    assert seen.find(ONE, Path("/b")) is None


def test_files_that_were_seen_longest_ago_are_forgotten_first() -> None:
    seen = ReadFiles(max_files=2)
    for name in ("/a", "/b", "/a", "/c"):
        seen.note(ONE, Path(name), SIGHT)
    assert [name for name in ("/a", "/b", "/c") if seen.find(ONE, Path(name))] == ["/a", "/c"]


def test_sessions_that_saw_nothing_for_longest_are_forgotten_first() -> None:
    seen = ReadFiles(max_sessions=2)
    for session in (ONE, TWO, ONE, THREE):
        seen.note(session, Path("/a"), SIGHT)
    assert [session for session in (ONE, TWO, THREE) if seen.find(session, Path("/a"))] == [ONE, THREE]
