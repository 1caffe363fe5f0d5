"""The gate of a session over a real store: asks, writes down what was said, remembers what was granted."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

from talaria.core.errors import Denied
from talaria.core.ids import CallId, OwnerId, SessionId
from talaria.core.messages import ToolCall
from talaria.core.questions import Answer, Question
from talaria.store.base import NewSession, Store
from talaria.store.memory import MemoryStore
from talaria.testing import ManualClock
from talaria.tools.base import EXCLUSIVE, Claim, Effect, Run, Scope
from talaria.tools.gate import GRANT_LIFETIME_S, MAX_SHOWN_BYTES, PolicyGate
from talaria.tools.person import Proposal
from talaria.tools.policy import ApprovalSettings, Policy
from talaria.tools.protected import Protected

PERSON, TIMEOUT_S = Path("/home/ada"), 600.0
SESSION = SessionId("s1")


class Act:
    """A call that claims what it is told to."""

    effect: Effect = EXCLUSIVE
    question: str | Proposal | None = "Do it?"

    def __init__(self, claim: Claim) -> None:
        self.claim = claim

    async def run(self, run: Run) -> str:
        return ""


class Ada:
    """Answers as it was written down for her; then not at all."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.asked: list[Question] = []
        self.is_asked = asyncio.Event()
        self.is_admin = True

    def may_approve(self) -> bool:
        return self.is_admin

    async def allow(self, question: Question) -> Answer:
        self.asked.append(question)
        self.is_asked.set()
        if not self._answers:
            await asyncio.Event().wait()
        return self._answers.pop(0)

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        return None


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[Store]:
    async with MemoryStore(clock) as opened:
        for session in ("s1", "s2"):
            await opened.sessions.create(NewSession(SessionId(session), "terminal"))
        yield opened


class GateOf:
    """The gate, in turns of one person."""

    def __init__(self, gate: PolicyGate, person: Ada | None, who: str) -> None:
        self._gate = gate
        self._person = person
        self._who = who

    def in_turns_of(self, person: Ada, who: str) -> "GateOf":
        return GateOf(self._gate, person, who)

    def _asked(self, scope: Scope) -> Scope:
        return msgspec.structs.replace(scope, person=self._person, asker=self._who)

    async def admit(self, call: ToolCall, act: Act, scope: Scope) -> None:
        await self._gate.admit(call, act, self._asked(scope))

    async def insist(self, call: ToolCall, act: Act, scope: Scope, doubt: str) -> None:
        await self._gate.insist(call, act, self._asked(scope), doubt)

    def track(self, claim: Claim, scope: Scope) -> None:
        self._gate.track(claim, self._asked(scope))


class Gates:
    def __init__(self, store: Store, clock: ManualClock, owner: OwnerId) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner

    def gate(self, person: Ada | None, *, session: str = "s1", is_asking: bool = True, who: str = "ada") -> GateOf:
        made = PolicyGate(
            Policy(ApprovalSettings(), Protected(PERSON, PERSON / ".talaria")),
            self._store.approvals,
            self._store.grants,
            session=SessionId(session),
            owner=self._owner,
            clock=self._clock,
            timeout_s=TIMEOUT_S,
            is_asking=is_asking,
        )
        return GateOf(made, person, who)


@pytest.fixture
async def gates(store: Store, clock: ManualClock) -> Gates:
    return Gates(store, clock, await store.owners.join("test"))


def scope(tmp: str = "/home/ada/project", turn: str = "t1") -> Scope:
    return Scope(SESSION, Path(tmp), PERSON / ".talaria/spill/s1", turn)


def call(name: str = "terminal", **arguments: str) -> ToolCall:
    return ToolCall(CallId("c1"), name, json.dumps(arguments))


def bare(command: str, place: str = "") -> Act:
    """A command outside of any sandbox."""
    return Act(Claim(command=command, workdir=place, is_confined=False))


OUTSIDE = Act(Claim(writes=(Path("/data/x"),)))
STRANGE = Claim(is_untrusted=True)


async def test_what_is_allowed_is_not_asked_about(gates: Gates, store: Store) -> None:
    ada = Ada()
    await gates.gate(ada).admit(call(), Act(Claim(command="ls")), scope())
    assert not ada.asked
    assert not await store.approvals.list_pending()


async def test_a_person_is_shown_what_would_run_and_why_it_is_asked(gates: Gates) -> None:
    ada = Ada("once")
    await gates.gate(ada).admit(call(command="ls"), bare("ls"), scope())
    assert [(one.tool, one.text, one.reason, one.longest) for one in ada.asked] == [
        ("terminal", "Do it?", "it runs outside of any sandbox", "always")
    ]


async def test_every_question_is_a_row_that_tells_what_became_of_it(gates: Gates, store: Store) -> None:
    ada = Ada("once", "no")
    gate = gates.gate(ada)
    await gate.admit(call(), OUTSIDE, scope())
    with pytest.raises(Denied, match="said no"):
        await gate.admit(call(), OUTSIDE, scope())
    rows = [await store.approvals.find(one.id) for one in ada.asked]
    assert [(row.state, row.decided_by, row.requester) for row in rows if row] == [
        ("used", "ada", "ada"),
        ("denied", "ada", "ada"),
    ]


async def test_nobody_there_means_no(gates: Gates) -> None:
    with pytest.raises(Denied, match="nobody is here") as refusal:
        await gates.gate(None).admit(call(), OUTSIDE, scope())
    said = str(refusal.value)
    assert not any(word in said for word in ("yolo", "config", "approvals", "allow:", "--"))


async def test_nothing_is_asked_where_asking_is_lifted_but_the_floor_stays(gates: Gates) -> None:
    ada = Ada()
    gate = gates.gate(ada, is_asking=False)
    await gate.admit(call(), OUTSIDE, scope())
    with pytest.raises(Denied):
        await gate.admit(call("read_file"), Act(Claim(reads=(PERSON / ".talaria/.env",))), scope())
    with pytest.raises(Denied):
        await gate.admit(call(), bare("rm -rf /"), scope())
    assert not ada.asked


async def test_no_answer_in_time_means_no(gates: Gates, clock: ManualClock) -> None:
    ada = Ada()
    asking = asyncio.create_task(gates.gate(ada).admit(call(), OUTSIDE, scope()))
    await ada.is_asked.wait()
    clock.advance(TIMEOUT_S + 1)
    with pytest.raises(Denied, match="Nobody answered"):
        await asking


async def test_a_yes_once_is_for_one_call(gates: Gates) -> None:
    ada = Ada("once", "once")
    gate = gates.gate(ada)
    for _ in range(2):
        await gate.admit(call(), OUTSIDE, scope())
    assert len(ada.asked) == 2


async def test_a_yes_for_the_session_holds_for_any_command_of_it_and_no_other_session(gates: Gates) -> None:
    ada = Ada("session")
    gate = gates.gate(ada)
    for command in ("make", "git push", "ls | sh"):
        await gate.admit(call(command=command), bare(command), scope())
    assert len(ada.asked) == 1
    with pytest.raises(Denied):
        await gates.gate(None, session="s2").admit(call(), bare("make"), scope())


async def test_a_yes_for_the_session_is_for_that_file_only(gates: Gates) -> None:
    ada = Ada("session", "no")
    gate = gates.gate(ada)
    for _ in range(2):
        await gate.admit(call("write_file"), OUTSIDE, scope())
    with pytest.raises(Denied):
        await gate.admit(call("write_file"), Act(Claim(writes=(Path("/data/y"),))), scope())


async def test_always_holds_for_the_very_same_command_in_the_same_folder_until_it_expires(
    gates: Gates, clock: ManualClock
) -> None:
    ada = Ada("always")
    await gates.gate(ada).admit(call(), bare("ls /data"), scope())
    later = gates.gate(None, session="s2")
    await later.admit(call(), bare("ls /data"), scope())
    for act, place in (
        (bare("ls /"), "/home/ada/project"),
        (bare("ls /data"), "/home/ada/other"),
        (bare("ls /data", place="/elsewhere"), "/home/ada/project"),
    ):
        with pytest.raises(Denied):
            await later.admit(call(), act, scope(place))
    with pytest.raises(Denied):
        await gates.gate(None, who="bob").admit(call(), bare("ls /data"), scope())
    clock.advance(GRANT_LIFETIME_S + 1)
    with pytest.raises(Denied):
        await later.admit(call(), bare("ls /data"), scope())


async def test_what_somebody_has_allowed_beforehand_counts_only_while_their_yes_does(gates: Gates) -> None:
    ada = Ada("session", "no", "no")
    gate = gates.gate(ada)
    await gate.admit(call(), bare("make"), scope())
    ada.is_admin = False
    with pytest.raises(Denied):
        await gate.admit(call(), bare("make"), scope())
    ada.is_admin = True
    await gate.admit(call(), bare("make"), scope())


async def test_each_call_is_asked_of_the_person_whose_turn_it_is(gates: Gates) -> None:
    ada, bob = Ada("once"), Ada("no")
    of_ada = gates.gate(ada)
    of_bob = of_ada.in_turns_of(bob, "bob")
    await of_ada.admit(call(), OUTSIDE, scope())
    with pytest.raises(Denied, match="said no"):
        await of_bob.admit(call(), OUTSIDE, scope(turn="t2"))
    assert (len(ada.asked), len(bob.asked)) == (1, 1)


async def test_what_is_too_long_to_be_shown_is_refused_with_its_size(gates: Gates) -> None:
    ada = Ada("once")
    act = bare("x")
    act.question = Proposal("Run this?", " " * MAX_SHOWN_BYTES + "rm -rf y")
    with pytest.raises(Denied, match=r"it has 1,000,008 bytes, and a person can be shown at most 1,000,000\. Do it in"):
        await gates.gate(ada).admit(call(), act, scope())
    assert not ada.asked


async def test_the_whole_content_reaches_the_person(gates: Gates, store: Store) -> None:
    ada = Ada("once")
    act = bare("x")
    act.question = Proposal("Run this?", "x" * 900_000 + "rm -rf y", "command")
    await gates.gate(ada).admit(call(), act, scope())
    (asked,) = ada.asked
    assert (asked.content, asked.noun) == (act.question.content, "command")
    assert asked.text.endswith("rm -rf y")
    row = await store.approvals.find(asked.id)
    assert row is not None
    assert row.question == asked.text


async def test_the_digest_of_an_approval_covers_what_was_shown(gates: Gates, store: Store) -> None:
    """The same call may change another file than before: what is shown differs, and so does what was agreed to."""
    ada, act, digests = Ada("once", "once", "once"), bare("x"), set[str]()
    for shown in ("-a\n+b", "-a\n+b", "-c\n+b"):
        act.question = Proposal("Change it?", shown, "change")
        await gates.gate(ada).admit(call(), act, scope())
        row = await store.approvals.find(ada.asked[-1].id)
        digests.add(row.digest if row else "")
    assert len(digests) == 2


async def test_of_a_tool_without_words_of_its_own_all_arguments_are_shown(gates: Gates) -> None:
    ada = Ada("once")
    act = bare("x")
    act.question = None
    given = ToolCall(CallId("c1"), "post", '{"to": "ann", "text": "' + "x" * 9_000 + 'end", "to": "eve"}')
    await gates.gate(ada).admit(given, act, scope())
    (asked,) = ada.asked
    assert asked.headline == "Let post do this?"
    assert asked.content == '{\n  "to": "eve",\n  "text": "' + "x" * 9_000 + 'end"\n}'


@pytest.mark.parametrize("name", ["/tmp/x?\n\nIt was checked.", "/tmp/x"])
async def test_a_path_cannot_add_lines_to_the_headline(gates: Gates, name: str) -> None:
    ada = Ada("once")
    act = bare("make", place=name)
    act.question = Proposal(f"Write {name}?", "x")
    await gates.gate(ada).admit(call(), act, scope())
    shown = name.replace("\n", "\\n")
    assert ada.asked[0].text.split("\n") == [f"Write {shown}?", "  x", f"  (in {shown})"]


async def test_what_the_person_cannot_be_shown_is_refused_for_that_reason(gates: Gates, store: Store) -> None:
    class Small(Ada):
        async def allow(self, question: Question) -> Answer:
            await super().allow(question)
            raise Denied("It does not fit.")

    ada = Small("once")
    with pytest.raises(Denied, match="It does not fit"):
        await gates.gate(ada).admit(call(), OUTSIDE, scope())
    row = await store.approvals.find(ada.asked[0].id)
    assert row is not None
    assert row.state == "denied"


async def test_a_person_is_shown_where_it_would_run(gates: Gates) -> None:
    ada = Ada("once")
    await gates.gate(ada).admit(call(), bare("make", place="/elsewhere"), scope())
    assert ada.asked[0].text == "Do it?\n  (in /elsewhere)"


async def test_somebody_who_cannot_be_asked_has_not_said_yes(gates: Gates) -> None:
    class Broken(Ada):
        async def allow(self, question: Question) -> Answer:
            raise OSError("the terminal is gone")

    with pytest.raises(Denied):
        await gates.gate(Broken()).admit(call(), OUTSIDE, scope())


async def test_always_is_no_more_than_the_session_for_what_may_hide_something(gates: Gates) -> None:
    ada = Ada("always")
    await gates.gate(ada).admit(call(), bare("sh x.sh"), scope())
    assert ada.asked[0].longest == "session"
    with pytest.raises(Denied):
        await gates.gate(None, session="s2").admit(call(), bare("sh x.sh"), scope())


async def test_taint_makes_sends_asked_about_for_the_rest_of_the_turn(gates: Gates) -> None:
    sending = Act(Claim(sends=True))
    gate = gates.gate(None)
    await gate.admit(call("mcp_mail_send"), sending, scope())
    gate.track(STRANGE, scope())
    with pytest.raises(Denied):
        await gate.admit(call("mcp_mail_send"), sending, scope())
    await gate.admit(call("mcp_mail_send"), sending, scope(turn="t2"))


PRIVATE = Claim(reads=(PERSON / "letters/bank.txt",), is_untrusted=True)


@pytest.mark.parametrize(
    ("path", "is_asked"),
    [
        ("/home/ada/letters/bank.txt", True),
        ("/mnt/stick/keys.txt", True),
        ("/home/ada/project/readme.md", False),
        ("/home/ada/.talaria/spill/s1/c1-result.txt", False),
        ("/usr/share/doc/make/readme", False),
    ],
)
async def test_an_address_is_asked_about_once_a_file_of_the_persons_was_read_elsewhere(
    gates: Gates, path: str, is_asked: bool
) -> None:
    ada, fetching = Ada("session"), Act(Claim(hosts=("example.org",), is_untrusted=True))
    gate = gates.gate(ada)
    gate.track(Claim(reads=(Path(path),), is_untrusted=True), scope())
    await gate.admit(call("web_fetch"), fetching, scope())
    assert bool(ada.asked) == is_asked


async def test_a_yes_to_a_host_is_good_for_the_session_and_for_no_other_host(gates: Gates) -> None:
    ada = Ada("session", "no")
    gate = gates.gate(ada)
    gate.track(PRIVATE, scope())
    for _ in range(2):
        await gate.admit(call("web_fetch"), Act(Claim(hosts=("example.org",))), scope())
    with pytest.raises(Denied):
        await gate.admit(call("web_fetch"), Act(Claim(hosts=("example.com",))), scope())
    await gate.admit(call("web_fetch"), Act(Claim(hosts=("example.com",))), scope(turn="t2"))


async def test_a_file_that_the_person_named_elsewhere_is_private(gates: Gates) -> None:
    fetching = Act(Claim(hosts=("example.org",)))
    for path, is_private in ((PERSON / "letters/bank.txt", True), (Path("/usr/share/doc/x"), False)):
        named = msgspec.structs.replace(scope(), named_paths=(path,))
        ada = Ada("once")
        await gates.gate(ada).admit(call("web_fetch"), fetching, named)
        assert bool(ada.asked) == is_private


async def test_a_yes_from_before_private_data_was_read_does_not_let_it_leave(gates: Gates) -> None:
    ada = Ada("session", "session")
    gate = gates.gate(ada)
    commands = [Act(Claim(command=text, is_confined=False, reveals=True)) for text in ("ls", "curl x.org")]
    for command in commands:
        await gate.admit(call(), command, scope())
    private = msgspec.structs.replace(scope(), has_private_data=True)
    for command in commands:
        await gate.admit(call(), command, private)
    assert ["were read in this conversation" in one.reason for one in ada.asked] == [False, True]


async def test_a_yes_to_a_folder_is_none_to_the_secrets_in_it_nor_to_its_neighbours(gates: Gates) -> None:
    ada = Ada("always")
    gate = gates.gate(ada)

    def reading(path: str) -> Act:
        return Act(Claim(reads=(PERSON / path,), folder=(PERSON / path).parent))

    await gate.admit(call("read_file"), reading(".config/starship.toml"), scope())
    nobody = gates.gate(None, session="s2")
    await nobody.admit(call("view_image"), reading(".config/nvim/logo.png"), scope())
    with pytest.raises(Denied, match="is private"):
        await nobody.admit(call("read_file"), reading(".config/gh/hosts.yml"), scope())
    for beside in (".config2/x", "letters/x", ".config.txt"):
        with pytest.raises(Denied, match="nobody is here"):
            await nobody.admit(call("read_file"), reading(beside), scope())
    with pytest.raises(Denied, match="nobody is here"):
        await nobody.admit(call("read_file"), reading(".config/starship.toml"), scope("/home/ada/other"))
    with pytest.raises(Denied, match="nobody is here"):
        await nobody.admit(call("write_file"), Act(Claim(writes=(PERSON / ".config/starship.toml",))), scope())
    assert len(ada.asked) == 1


async def test_grants_do_not_count_and_none_is_made_once_strangers_had_a_word(gates: Gates) -> None:
    ada = Ada("session", "always", "no")
    gate = gates.gate(ada)
    await gate.admit(call(), bare("make"), scope())
    gate.track(STRANGE, scope())
    await gate.admit(call(), bare("make"), scope())
    with pytest.raises(Denied):
        await gate.admit(call(), bare("make"), scope())
    assert [one.longest for one in ada.asked] == ["session", "once", "once"]


async def test_a_doubt_is_asked_about_whatever_was_granted_and_also_where_asking_is_lifted(gates: Gates) -> None:
    ada = Ada("session", "no", "no")
    gate = gates.gate(ada)
    await gate.admit(call(), bare("make"), scope())
    for insisting in (gate, gates.gate(ada, is_asking=False)):
        with pytest.raises(Denied):
            await insisting.insist(call(), bare("make"), scope(), "a plugin doubts it")
    assert ada.asked[-1].reason == "a plugin doubts it"
    with pytest.raises(Denied, match="nobody is here"):
        await gates.gate(None).insist(call(), bare("make"), scope(), "a plugin doubts it")


async def test_calls_that_run_together_are_asked_about_one_after_the_other(gates: Gates) -> None:
    ada = Ada("session")
    gate = gates.gate(ada)
    await asyncio.gather(*(gate.admit(call(), bare(f"make {number}"), scope()) for number in range(5)))
    assert len(ada.asked) == 1


async def test_a_yes_counts_only_while_the_process_that_asked_is_there(gates: Gates, store: Store) -> None:
    class Leaving(Ada):
        async def allow(self, question: Question) -> Answer:
            row = await store.approvals.find(question.id)
            assert row is not None
            await store.owners.leave(row.owner)
            return "once"

    with pytest.raises(Denied, match="came too late"):
        await gates.gate(Leaving()).admit(call(), OUTSIDE, scope())


async def test_a_question_that_nobody_waits_for_any_more_cannot_be_answered(gates: Gates, store: Store) -> None:
    ada = Ada()
    asking = asyncio.create_task(gates.gate(ada).admit(call(), OUTSIDE, scope()))
    await ada.is_asked.wait()
    asking.cancel()
    await asyncio.wait([asking])
    row = await store.approvals.find(ada.asked[0].id)
    assert row is not None
    assert row.state == "denied"
    assert not await store.approvals.decide(row.id, is_allowed=True, by="ada")
