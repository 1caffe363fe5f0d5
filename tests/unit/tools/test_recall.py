import json
import re
import time
from collections.abc import Awaitable, Callable

import pytest

from talaria.core.entries import Compacted, Entry, MessageAdded, Noted, RouteChanged, TurnEnded, TurnStarted, Undone
from talaria.core.errors import BadArguments, ToolFailed
from talaria.core.ids import CallId, SessionId, TurnId
from talaria.core.messages import Assistant, Context, Image, Message, Text, Thinking, ToolCall, ToolResult, User, user
from talaria.store.base import NewSession
from talaria.store.memory import MemoryStore
from talaria.testing.manual_clock import ManualClock
from talaria.tools.base import READS, RichResult, Run, Scope, Tool
from talaria.tools.builtin.recall import EXCERPT_CHARS, MAX_LIMIT, PAGE_BYTES, recall_tools
from talaria.tools.output import HEAD_BYTES, TAIL_BYTES

OTHER = SessionId("session-2")
TURN = TurnId("turn_1")
WELL_BELOW_THE_CAP_BYTES = HEAD_BYTES + TAIL_BYTES

Say = Callable[..., Awaitable[None]]
Look = Callable[..., Awaitable[str]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def tools(store: MemoryStore) -> dict[str, Tool]:
    return {tool.spec.name: tool for tool in recall_tools(store.journal, store.search, store.sessions)}


@pytest.fixture
def say(store: MemoryStore, scope: Scope) -> Say:
    """`await say(user("hello"), Noted("x"), session=OTHER)`: into this conversation, unless told otherwise."""

    async def record(
        *said: Message | Entry, session: SessionId = scope.session, title: str | None = None, person: str = "local"
    ) -> None:
        if await store.sessions.get(session) is None:
            await store.sessions.create(NewSession(session, "test", title=title, person=person))
        epoch = await store.journal.seize(session, await store.owners.join("test"))
        assert isinstance(epoch, int)
        entries = [MessageAdded(one) if isinstance(one, User | Assistant | ToolResult) else one for one in said]
        await store.journal.record(session, epoch, entries)
        await store.journal.release(session, epoch)

    return record


@pytest.fixture
def look(tools: dict[str, Tool], scope: Scope) -> Look:
    """`await look("recall", query="words")`"""

    async def call(name: str, /, **arguments: object) -> str:
        shown = await tools[name].prepare(json.dumps(arguments), scope).run(Run(CallId("call_1"), scope))
        return shown.text if isinstance(shown, RichResult) else shown

    return call


def answer(text: str) -> Assistant:
    return Assistant((Text(text),))


def output(text: str, name: str = "terminal") -> ToolResult:
    return ToolResult(CallId("call_0"), name, text)


def numbers(shown: str) -> list[int]:
    return [int(number) for number in re.findall(r"^#(\d+) · ", shown, re.MULTILINE)]


def without_heading(page: str) -> str:
    return page.partition("\n")[2]


@pytest.mark.parametrize("name", ["recall", "session_search"])
def test_looking_may_be_repeated_and_only_reads(tools: dict[str, Tool], scope: Scope, name: str) -> None:
    invocation = tools[name].prepare('{"query": "x"}', scope)
    assert (tools[name].after_crash, invocation.effect, invocation.question) == ("repeat", READS, None)


async def test_message_is_shown_with_number_speaker_time_and_text(say: Say, look: Look, clock: ManualClock) -> None:
    await say(user("the red fox"))
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(clock.now()))
    assert await look("recall", query="fox") == (
        f"#1 · person · {when}\nthe red fox\n\n[read one in full with message=NUMBER]"
    )


@pytest.mark.parametrize(
    ("said", "who"),
    [
        (user("fox"), "person"),
        (user("fox", author="steering"), "person"),
        (user("fox", author="host"), "host"),
        (answer("fox"), "assistant"),
        (output("fox"), "output of terminal"),
        (ToolResult(CallId("c"), "terminal", "fox", is_error=True), "error of terminal"),
    ],
)
async def test_speaker_is_named(say: Say, look: Look, said: Message, who: str) -> None:
    await say(said)
    assert (await look("recall", query="fox")).startswith(f"#1 · {who} · ")


@pytest.mark.parametrize("query", ["red fox", "fox red", '"FOX" Red', "ärger", "ÄRGER fox", "istanbul"])
async def test_words_count_in_any_order_and_case(say: Say, look: Look, query: str) -> None:
    await say(user("The Red Ärger of a FOX in İstanbul"))
    assert 1 in numbers(await look("recall", query=query))


async def test_all_words_must_be_there(say: Say, look: Look) -> None:
    await say(user("a red hen"), user("a red fox"), user("a grey fox"))
    assert numbers(await look("recall", query="red fox")) == [2]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"query": "wolf"}, "[no message contains all these words]"),
        ({"query": "fox", "before": 1}, "[no message before #1 contains all these words]"),
        ({"before": 1}, "[there is no message before #1]"),
    ],
)
async def test_no_hit_is_told(say: Say, look: Look, arguments: dict[str, object], sentence: str) -> None:
    await say(user("a red fox"))
    assert await look("recall", **arguments) == sentence


async def test_conversation_without_messages_says_so(look: Look) -> None:
    assert await look("recall") == "[there is no message]"


async def test_newest_come_first_and_the_older_ones_follow_with_before(say: Say, look: Look) -> None:
    await say(*(user(f"fox {number}") for number in range(1, 6)))

    newest = await look("recall", query="fox", limit=2)
    older = await look("recall", query="fox", limit=2, before=4)
    oldest = await look("recall", query="fox", limit=2, before=2)

    assert [numbers(page) for page in (newest, older, oldest)] == [[5, 4], [3, 2], [1]]
    assert newest.endswith("[there are older messages; continue with before=4]")
    assert "older ones" not in oldest


async def test_without_a_query_the_newest_messages_are_shown(say: Say, look: Look) -> None:
    await say(user("one"), answer("two"), user("three"))
    assert numbers(await look("recall", limit=2)) == [3, 2]


@pytest.mark.parametrize(
    ("before", "after"), [(0, 9_000), (4_000, 5_000), (9_000, 0)], ids=["beginning", "middle", "end"]
)
async def test_excerpt_surrounds_the_first_hit_and_tells_where_to_read_on(
    say: Say, look: Look, before: int, after: int
) -> None:
    await say(output("İ" * before + "FOX" + "y" * after))

    heading, excerpt = (await look("recall", query="fox")).split("\n")[:2]
    offset = int(re.findall(r"offset=(\d+)$", heading)[0])

    assert "FOX" in excerpt
    assert len(excerpt.strip("…")) == EXCERPT_CHARS
    assert excerpt.startswith("…") == (before > 0)
    assert excerpt.endswith("…") == (after > 0)
    page = without_heading(await look("recall", message=1, offset=offset))
    assert page.startswith(excerpt.strip("…"))


async def test_message_left_out_by_a_compaction_is_found_and_read_again(say: Say, look: Look) -> None:
    await say(output("the fox is in line 7"), answer("seen"))
    await say(Compacted((user("fox, in short", author="host"),), "model", 100, 50), user("and now?"))
    assert numbers(await look("recall", query="fox")) == [1]
    assert without_heading(await look("recall", message=1)) == "the fox is in line 7"


async def test_messages_of_another_conversation_are_not_found(say: Say, look: Look) -> None:
    await say(user("a red fox"), user("another fox"), session=OTHER)
    await say(user("a hen"))
    assert await look("recall", query="fox") == "[no message contains all these words]"
    with pytest.raises(ToolFailed):
        await look("recall", message=2)


async def test_entries_of_other_kinds_are_passed_over(say: Say, look: Look) -> None:
    await say(
        TurnStarted(TURN, "terminal"),
        Noted("fox"),
        RouteChanged(TURN, "fox:a", "fox:b", "fox"),
        user("fox"),
        TurnEnded(TURN, "failed", error="fox"),
    )
    assert numbers(await look("recall")) == numbers(await look("recall", query="fox")) == [4]


async def test_turn_that_was_taken_back_is_found_and_called_so(say: Say, look: Look) -> None:
    await say(user("fox"), TurnStarted(TURN, "terminal"), user("fox"), TurnEnded(TURN, "completed"), Undone(TURN))
    await say(user("fox"))

    headings = [line for line in (await look("recall", query="fox")).split("\n") if line.startswith("#")]

    assert ["undid" in heading for heading in headings] == [False, True, False]
    assert "undid" in await look("recall", message=3)
    assert "undid" not in await look("recall", message=6)


async def test_calls_are_shown_and_found_by_their_arguments(say: Say, look: Look) -> None:
    call = ToolCall(CallId("c"), "terminal", '{"command": "ls fox"}')
    await say(Assistant((Text("I look."), call), "calls"))
    assert numbers(await look("recall", query="fox terminal")) == [1]
    assert without_heading(await look("recall", message=1)) == 'I look.\n[call of terminal: {"command": "ls fox"}]'


async def test_recall_does_not_find_itself(say: Say, look: Look) -> None:
    await say(user("hen"), Assistant((ToolCall(CallId("c"), "recall", '{"query": "fox"}'),), "calls"))
    await say(output("#1 · a fox", name="recall"))
    assert await look("recall", query="fox") == "[no message contains all these words]"
    assert numbers(await look("recall")) == [1]
    assert without_heading(await look("recall", message=2)) == "[nothing to show]"
    assert without_heading(await look("recall", message=3)) == "#1 · a fox"


async def test_thinking_and_surroundings_are_not_shown_and_images_only_named(say: Say, look: Look) -> None:
    await say(User((Context("[Today is fox.]"), Text("look"), Image("image/png", "Zm94Cg=="))))
    await say(Assistant((Thinking("fox", sealed='{"fox": 1}'), Text("seen"))))
    assert await look("recall", query="fox") == "[no message contains all these words]"
    assert await look("recall", query="Zm94Cg") == "[no message contains all these words]"
    assert without_heading(await look("recall", message=1)) == "look\n[image: image/png]"
    assert without_heading(await look("recall", message=2)) == "seen"


@pytest.mark.parametrize("sign", ["x", "ä", "狐", "🦊", "x🦊"])
async def test_long_message_is_read_in_pages_that_join_to_the_whole(say: Say, look: Look, sign: str) -> None:
    whole = "".join(f"{number:>9} {sign}" for number in range(20_000))[:100_000]
    await say(user("before"), output(whole))

    pages: list[str] = []
    offset: int | None = 0
    while offset is not None:
        shown = await look("recall", message=2, offset=offset)
        assert len(shown.encode()) < PAGE_BYTES + 200
        heading, _, rest = shown.partition("\n")
        page, _, footer = rest.partition("\n[continue with message=2, offset=")
        assert heading.endswith(f"characters {offset:,} to {offset + len(page):,} of 100,000")
        pages.append(page)
        offset = int(footer.removesuffix("]")) if footer else None

    assert "".join(pages) == whole
    assert len(pages) >= 7


async def test_offset_behind_the_end_is_told_and_one_before_the_beginning_is_the_beginning(
    say: Say, look: Look
) -> None:
    await say(user("fox"))
    assert without_heading(await look("recall", message=1, offset=3)) == "[it ends at offset=3]"
    assert without_heading(await look("recall", message=1, offset=-2)) == "fox"


@pytest.mark.parametrize("number", [-1, 2, 4, 10**30])
async def test_number_that_is_no_message_is_told(say: Say, look: Look, number: int) -> None:
    await say(user("one"), Noted("two"), user("three"))
    with pytest.raises(ToolFailed, match=rf"^This conversation has no message #{number}; find"):
        await look("recall", message=number)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("recall", {"query": 7}),
        ("recall", {"message": "first"}),
        ("recall", {"limit": None}),
        ("recall", {"offset": 1.5}),
        ("recall", {"session": "session-2"}),
        ("session_search", {}),
        ("session_search", {"query": "x", "limit": "all"}),
        ("session_search", {"query": ' "" '}),
    ],
)
async def test_wrong_arguments_are_refused(look: Look, name: str, arguments: dict[str, object]) -> None:
    with pytest.raises(BadArguments, match=name):
        await look(name, **arguments)


async def test_other_conversations_are_searched_and_this_one_is_not(say: Say, look: Look, clock: ManualClock) -> None:
    await say(user("a red fox"), answer("a hen"), session=OTHER, title="Of animals")
    await say(*(user("fox") for _ in range(100)))
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(clock.now()))
    assert await look("session_search", query="fox red") == await look("session_search", query="fox", limit=1)
    assert await look("session_search", query="fox") == (
        f"session-2 · Of animals · {when} · user\na red fox\n\n[a person can open a conversation with `talaria -r ID`]"
    )


async def test_person_finds_only_their_own_conversations(say: Say, look: Look) -> None:
    await say(user("my hen"), person="telegram:42")
    await say(user("my fox"), session=SessionId("mine"), person="telegram:42")
    await say(user("a secret fox"), session=SessionId("another's"), person="telegram:43")
    await say(user("a fox at the terminal"), session=SessionId("local's"))

    found = await look("session_search", query="fox", limit=1)

    assert "my fox" in found
    assert "there are more" not in found
    assert "secret" not in await look("session_search", query="fox")


async def test_person_at_the_machine_finds_the_conversations_of_all(say: Say, look: Look) -> None:
    await say(user("hen"))
    await say(user("a fox from afar"), session=OTHER, person="telegram:43")

    assert "a fox from afar" in await look("session_search", query="fox")


async def test_conversation_that_is_not_on_the_disk_finds_nothing(say: Say, look: Look) -> None:
    await say(user("fox"), session=OTHER)

    assert await look("session_search", query="fox") == "[no message in other conversations contains all these words]"


async def test_more_hits_than_wanted_are_told(say: Say, look: Look) -> None:
    await say()
    await say(*(user(f"fox {number}") for number in range(3)), session=OTHER)

    two, three = await look("session_search", query="fox", limit=2), await look("session_search", query="fox", limit=3)

    assert re.findall(r"^fox \d", two, re.MULTILINE) == ["fox 2", "fox 1"]
    assert "[there are more; narrow the search]" in two
    assert "(untitled)" in two
    assert "there are more" not in three


async def test_no_hit_in_other_conversations_is_told(say: Say, look: Look) -> None:
    await say(user("fox"))
    assert await look("session_search", query="fox") == "[no message in other conversations contains all these words]"


@pytest.mark.parametrize("name", ["recall", "session_search"])
async def test_lists_stay_well_below_the_cap_of_tool_output(say: Say, look: Look, scope: Scope, name: str) -> None:
    await say()
    session = scope.session if name == "recall" else OTHER
    long = ToolResult(CallId("c"), "🦊" * 1_000, "fox " + "🦊" * 1_000)
    await say(*[long] * 30, session=session, title="🦊" * 1_000)

    shown = await look(name, query="fox", limit=1_000)

    assert len(shown.encode()) < WELL_BELOW_THE_CAP_BYTES
    assert shown.count("fox 🦊") == MAX_LIMIT
    assert (await look(name, query="fox", limit=-1)).count("fox 🦊") == 1
