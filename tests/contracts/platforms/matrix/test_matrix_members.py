"""Which rooms are direct chats: only those whose members are known to be us and the person who opened the room."""

import msgspec
import pytest
from tests.contracts.platforms.matrix.conftest import Connect, Ear, Listen
from tests.servers.synapse import Synapse
from tests.servers.synapse_person import SynapseUser

from talaria.testing.servers.chat_service import Refusal

BOTH = ("1001", "1002")


class Direct(msgspec.Struct):
    """A room that one person opened as a direct chat, in which the bot has been."""

    room: str
    opener: SynapseUser
    other: SynapseUser
    cursor: str | None

    async def let_other_in(self) -> None:
        await self.opener.invite(self.room, self.other.user_id)
        await self.other.join(self.room)


@pytest.fixture
async def direct(server: Synapse, connect: Connect, listen: Listen) -> Direct:
    async with connect(allowed=BOTH) as matrix, listen(matrix) as ear:
        await server.say("one")
        assert (await ear.arrival()).kind == "dm"
    person, other = await server.person(), await server.person("1002")
    return Direct(await person.direct_room(server.bot), person, other, ear.cursor)


async def heard_all(ear: Ear, room: str, person: SynapseUser) -> None:
    """All that happened there until now is read: the next stream begins with nothing new."""
    said = await person.say(room, "that is all")
    while (await ear.arrival()).message_id != said:
        pass


async def test_after_a_quiet_restart_a_room_into_which_a_third_came_is_a_group(
    server: Synapse, connect: Connect, listen: Listen, direct: Direct
) -> None:
    """The first answer of the server then has the token that we have already."""
    async with connect(allowed=BOTH) as matrix, listen(matrix, direct.cursor) as ear:
        await direct.let_other_in()
        await heard_all(ear, direct.room, direct.other)
    async with connect(allowed=BOTH) as matrix, listen(matrix, ear.cursor) as later:
        assert (await later.batch()).items == ()
        await direct.other.say(direct.room, "three of us")
        await direct.opener.say(direct.room, "indeed")
        assert [one.kind for one in await later.arrivals(2)] == ["group", "group"]


async def test_after_a_quiet_restart_a_direct_chat_is_still_one_and_names_are_known(
    connect: Connect, listen: Listen, direct: Direct
) -> None:
    async with connect(allowed=BOTH) as matrix, listen(matrix, direct.cursor) as ear:
        await heard_all(ear, direct.room, direct.opener)
    async with connect(allowed=BOTH) as matrix, listen(matrix, ear.cursor) as later:
        assert (await later.batch()).items == ()
        await direct.opener.say(direct.room, "two")
        heard = await later.arrival()
    assert (heard.kind, heard.sender.name) == ("dm", "1001")


async def test_who_came_while_we_were_away_makes_it_a_group(connect: Connect, listen: Listen, direct: Direct) -> None:
    await direct.let_other_in()
    await direct.opener.say(direct.room, "hello, both of you")
    async with connect(allowed=BOTH) as matrix, listen(matrix, direct.cursor) as ear:
        assert (await ear.arrival()).kind == "group"


async def test_somebody_who_is_only_invited_makes_it_a_group(connect: Connect, listen: Listen, direct: Direct) -> None:
    """They may read all of it when they come."""
    async with connect(allowed=BOTH) as matrix, listen(matrix, direct.cursor) as ear:
        await direct.opener.invite(direct.room, direct.other.user_id)
        await direct.opener.say(direct.room, "soon we are three")
        assert (await ear.arrival()).kind == "group"


@pytest.mark.parametrize("status", [403, 500])
async def test_a_room_whose_members_the_server_does_not_tell_is_a_group(
    server: Synapse, connect: Connect, listen: Listen, direct: Direct, status: int
) -> None:
    server.fault("members", Refusal(status))
    async with connect(allowed=BOTH) as matrix, listen(matrix, direct.cursor) as ear:
        await direct.opener.say(direct.room, "who is here?")
        assert (await ear.arrival()).kind == "group"
        await direct.opener.say(direct.room, "only we two")
        assert (await ear.arrival()).kind == "dm"


async def test_members_are_asked_once_until_they_change(
    server: Synapse, connect: Connect, listen: Listen, direct: Direct
) -> None:
    async with connect(allowed=BOTH) as matrix, listen(matrix, direct.cursor) as ear:
        before = len(server.calls("members"))
        for text in ("one", "two", "three"):
            await direct.opener.say(direct.room, text)
            assert (await ear.arrival()).kind == "dm"
        assert len(server.calls("members")) == before + 1
        await direct.let_other_in()
        await direct.opener.say(direct.room, "four")
        assert (await ear.arrival()).kind == "group"
        await direct.other.leave(direct.room)
        await direct.opener.say(direct.room, "five")
        assert (await ear.arrival()).kind == "dm"


async def test_a_direct_chat_does_not_become_anothers_when_its_opener_leaves(
    server: Synapse, connect: Connect, listen: Listen, direct: Direct
) -> None:
    """Not even by a new invitation: what was said there before is the opener's."""
    await direct.let_other_in()
    await direct.opener.set_power(direct.room, direct.other.user_id, 100)
    await direct.opener.leave(direct.room)
    async with connect(allowed=BOTH) as matrix, listen(matrix, direct.cursor) as ear:
        await direct.other.say(direct.room, "now it is mine")
        assert (await ear.arrival()).kind == "group"
        await direct.other.kick(direct.room, server.bot)
        await ear.batch()
        await direct.other.invite(direct.room, server.bot, is_direct=True)
        await direct.other.say(direct.room, "really")
        assert (await ear.arrival()).kind == "group"


async def test_what_somebody_said_who_has_left_was_not_said_in_a_direct_chat(
    connect: Connect, listen: Listen, direct: Direct
) -> None:
    await direct.let_other_in()
    await direct.other.say(direct.room, "bye")
    await direct.other.leave(direct.room)
    async with connect(allowed=BOTH) as matrix, listen(matrix, direct.cursor) as ear:
        heard = await ear.arrival()
    assert (heard.sender.id, heard.kind) == (direct.other.user_id, "group")


async def test_with_a_lost_memory_only_the_person_whom_the_account_names_has_a_direct_chat(
    connect: Connect, listen: Listen, direct: Direct
) -> None:
    await direct.let_other_in()
    async with connect(home="anew", allowed=BOTH) as matrix, listen(matrix) as ear:
        await direct.other.say(direct.room, "three of us")
        assert (await ear.arrival()).kind == "group"
        await direct.other.leave(direct.room)
        await direct.opener.say(direct.room, "two of us")
        assert (await ear.arrival()).kind == "dm"
