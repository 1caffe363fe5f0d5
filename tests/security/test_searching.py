"""Searching a project while its commands change it, and asking a search about secrets piece by piece."""

import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.security.swapping import swapping

from talaria.core.ids import CallId, SessionId
from talaria.core.messages import ToolCall
from talaria.core.redaction import Redactor
from talaria.tools.base import OpenGate, Scope
from talaria.tools.builtin.search_tools import search_tools
from talaria.tools.executor import Executor
from talaria.tools.protected import Protected
from talaria.tools.registry import Toolbox

KEY = "canary-key-T7pLx2QvN9kRw4ZcB6mYs1Hd"
SECRET = "sk-live-Qm3xT9vK2pLw8Zr5"

Search = Callable[..., Awaitable[str]]


@pytest.fixture
def person(tmp_path: Path) -> Path:
    (tmp_path / "person/.ssh").mkdir(parents=True)
    (tmp_path / "person/.ssh/id").write_text(KEY)
    (tmp_path / "person/documents").mkdir()
    (tmp_path / "person/documents/id").write_text(KEY)
    (tmp_path / "person/.talaria/skills").mkdir(parents=True)
    (tmp_path / "person/.talaria/skills/greet.md").write_text("say hello")
    (tmp_path / "person/.talaria/.env").write_text(KEY)
    (tmp_path / "person/work/a").mkdir(parents=True)
    (tmp_path / "person/work/a/id").write_text("ours")
    return tmp_path / "person"


@pytest.fixture
def project(person: Path) -> Path:
    return person / "work"


@pytest.fixture
def redactor() -> Redactor:
    return Redactor((SECRET,))


@pytest.fixture
def search(person: Path, project: Path, redactor: Redactor) -> Search:
    home = person / ".talaria"
    scope = Scope(SessionId("s"), project, home / "spill/s", redactor=redactor)
    executor = Executor(Toolbox(search_tools(Protected(person, home))), OpenGate(), scope)

    async def call(pattern: str, **more: object) -> str:
        arguments = json.dumps({"pattern": pattern, **more})
        return (await executor.call(ToolCall(CallId("c"), "search_files", arguments))).text

    return call


def found_by_path(folder: Path) -> str:
    """The control: a search that looks first, and then opens by path."""
    found = ""
    for here, _, names in os.walk(folder):
        for name in names:
            try:
                descriptor = os.open(f"{here}/{name}", os.O_RDONLY | os.O_NOFOLLOW)
            except OSError:
                continue
            with os.fdopen(descriptor) as file:
                found += file.read()
    return found


async def race(search: Search, project: Path, elsewhere: Path, count: int) -> None:
    with swapping(project / "a", elsewhere):
        assert any(KEY in found_by_path(project) for _ in range(20_000)), "the attack itself does not work"
        found = [await search("canary-key|ours") for _ in range(count)]
    assert not any(KEY in text for text in found)
    assert any("ours" in text for text in found)


async def test_a_folder_that_is_swapped_for_a_link_does_not_lead_a_search_out(
    search: Search, person: Path, project: Path
) -> None:
    """To what is private it would not go anyway; this is the rest of the disk."""
    await race(search, project, person / "documents", 12)


@pytest.mark.long
@pytest.mark.parametrize("elsewhere", [".ssh", "documents"])
async def test_a_folder_that_is_swapped_for_a_link_never_leads_a_search_out(
    search: Search, person: Path, project: Path, elsewhere: str
) -> None:
    await race(search, project, person / elsewhere, 400)


async def test_the_root_of_a_search_that_has_become_a_link_is_not_followed(
    person: Path, project: Path, search: Search
) -> None:
    """If it is one when the call is prepared, the call is for where it leads, and the gate knows that."""
    with swapping(project / "a", person / "documents"):
        found = [await search("canary-key|ours", path=str(project / "a")) for _ in range(12)]
    assert not any(KEY in text and f"{person}/documents/id" not in text for text in found)


async def test_what_is_private_is_known_under_another_name(search: Search, person: Path, project: Path) -> None:
    for name in (".netrc", ".plain"):
        (person / name).write_text(KEY)
        (project / f"linked{name}").hardlink_to(person / name)
    assert await search("canary-key") == f"{project}/linked.plain\n1|{KEY}"  # the control: any other file is found
    assert ".netrc" not in await search("*", target="names")


async def test_a_search_of_a_home_leaves_out_what_is_private_in_it(search: Search, person: Path) -> None:
    assert await search("canary-key", path=str(person)) == f"{person}/documents/id\n1|{KEY}"
    assert "say hello" in await search("hello", path=str(person / ".talaria/skills"))


async def test_folders_of_people_in_chats_are_searched_only_when_they_are_named(person: Path, project: Path) -> None:
    """By the person at the machine; for those in chats the gate refuses the folders of others."""
    people = project / "people"
    (people / "telegram-1").mkdir(parents=True)
    (people / "telegram-1/notes").write_text("a note")
    scope = Scope(SessionId("s"), project, person / ".talaria/spill/s")
    tools = search_tools(Protected(person, person / ".talaria", people))
    executor = Executor(Toolbox(tools), OpenGate(), scope)
    for path, count in ((".", 0), ("people/telegram-1", 1)):
        arguments = json.dumps({"pattern": "a note", "path": path})
        result = await executor.call(ToolCall(CallId("c"), "search_files", arguments))
        assert result.text.count("a note") == count


@pytest.mark.parametrize("place", ["{person}/.ssh", "{person}/.ssh/id", "{person}/.talaria", "/proc", "/proc/self"])
async def test_a_search_does_not_begin_in_what_is_private_even_if_nobody_has_looked(
    search: Search, person: Path, place: str
) -> None:
    """The gate refuses these by their names; here it lets everything through."""
    assert (await search(".", path=place.format(person=person))).endswith("cannot be searched: it is private.")


@pytest.mark.parametrize("redactor", [Redactor(), Redactor((SECRET,))], ids=["unknown", "known"])
async def test_a_known_secret_cannot_be_asked_for_piece_by_piece(
    search: Search, project: Path, redactor: Redactor
) -> None:
    (project / "settings").write_text(f"KEY={SECRET}\n")
    signs = {sign for sign in "sqxz" if "nothing found" not in await search(f"^KEY={sign}")}
    assert signs == (set() if redactor.text(SECRET) != SECRET else {"s"})  # the control: others are told


@pytest.mark.parametrize(
    "pattern",
    [
        "sk-live",
        "KEY=(sk|•••)-",
        "KEY=.{20,}",
        r"KEY=.+\d",
        "5rZ8",
        SECRET.encode().hex()[:10],
        "Zr5",
    ],
)
async def test_no_pattern_matches_inside_of_what_is_redacted(search: Search, project: Path, pattern: str) -> None:
    wrapped = f"{SECRET[:12]}\n{SECRET[12:]}"
    (project / "settings").write_text(f"KEY={SECRET}\nrev={SECRET[::-1]}\nhex={SECRET.encode().hex()}\n{wrapped}\n")
    assert await search(pattern) == "[nothing found]"


async def test_lines_around_a_secret_are_found_under_their_own_numbers(search: Search, project: Path) -> None:
    (project / "settings").write_text(f"one\nKEY={SECRET[:9]}\n{SECRET[9:]}\nfour {'x' * 290}{SECRET}\n")
    assert await search("KEY|four") == f"{project}/settings\n2|KEY=•••\n4|four {'x' * 290}•••"


async def test_a_name_that_holds_a_secret_is_not_told_either(search: Search, project: Path) -> None:
    (project / SECRET).write_text("x")
    assert await search("sk-live*", target="names") == "[nothing found]"
    assert await search("*•••*", target="names") == f"{project}/•••"
