"""A real homeserver, a real account that talks to the bot, and a gateway that is killed in the middle of a turn."""

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Generator
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from tests.contracts.handoff.conftest import Terminal
from tests.contracts.pool.travelling import TravellingClock
from tests.gateways import gateway_harness
from tests.scenarios.gateway.test_conversing import user_texts
from tests.scenarios.gateway.test_files import PIXEL
from tests.servers.synapse import Homeserver, Synapse
from tests.servers.synapse_person import SynapseUser
from tests.waiting import LOOK_S

from talaria.app.build import open_application
from talaria.testing import ModelServer, Reply, call
from talaria.testing.harness import Harness
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.chat_service import LostAnswer
from talaria.testing.servers.scripted_replies import Faults
from talaria.testing.servers.telegram_server import TelegramServer


@pytest.fixture(scope="module")
def homeserver(tmp_path_factory: pytest.TempPathFactory) -> Generator[Homeserver]:
    with Homeserver(tmp_path_factory.mktemp("homeserver")) as running:
        yield running


class Scene(msgspec.Struct):
    harness: Harness
    server: Synapse
    person: SynapseUser

    def allow(self, *rooms: str, **more: Any) -> None:
        people: dict[str, Any] = {"allowed_users": [self.person.user_id], "allowed_chats": list(rooms)}
        self.harness.add_platform("matrix", {**self.server.settings, **people, **more})

    async def heard_all(self, user: str) -> None:
        """All that was said before this: they are answered in a room of their own."""
        count = len(self.server.list_messages(user=user))
        await self.server.say("/whoami", user=user)
        async with asyncio.timeout(PATIENCE_S):
            await self.server.wait_for(count + 1, user=user)

    async def texts(self, count: int, room: str = "") -> list[str]:
        async with asyncio.timeout(PATIENCE_S):
            return [one.text for one in await self.server.wait_for(count, chat=room)]


@pytest.fixture
async def scene(homeserver: Homeserver, tmp_path: Path) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        model = stack.enter_context(ModelServer())
        telegram = await stack.enter_async_context(TelegramServer())
        server = await stack.enter_async_context(Synapse(homeserver))
        harness = await stack.enter_async_context(gateway_harness(tmp_path, model, telegram))
        harness.config["gateway"]["platforms"].clear()
        found = Scene(harness, server, await server.person())
        found.allow()
        yield found


async def test_a_direct_conversation(scene: Scene) -> None:
    scene.harness.model.say("Hello.", "Again.")
    async with scene.harness.serve():
        await scene.server.say("hi")
        assert await scene.texts(1) == ["Hello."]
        await scene.server.say("and now?")
        assert await scene.texts(2) == ["Hello.", "Again."]
    assert len(user_texts(scene.harness.model)) == 2


async def test_a_direct_chat_that_others_have_joined_stays_its_openers_after_a_restart_and_a_reload(
    scene: Scene,
) -> None:
    """Nobody else speaks in that conversation, unaddressed words reach no model, and strangers get no code."""
    other, stranger = await scene.server.person("1002"), await scene.server.person("666")
    allowed = [scene.person.user_id, other.user_id]
    scene.allow(allowed_users=allowed)
    scene.harness.model.say("Kept.")
    async with scene.harness.serve():
        await scene.server.say("remember canary-Wq4")
        assert await scene.texts(1) == ["Kept."]
        room = await scene.person.direct_room(scene.server.bot)
        for one in (other, stranger):
            await scene.person.invite(room, one.user_id)
            await one.join(room)
        await scene.heard_all("1002")
    async with scene.harness.serve() as gateway_app:
        await other.say(room, "what did she tell you?")
        await stranger.say(room, "and who are you?")
        await scene.heard_all("1002")
        scene.allow(allowed_users=allowed, require_mention=True, home_channel=room)  # so that it is opened anew
        await gateway_app.reload(scene.harness.settings())
        await scene.heard_all("1002")
        await other.say(room, "what did she tell you?")
        await stranger.say(room, "and who are you?")
        await scene.heard_all("1002")
    assert [one.text for one in scene.server.list_messages(chat=room)] == ["Kept."]
    assert len(scene.harness.model.requests) == 1


async def test_who_is_no_admin_any_more_allows_nothing_in_a_conversation_that_goes_on(scene: Scene) -> None:
    scene.harness.config["approvals"] = {"ask": ["terminal"]}
    first, second = (Reply(calls=(call("terminal", command=f"echo {word} >> mark"),)) for word in ("one", "two"))
    scene.harness.model.say(first, "Finished.", second, "Then not.")
    async with scene.harness.serve() as gateway_app:
        await scene.server.say("do it")
        await scene.texts(1)
        await scene.server.say("/approve")
        while (await scene.texts(2))[1] != "Finished.":  # its beginning may have been shown
            await asyncio.sleep(LOOK_S)
        scene.allow(admin_users=["@somebody:else"])
        await gateway_app.reload(scene.harness.settings())
        await scene.server.say("again")
        refused, told = (await scene.texts(4))[2:]
    assert ("only an admin can allow" in refused, told) == (True, "Then not.")
    (mark,) = scene.harness.home.parent.glob("people/*/mark")
    assert mark.read_text() == "one\n"


async def test_in_a_room_it_answers_who_mentions_it(scene: Scene) -> None:
    room = await scene.server.room("1001", "1002")
    scene.allow(room)
    scene.harness.model.say("Here.")
    async with scene.harness.serve():
        await scene.person.until_event(room, "m.room.member", membership="join")
        await scene.server.say("just talking", chat=room)
        await scene.server.say(f"{scene.server.bot} do it", user="1002", chat=room)
        await scene.server.say(f"{scene.server.bot} hello", chat=room)
        assert await scene.texts(1, room) == ["Here."]
    assert len(scene.harness.model.requests) == 1


async def test_in_a_room_a_command_may_begin_with_an_exclamation_mark_and_other_words_may_too(scene: Scene) -> None:
    room = await scene.server.room("1001", "1002")
    scene.allow(room)
    async with scene.harness.serve():
        await scene.person.until_event(room, "m.room.member", membership="join")
        await scene.server.say("!important thing", chat=room)
        await scene.server.say("!who is there?", chat=room)
        await scene.server.say("!whoami", user="1002", chat=room)
        await scene.server.say("!whoami", chat=room)
        await scene.texts(1, room)
        await scene.heard_all("1001")
    (told,) = [one.text for one in scene.server.list_messages(chat=room)]
    assert told.endswith(f"matrix:{scene.person.user_id} · admin")
    assert not scene.harness.model.requests


async def test_a_homeserver_that_was_away_is_heard_again(scene: Scene) -> None:
    scene.harness.model.say("Here.")
    async with scene.harness.serve() as gateway_app:
        await scene.server.shut_the_door()
        await scene.harness.until(lambda: gateway_app.gateway.health[0].failures >= 2)
        await scene.server.say("are you there?")
        await scene.server.open_the_door()
        assert await scene.texts(1) == ["Here."]


async def test_what_is_deleted_while_it_waits_reaches_no_model(scene: Scene) -> None:
    scene.harness.model.say(Reply("First.", faults=Faults(first_byte_delay_s=1.0)), "Third.")
    async with scene.harness.serve():
        await scene.server.say("one")
        await asyncio.to_thread(scene.harness.model.wait_for_requests, 1, PATIENCE_S)
        room = await scene.person.direct_room(scene.server.bot)
        await scene.person.redact(room, await scene.server.say("canary-Ht5"))
        await scene.server.say("three")
        assert await scene.texts(2) == ["First.", "Third."]
    assert "canary-Ht5" not in str([request.json for request in scene.harness.model.requests])


async def test_a_thread_is_a_conversation_of_its_own(scene: Scene) -> None:
    room = await scene.server.room("1001")
    scene.allow(room)
    scene.harness.model.say("In the thread.", "In the room.")
    async with scene.harness.serve():
        root = await scene.server.say("a topic", chat=room)
        await scene.server.say(f"{scene.server.bot} about this?", chat=room, thread=root)
        await scene.texts(1, room)
        await scene.server.say(f"{scene.server.bot} and in general?", chat=room)
        await scene.texts(2, room)
        first, second = scene.server.list_messages(chat=room)
        assert (first.thread, second.thread) == (root, "")
    assert len(user_texts(scene.harness.model)) == 1


async def test_a_slow_answer_grows_in_one_message(scene: Scene) -> None:
    words = " ".join(f"word{number}" for number in range(60))
    scene.harness.model.say(Reply(words, faults=Faults(chunk_delay_s=0.05)))
    async with scene.harness.serve():
        await scene.server.say("slowly")
        await scene.harness.until(lambda: [one.text for one in scene.server.list_messages()] == [words])
        assert scene.server.list_messages()[0].edits >= 1


async def test_a_file_goes_both_ways(scene: Scene, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n")
    scene.harness.model.say("A table.")
    async with scene.harness.serve():
        await scene.person.send_file(await scene.person.direct_room(scene.server.bot), table)
        await scene.texts(1)
        (kept,) = (tmp_path / "people").glob("matrix-*/attachments/*")
        assert kept.read_bytes() == table.read_bytes()
        report = kept.parent.parent / "report.txt"
        report.write_text("all is well")
        scene.harness.model.say(f"Here.\nMEDIA:{report}")
        await scene.server.say("the report")
        await scene.texts(3)
        assert [one.file for one in scene.server.list_messages()] == ["", "", "report.txt"]
        (report.parent / "a.png").write_bytes(PIXEL)
        scene.harness.model.say("MEDIA: a.png")
        await scene.server.say("and a picture")
        await scene.texts(4)
        shown = scene.person.events(await scene.person.direct_room(scene.server.bot))[-1]["content"]
        info = {"mimetype": "image/png", "size": len(PIXEL), "w": 1, "h": 1}
        assert (shown["msgtype"], shown["info"]) == ("m.image", info)


async def test_what_is_too_long_for_a_message_is_attached_to_the_question(scene: Scene, tmp_path: Path) -> None:
    target, content = tmp_path / "outside.txt", "line of text\n" * 9_000
    writing = Reply(calls=(call("write_file", path=str(target), content=content),), chunk_chars=100_000)
    scene.harness.model.say(writing, "Done.")
    async with scene.harness.serve():
        await scene.server.say("write it")
        _, question = await scene.texts(2)
        shown = scene.person.events(await scene.person.direct_room(scene.server.bot))[-2]["content"]
        assert shown["filename"].startswith("write_file-to-approve-")
        assert await scene.person.download(shown) == content.encode()
        assert f"117,000 bytes, 9,001 lines, SHA-256 {sha256(content.encode()).hexdigest()}" in question
        assert not target.exists()
        await scene.server.say("/approve")
        assert (await scene.texts(3))[2] == "Done."
    assert target.read_text() == content


async def spawned(scene: Scene, tmp_path: Path) -> Process:
    (scene.harness.home / "config.yaml").write_text(json.dumps(scene.harness.config))
    environment = {**os.environ, "TALARIA_HOME": str(scene.harness.home), "XDG_RUNTIME_DIR": str(tmp_path)}
    command = (sys.executable, "-m", "talaria.cli.main", "gateway", "run")
    return await asyncio.create_subprocess_exec(*command, env=environment, stdout=DEVNULL, stderr=DEVNULL)


async def test_killed_in_the_middle_of_a_turn_the_answer_arrives_exactly_once(scene: Scene, tmp_path: Path) -> None:
    scene.harness.model.say("Hello.", Reply("never seen", faults=Faults(hang=True)))
    gateway = await spawned(scene, tmp_path)
    await scene.server.say("hi")
    assert await scene.texts(1) == ["Hello."]
    await scene.server.say("work on this")
    await asyncio.to_thread(scene.harness.model.wait_for_requests, 2, PATIENCE_S)
    gateway.send_signal(signal.SIGKILL)
    await gateway.wait()
    await scene.server.say("and this, meanwhile")

    scene.harness.model.say("Worked on.", "And on that.")
    gateway = await spawned(scene, tmp_path)
    try:
        assert await scene.texts(3) == ["Hello.", "Worked on.", "And on that."]
    finally:
        gateway.send_signal(signal.SIGTERM)
        await gateway.wait()
    assert [one.text for one in scene.server.list_messages()] == ["Hello.", "Worked on.", "And on that."]


async def test_killed_between_the_wire_and_its_record_the_answer_is_still_one(scene: Scene, tmp_path: Path) -> None:
    """The homeserver has it, and the gateway dies before it knows: the same transaction id is the same message."""
    scene.harness.model.say("Hello.", "Only once.")
    gateway = await spawned(scene, tmp_path)
    await scene.server.say("hi")
    await scene.texts(1)
    scene.server.fault("send", LostAnswer())
    await scene.server.say("say it")
    assert await scene.texts(2) == ["Hello.", "Only once."]
    gateway.send_signal(signal.SIGKILL)
    await gateway.wait()

    gateway = await spawned(scene, tmp_path)
    try:
        await scene.harness.until(lambda: len(scene.server.calls("send")) >= 3)
        scene.harness.model.say("Next.")
        await scene.server.say("next")
        assert await scene.texts(3) == ["Hello.", "Only once.", "Next."]
    finally:
        gateway.send_signal(signal.SIGTERM)
        await gateway.wait()


class Visits:
    """Two people have a direct chat each, and come into each other's."""

    def __init__(self, scene: Scene, people: dict[str, SynapseUser], rooms: dict[str, str], seed: int) -> None:
        self.scene = scene
        self.people = people
        self.rooms = rooms
        self.random = Random(seed)
        self.is_visited = dict.fromkeys(rooms, False)
        self.heard: list[str] = []
        """Who has said what reached the model."""
        self.running = AsyncExitStack()

    def allow(self, note: str) -> None:
        self.scene.allow(allowed_users=[one.user_id for one in self.people.values()], device_name=note)

    async def restart(self) -> None:
        await self.running.aclose()
        await self.running.enter_async_context(self.scene.harness.serve())

    async def reload(self) -> None:
        assert self.scene.harness.gateway is not None
        self.allow(f"after {len(self.heard)} {self.random.random()}")
        await self.scene.harness.gateway.reload(self.scene.harness.settings())

    async def say(self) -> None:
        """The opener, to nobody in particular: for the bot, if they are alone with it."""
        owner, model = self.random.choice(list(self.rooms)), self.scene.harness.model
        before = len(model.requests)
        await self.people[owner].say(self.rooms[owner], f"canary-{owner}-")
        if not self.is_visited[owner]:
            self.heard.append(owner)
            await self.scene.harness.until(lambda: len(model.requests) > before)

    async def intrude(self) -> None:
        for owner, other in (("1001", "1002"), ("1002", "1001")):
            if self.is_visited[owner]:
                await self.people[other].say(self.rooms[owner], f"canary-{other}-")

    async def come_or_go(self) -> None:
        owner = self.random.choice(list(self.rooms))
        other = self.people["1002" if owner == "1001" else "1001"]
        if self.is_visited[owner]:
            await other.leave(self.rooms[owner])
        else:
            await self.people[owner].invite(self.rooms[owner], other.user_id)
            await other.join(self.rooms[owner])
        self.is_visited[owner] = not self.is_visited[owner]

    async def go(self, steps: int) -> None:
        moves = [self.say, self.say, self.say, self.intrude, self.come_or_go, self.restart, self.reload]
        for _ in range(steps):
            await self.random.choice(moves)()
            await self.scene.heard_all("1009")
            shown = [set(re.findall(r"canary-(\d+)-", one.body.decode())) for one in self.scene.harness.model.requests]
            assert shown == [{user} for user in self.heard]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
async def test_whoever_comes_and_goes_a_direct_chat_is_only_its_openers(scene: Scene, seed: int) -> None:
    """Through restarts and reloads, unaddressed words are heard only from the opener, alone with the bot; and nobody's
    turn is shown what another has said."""
    people = {user: await scene.server.person(user) for user in ("1001", "1002", "1009")}
    rooms = {user: await people[user].direct_room(scene.server.bot) for user in ("1001", "1002")}
    scene.harness.model.say(*(f"Answer {number}." for number in range(100)))
    visits = Visits(scene, people, rooms, seed)
    visits.allow("at first")
    await visits.restart()
    try:
        await visits.go(60)
    finally:
        await visits.running.aclose()


@pytest.mark.clause("H-18")
@pytest.mark.clause("H-20")
@pytest.mark.parametrize("is_direct", [True, False], ids=["direct", "room"])
async def test_after_a_handoff_the_next_message_continues_the_conversation(scene: Scene, *, is_direct: bool) -> None:
    clock = TravellingClock()
    scene.harness.gateway_clock = clock
    chat = "" if is_direct else await scene.server.room("1001")
    scene.harness.model.say("Hello.")
    scene.allow(chat)
    async with scene.harness.serve():
        await scene.server.say("hi" if is_direct else f"{scene.server.bot} hi", chat=chat)
        await scene.texts(1, chat)
        await scene.server.say("/sethome", chat=chat)
        await scene.texts(2, chat)
        async with open_application(scene.harness.settings(), tools=(), clock=clock) as app:
            terminal = Terminal(app, scene.harness, clock)
            session = await terminal.talk()
            scene.harness.model.say("We spoke of the cat.", "White.")
            assert (await terminal.request(session, "matrix")).error is None
        await scene.harness.until(lambda: any("cat" in one.text for one in scene.server.list_messages(chat=chat)))
        (greeting,) = [one for one in scene.server.list_messages(chat=chat) if "cat" in one.text]
        assert greeting.thread
        await scene.server.say("what colour?", chat=chat, thread=greeting.thread)
        await scene.harness.until(lambda: scene.server.list_messages(chat=chat)[-1].text == "White.")
    assert "the cat is white" in scene.harness.model.requests[-1].body.decode()
