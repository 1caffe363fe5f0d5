"""Random walks of several people on several services at once: they speak, snoop, are promoted, demoted, let in and sent
away, press each other's buttons, and the gateway is reloaded and restarted. Whatever the order, nobody's words, files,
questions or approvals reach anybody else."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.gateways import gateway_harness
from tests.scenarios.gateway.test_platforms import PLACES
from tests.security.chats import content_of, obedient

from talaria.app.build import open_store
from talaria.core.clock import SystemClock
from talaria.gateway.authorization import Pairing
from talaria.store.permission_ports import Member
from talaria.testing import ModelServer
from talaria.testing.harness import Harness
from talaria.testing.servers.chat_service import SeenMessage
from talaria.testing.servers.model_server import RecordedRequest
from talaria.testing.servers.telegram_server import TelegramServer

KEEPER = "1009"
"""Always allowed, never an admin: what was said before they are answered has been taken."""
NOBODY = "1099"
"""An admin who never comes; without any, everybody would be one."""
PEOPLE = ("1001", "1002", "1003")


@dataclass
class Said:
    """A message that carries a number, so that the request to the model which it caused is found again."""

    platform: str
    user: str
    is_in_group: bool
    may_be_heard: bool


@dataclass
class Rights:
    """On one platform."""

    allowed: set[str] = field(default_factory=lambda: {"1001", "1002"})
    admins: set[str] = field(default_factory=lambda: {"1001"})
    paired: set[str] = field(default_factory=set[str])

    def may_speak(self, user: str, *, is_in_group: bool) -> bool:
        is_listed = user in self.allowed | self.admins
        return is_listed or (not is_in_group and user in self.paired)


class Walk:
    def __init__(self, harness: Harness, services: dict[str, Any], seed: int) -> None:
        self.harness = harness
        self.services = services
        self.random = Random(seed)
        self.rights = {name: Rights() for name in services}
        self.said: list[Said] = []
        self.approved: set[str] = set()
        """Commands that somebody has allowed who was asked, and was an admin at that moment."""
        self.steps: list[str] = []
        self.running = AsyncExitStack()

    # The world

    async def open(self) -> None:
        await self.running.aclose()
        self.running = AsyncExitStack()
        self._write_settings()
        await self.running.enter_async_context(self.harness.serve())

    def _write_settings(self) -> None:
        for name, rights in self.rights.items():
            quick = {"ping_s": 0.2} if name == "slack" else {}
            people = {
                "allowed_users": sorted(_id(name, one) for one in {*rights.allowed, KEEPER}),
                "admin_users": sorted(_id(name, one) for one in {*rights.admins, NOBODY}),
                "allowed_chats": [PLACES[name].listed],
            }
            self.harness.add_platform(name, {**self.services[name].settings, **people, **quick})

    async def reload(self) -> None:
        """And wait until all are connected again: what is said meanwhile in a new channel is not read afterwards."""
        gateway_app = self.harness.gateway
        assert gateway_app is not None
        self._write_settings()
        await gateway_app.reload(self.harness.settings())
        await self.harness.until(lambda: all(one.heard_at for one in gateway_app.gateway.health))

    def seen(self, name: str, user: str, *, is_in_group: bool) -> list[SeenMessage]:
        chat = PLACES[name].group if is_in_group else ""
        return list(self.services[name].list_messages(user=user, chat=chat))

    async def say(self, name: str, user: str, text: str, *, is_in_group: bool = False) -> int:
        """With the number of the message in it."""
        number = len(self.said)
        may_be_heard = self.rights[name].may_speak(user, is_in_group=is_in_group)
        self.said.append(Said(name, user, is_in_group, may_be_heard))
        await self._post(name, user, f"#{number}# {text}", is_in_group)
        return number

    async def command(self, name: str, user: str, text: str, *, is_in_group: bool = False) -> None:
        if is_in_group and name == "telegram":
            word, *rest = text.split()
            await self.services[name].say(" ".join([f"{word}@talaria_bot", *rest]), user=user, chat=PLACES[name].group)
        else:
            await self._post(name, user, text, is_in_group)

    async def _post(self, name: str, user: str, text: str, is_in_group: bool) -> None:
        place, service = PLACES[name], self.services[name]
        if is_in_group:
            await service.say(f"{place.mention(service)}{text}", user=user, chat=place.group)
        else:
            await service.say(text, user=user)

    async def taken(self, name: str) -> None:
        """All that was said there before this."""
        before = len(self.seen(name, KEEPER, is_in_group=False))
        await self.services[name].say("/whoami", user=KEEPER)
        await self.harness.until(lambda: len(self.seen(name, KEEPER, is_in_group=False)) > before)

    async def answered(self, name: str, user: str, number: int, *, is_in_group: bool) -> None:
        """If they may speak; else nothing must come of it."""
        if not self.said[number].may_be_heard:
            await self.taken(name)
            return
        wanted = f"end-{number}."
        await self.harness.until(
            lambda: any(wanted in one.text for one in self.seen(name, user, is_in_group=is_in_group))
        )

    # What people do

    def _is_read_again(self, name: str, user: str, *, is_in_group: bool) -> bool:
        """What somebody says who may not speak. On Discord and Slack some of it is read again after a new connection,
        and judged then: if they may speak by then, it is heard. So there they say nothing."""
        return name != "telegram" and not self.rights[name].may_speak(user, is_in_group=is_in_group)

    async def tell(self, name: str = "", user: str = "") -> None:
        """A secret, in their own chat."""
        if not name:
            name, user = self._anybody()
        if self._is_read_again(name, user, is_in_group=False):
            return
        self.steps.append(f"tell {name} {user}")
        number = await self.say(name, user, f"SAY {canary(name, user)} is kept, end-{len(self.said)}.")
        await self.answered(name, user, number, is_in_group=False)

    async def chat(self) -> None:
        """In the group, which all have together."""
        name, user = self._anybody()
        if self._is_read_again(name, user, is_in_group=True):
            return
        self.steps.append(f"chat {name} {user}")
        number = await self.say(name, user, f"SAY hello, end-{len(self.said)}.", is_in_group=True)
        await self.answered(name, user, number, is_in_group=True)

    async def snoop(self) -> None:
        """For what others said, in one's own chat."""
        name, user = self._anybody()
        if self._is_read_again(name, user, is_in_group=False):
            return
        how = self.random.choice(["recall", "session_search", "/sessions", "/resume"])
        self.steps.append(f"snoop {name} {user} {how}")
        if how == "/resume":
            rows = await self.harness.store.sessions.list(50)
            others = [row.id for row in rows if row.person != f"{name}:{_id(name, user)}"]
            how = f"/resume {self.random.choice(others)}" if others else "/sessions"
        if how.startswith("/"):
            if user in self.rights[name].admins:
                return  # they may
            count = len(self.seen(name, user, is_in_group=False))
            await self.command(name, user, how)
            await self.taken(name)
            if self.rights[name].may_speak(user, is_in_group=False):
                await self.harness.until(lambda: len(self.seen(name, user, is_in_group=False)) > count)
            return
        before = len(self._results(name, user, is_in_group=False))
        number = await self.say(name, user, f"CALL {how} {json.dumps({'query': 'canary'})}")
        await self.taken(name)
        if self.said[number].may_be_heard:
            await self.harness.until(lambda: len(self._results(name, user, is_in_group=False)) > before)

    async def act(self) -> None:
        """Something that must be allowed; meanwhile others try to answer, and the rules change."""
        name, user = self._anybody(is_likely_an_admin=True)
        is_in_group = self.random.random() < 0.5
        if self._is_read_again(name, user, is_in_group=is_in_group):
            return
        rights = self.rights[name]
        token = f"token-{len(self.said)}"
        self.steps.append(f"act {name} {user} {is_in_group}")
        command = json.dumps({"command": f"echo {token} >> mark"})
        before = len(self._results(name, user, is_in_group=is_in_group))
        number = await self.say(name, user, f"CALL terminal {command}", is_in_group=is_in_group)
        if not self.said[number].may_be_heard:
            await self.taken(name)
            return
        if user in rights.admins:
            await self._contend(name, user, token, is_in_group)
        await self.harness.until(lambda: len(self._results(name, user, is_in_group=is_in_group)) > before)
        if token in self.approved:
            assert token in self.has_run(), "a yes that counts has no effect"

    def _results(self, name: str, user: str, *, is_in_group: bool) -> list[str]:
        return [one.text for one in self.seen(name, user, is_in_group=is_in_group) if "Result:" in one.text]

    async def approve(self, name: str) -> None:
        """In the group, where the others try, too: the only way in which anything runs."""
        user = min(self.rights[name].admins, default="")
        if not user:
            return
        self.steps.append(f"approve {name} {user}")
        before = len(self._results(name, user, is_in_group=True))
        refused, shown = await self._want(name, user, is_in_group=True)
        await self._press_as_others(name, user, shown)
        await self.taken(name)
        await self.command(name, user, "/deny", is_in_group=True)
        await self.harness.until(lambda: len(self._results(name, user, is_in_group=True)) > before)
        assert refused not in self.has_run()
        allowed, shown = await self._want(name, user, is_in_group=True)
        self.approved.add(allowed)
        await self._press(name, shown, user, is_in_group=True)
        await self.harness.until(lambda: len(self._results(name, user, is_in_group=True)) > before + 1)
        assert allowed in self.has_run()

    async def demote(self, name: str) -> None:
        """Somebody who was asked as an admin, and is none when they answer."""
        user = min(self.rights[name].admins, default="")
        if not user:
            return
        self.steps.append(f"demote {name} {user}")
        token, shown = await self._want(name, user, is_in_group=False)
        self.rights[name].admins.discard(user)
        await self.reload()
        await self._press(name, shown, user, is_in_group=False)
        await self.command(name, user, "/approve")
        await self.taken(name)
        assert token not in self.has_run()
        self.rights[name].admins.add(user)
        await self.reload()
        await self.tell(name, user)

    async def _want(self, name: str, user: str, *, is_in_group: bool) -> tuple[str, SeenMessage]:
        token = f"token-{len(self.said)}"
        command = json.dumps({"command": f"echo {token} >> mark"})
        await self.say(name, user, f"CALL terminal {command}", is_in_group=is_in_group)
        return token, await self._question(name, user, token, is_in_group=is_in_group)

    async def _press_as_others(self, name: str, user: str, shown: SeenMessage) -> None:
        for other in sorted({*PEOPLE, "666"} - {user}):
            await self._press(name, shown, other, is_in_group=True)

    async def _question(self, name: str, user: str, token: str, *, is_in_group: bool) -> SeenMessage:
        def asked() -> list[SeenMessage]:
            seen = self.seen(name, user, is_in_group=is_in_group)
            return [one for one in seen if one.buttons and token in one.text]

        await self.harness.until(lambda: bool(asked()))
        return asked()[0]

    async def _contend(self, name: str, user: str, token: str, is_in_group: bool) -> None:
        shown = await self._question(name, user, token, is_in_group=is_in_group)
        is_open = True
        for _ in range(self.random.randrange(1, 4)):
            match self.random.choice(["press", "press", "approve", "demote", "change others"]):
                case "press" if is_in_group:
                    self.steps.append("  press by the others")
                    await self._press_as_others(name, user, shown)
                case "approve":
                    other = self.random.choice([one for one in (*PEOPLE, "666") if one != user])
                    self.steps.append(f"  /approve by {other}")
                    await self.command(name, other, "/approve session", is_in_group=is_in_group)
                case "demote":
                    self.steps.append(f"  demote {user}")
                    self.rights[name].admins.discard(user)
                    if self.random.random() < 0.3:
                        self.rights[name].allowed.discard(user)
                    await self.reload()
                    is_open = False
                case _:
                    self.steps.append("  change others")
                    self._change(name, self.random.choice([one for one in PEOPLE if one != user]))
                    await self.reload()
            await self.taken(name)
            assert token not in self.has_run()
        is_admin = user in self.rights[name].admins
        how = self.random.choice(["press", "/approve", "/deny"])
        self.steps.append(f"  {how} by {user}, open {is_open}, admin {is_admin}")
        if is_open and is_admin and how != "/deny":
            self.approved.add(token)
        if how == "press":
            await self._press(name, shown, user, is_in_group=is_in_group)
        else:
            await self.command(name, user, how, is_in_group=is_in_group)

    async def _press(self, name: str, shown: SeenMessage, user: str, *, is_in_group: bool) -> None:
        try:
            chat = PLACES[name].group if is_in_group else ""
            await self.services[name].press(shown.id, shown.buttons[0][1], user=user, chat=chat)
        except (LookupError, ValueError):
            pass  # its buttons are gone

    # What happens to them

    async def change_rights(self) -> None:
        name, user = self._anybody()
        self._change(name, user)
        self.steps.append(f"rights {name} {self.rights[name]}")
        await self.reload()

    def _change(self, name: str, user: str) -> None:
        rights = self.rights[name]
        for whose in (rights.allowed, rights.admins):
            if self.random.random() < 0.5:
                whose.symmetric_difference_update({user})

    async def pair(self) -> None:
        """With the code that they are told; or send away who was let in so. By another process."""
        name, user = self._anybody()
        rights = self.rights[name]
        if user in rights.allowed | rights.admins:
            return
        self.steps.append(f"pair {name} {user}")
        async with open_store(self.harness.home) as other:
            if user in rights.paired:
                await other.access.revoke(name, _id(name, user))
            else:
                await self.command(name, user, "/whoami")
                await self.taken(name)
                told = "\n".join(one.text for one in self.seen(name, user, is_in_group=False))
                codes = re.findall(rf"pairing approve {name} (\S+)", told)
                approving = Pairing(other.access, SystemClock()).approve(name, codes[-1] if codes else "")
                if not isinstance(await approving, Member):
                    return  # too many wait for a code
        rights.paired ^= {user}
        await self.harness.until(lambda: self._is_noticed(name, user))

    async def _is_noticed(self, name: str, user: str) -> bool:
        def told() -> int:
            return len([one for one in self.seen(name, user, is_in_group=False) if one.text.endswith("· user")])

        before = told()
        await self.services[name].say("/whoami", user=user)
        await self.taken(name)
        return (told() > before) == (user in self.rights[name].paired)

    async def restart(self) -> None:
        self.steps.append("restart")
        await self.open()

    def _anybody(self, *, is_likely_an_admin: bool = False) -> tuple[str, str]:
        name = self.random.choice(list(self.services))
        admins = sorted(self.rights[name].admins)
        if is_likely_an_admin and admins and self.random.random() < 0.7:
            return name, self.random.choice(admins)
        return name, self.random.choice(PEOPLE)

    # What must hold

    def has_run(self) -> set[str]:
        files = self.harness.home.parent.glob("people/*/mark")
        return {line for file in files for line in file.read_text().split()}

    def check(self) -> None:
        assert self.has_run() <= self.approved, "something ran that nobody allowed who could"
        for name in self.services:
            everybody = "\n".join(one.text for one in self.seen(name, PEOPLE[0], is_in_group=True))
            assert not canaries(everybody)
            for user in (*PEOPLE, KEEPER):
                theirs = "\n".join(one.text for one in self.seen(name, user, is_in_group=False))
                assert canaries(theirs) <= {canary(name, user)}
        for request in self.harness.model.requests:
            said = self._cause(request)
            assert said.may_be_heard, "the model was told what somebody said who may not speak"
            mine = set[str]() if said.is_in_group else {canary(said.platform, said.user)}
            assert canaries(request.body.decode()) <= mine, f"a turn of {said} is shown what is another's"

    def _cause(self, request: RecordedRequest) -> Said:
        asked = [content_of(one) for one in request.json["messages"] if one["role"] == "user"]
        found = re.findall(r"#(\d+)#", asked[-1])
        return self.said[int(found[-1])]

    async def go(self, rounds: int) -> None:
        """In each round everybody tells a secret; then every move is made, some more often, in any order."""
        moves = [self.tell, self.snoop, self.act, self.change_rights]
        try:
            for _ in range(rounds):
                for name in self.services:
                    for user in PEOPLE:
                        await self.tell(name, user)
                    await self.approve(name)
                    await self.demote(name)
                self.check()
                deck = [*moves, *moves, self.act, self.act, self.chat, self.pair, self.restart]
                self.random.shuffle(deck)
                for move in deck:
                    await move()
                    self.check()
        except BaseException:
            print("\n".join(self.steps))
            raise


def _id(name: str, user: str) -> str:
    return f"U{user}" if name == "slack" else user


def canary(name: str, user: str) -> str:
    return f"canary-{name}-{user}"


def canaries(text: str) -> set[str]:
    return set(re.findall(r"canary-\w+-\d+", text))


@asynccontextmanager
async def walking(folder: Path, names: list[str], seed: int) -> AsyncGenerator[Walk]:
    async with AsyncExitStack() as stack:
        model = stack.enter_context(ModelServer(respond=obedient))
        telegram = await stack.enter_async_context(TelegramServer())
        services: dict[str, Any] = {}
        for name in names:
            made = telegram if name == "telegram" else await stack.enter_async_context(PLACES[name].serve())
            services[name] = made
        harness = await stack.enter_async_context(gateway_harness(folder, model, telegram))
        harness.config["gateway"]["platforms"].clear()
        harness.config["gateway"]["group_sessions_per_user"] = False
        harness.config["approvals"] = {"ask": ["terminal"]}
        walk = Walk(harness, services, seed)
        await walk.open()
        try:
            yield walk
        finally:
            await walk.running.aclose()


@pytest.mark.usefixtures("run_folder")
@pytest.mark.parametrize("name", list(PLACES))
async def test_nothing_of_one_person_reaches_another(tmp_path: Path, name: str) -> None:
    async with walking(tmp_path, [name], seed=6) as walk:
        await walk.go(rounds=1)


@pytest.mark.long
@pytest.mark.usefixtures("run_folder")
@pytest.mark.parametrize("seed", range(12))
async def test_nothing_of_one_person_reaches_another_however_long_they_try(tmp_path: Path, seed: int) -> None:
    async with asyncio.timeout(1200), walking(tmp_path, list(PLACES), seed) as walk:
        await walk.go(rounds=8)
