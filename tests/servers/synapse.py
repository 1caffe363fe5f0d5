"""A real Matrix homeserver on loopback: Synapse as a process, people with accounts on it, and a door for the bot
that misbehaves when told to."""

import asyncio
import hashlib
import hmac
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Self

import aiohttp
from tests.servers.synapse_person import SynapseUser
from tests.servers.synapse_proxy import SynapseProxy

from talaria.testing.servers.chat_service import Fault, SeenMessage

DOMAIN = "test"
START_S = 120
PASSWORD = "a password on loopback"
_SHARED = "for registration on loopback"
_SIGNING_KEY = "ed25519 a_test n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg\n"
_ENDLESS = {"per_second": 1_000_000, "burst_count": 1_000_000}
_LIMITS: Mapping[str, Any] = {
    "rc_message": _ENDLESS,
    "rc_registration": _ENDLESS,
    "rc_login": {"address": _ENDLESS, "account": _ENDLESS, "failed_attempts": _ENDLESS},
    "rc_joins": {"local": _ENDLESS, "remote": _ENDLESS},
    "rc_joins_per_room": _ENDLESS,
    "rc_invites": {"per_room": _ENDLESS, "per_user": _ENDLESS, "per_issuer": _ENDLESS},
    "rc_room_creation": _ENDLESS,
    "rc_profile": _ENDLESS,
    "rc_media_create": _ENDLESS,
    "rc_presence": {"per_user": _ENDLESS},
}
_LOGGING: Mapping[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"file": {"class": "logging.FileHandler", "filename": "homeserver.log"}},
    "root": {"level": "WARNING", "handlers": ["file"]},
}


_PROGRAM = """
import os, runpy, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()  # nobody needs it any more
runpy.run_module("synapse.app.homeserver", run_name="__main__")
"""


class Homeserver:
    """The process, alive inside `with`. It listens on a socket file, so no port is ever taken."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Self:
        self._sockets = Path(tempfile.mkdtemp(prefix="synapse-"))  # paths of sockets must be short
        self.socket = self._sockets / "main"
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, content in _files(self.socket).items():
            (self._folder / name).write_text(content)
        ready = str(self._sockets / "ready")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening, (self._folder / "output").open("wb") as out:
            listening.bind(ready)
            listening.settimeout(1.0)
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, "-c", "homeserver.yaml"],
                cwd=self._folder,
                env={**os.environ, "NOTIFY_SOCKET": ready},
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
            )
            self._wait_for_word(listening)
        return self

    def _wait_for_word(self, listening: socket.socket) -> None:
        for _ in range(START_S):
            with suppress(TimeoutError):
                listening.recv(1024)
                return
            if self._process.poll() is not None:
                break
        self.__exit__()
        raise RuntimeError(f"Synapse does not start: {(self._folder / 'output').read_text()[-2000:]}")

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        shutil.rmtree(self._sockets)


def _files(listening: Path) -> Mapping[str, str]:
    config: Mapping[str, Any] = {
        "server_name": DOMAIN,
        "listeners": [{"path": str(listening), "type": "http", "resources": [{"names": ["client", "media"]}]}],
        "database": {"name": "sqlite3", "args": {"database": ":memory:"}},
        "media_store_path": "media",
        "signing_key_path": "signing.key",
        "log_config": "logging.yaml",
        "registration_shared_secret": _SHARED,
        "macaroon_secret_key": _SHARED,
        "form_secret": _SHARED,
        "bcrypt_rounds": 4,
        "report_stats": False,
        "trusted_key_servers": [],
        "federation_domain_whitelist": [],
        "presence": {"enabled": False},
        **_LIMITS,
    }
    return {
        "homeserver.yaml": json.dumps(config),  # JSON is YAML, too
        "logging.yaml": json.dumps(_LOGGING),
        "signing.key": _SIGNING_KEY,
    }


class Synapse:
    """`async with Synapse(folder) as server`. With a `Homeserver` in place of the folder, that one is used: each
    `Synapse` has accounts of its own, so many can follow each other on one homeserver.
    """

    def __init__(self, where: "Path | Homeserver", *, bot: str = "talaria") -> None:
        self._where = where
        self._tag = secrets.token_hex(3)
        self.bot = self.id_of(bot)
        self._door = SynapseProxy()
        self._side_door = SynapseProxy()
        self._people: dict[str, SynapseUser] = {}

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            homeserver = self._where
            if isinstance(homeserver, Path):
                homeserver = Homeserver(homeserver)
                await asyncio.to_thread(homeserver.__enter__)
                stack.callback(homeserver.__exit__)
            self._socket = homeserver.socket
            self._door_stack = await stack.enter_async_context(AsyncExitStack())
            await self._door_stack.enter_async_context(self._door.opened(homeserver.socket))
            await stack.enter_async_context(self._side_door.opened(homeserver.socket))
            self._session = await stack.enter_async_context(aiohttp.ClientSession(self._side_door.url))
            await self.register(self.bot)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"homeserver": self._door.url, "user_id": self.bot, "password": PASSWORD}

    def id_of(self, user: str) -> str:
        """The Matrix id of somebody whom tests call by a short name."""
        return user if user.startswith("@") else f"@{user}.{self._tag}:{DOMAIN}"

    async def register(self, user: str) -> Mapping[str, Any]:
        """A new account; its `access_token` and `device_id` are a login of it."""
        path = "/_synapse/admin/v1/register"
        async with self._session.get(path) as answer:
            nonce: str = (await answer.json())["nonce"]
        name = self.id_of(user)[1:].partition(":")[0]
        signed = f"{nonce}\0{name}\0{PASSWORD}\0notadmin".encode()
        mac = hmac.new(_SHARED.encode(), signed, hashlib.sha1).hexdigest()
        given = {"nonce": nonce, "username": name, "displayname": name.partition(".")[0], "password": PASSWORD}
        async with self._session.post(path, json={**given, "admin": False, "mac": mac}) as answer:
            account: Mapping[str, Any] = await answer.json()
        if "access_token" not in account:
            raise RuntimeError(f"the homeserver does not register {user}: {account}")
        return account

    async def log_in(self, user: str = "") -> Mapping[str, Any]:
        """A further login of somebody; by default of the bot."""
        identifier = {"type": "m.id.user", "user": self.id_of(user) if user else self.bot}
        given = {"type": "m.login.password", "identifier": identifier, "password": PASSWORD}
        async with self._session.post("/_matrix/client/v3/login", json=given) as answer:
            return await answer.json()

    async def end_logins(self) -> None:
        """Of the bot, all of them."""
        headers = {"Authorization": f"Bearer {(await self.log_in())['access_token']}"}
        async with self._session.post("/_matrix/client/v3/logout/all", headers=headers) as answer:
            answer.raise_for_status()

    async def shut_the_door(self) -> None:
        """From now on nobody answers where the bot connects to."""
        await self._door_stack.aclose()

    async def open_the_door(self) -> None:
        """After it was shut: at the same address."""
        await self._door_stack.enter_async_context(self._door.opened(self._socket))

    async def person(self, user: str = "1001") -> SynapseUser:
        """Somebody's account, there from now on."""
        user_id = self.id_of(user)
        if user_id not in self._people:
            self._people[user_id] = await self._present(user_id, await self.register(user))
        return self._people[user_id]

    async def second_device(self, user: str = "1001") -> SynapseUser:
        return await self._present(self.id_of(user), await self.log_in(user))

    async def _present(self, user_id: str, login: Mapping[str, Any]) -> SynapseUser:
        person = SynapseUser(self._side_door.url, user_id, login["device_id"], login["access_token"])
        return await self._stack.enter_async_context(person.present())

    async def room(self, *users: str, is_encrypted: bool = False) -> str:
        """A group of these people, made by the first of them, into which the bot is invited."""
        maker, *others = [await self.person(user) for user in users or ("1001",)]
        invited = [other.user_id for other in others]
        room = await maker.create_room(*invited, self.bot, is_encrypted=is_encrypted)
        for other in others:
            await other.join(room)
        return room

    async def say(self, text: str, *, user: str = "1001", chat: str = "", thread: str = "") -> str:
        person = await self.person(user)
        return await person.say(chat or await person.direct_room(self.bot), text, thread)

    async def press(self, message: str, data: str, *, user: str = "1001", chat: str = "") -> None:
        raise NotImplementedError("Matrix has no buttons")

    def list_messages(self, *, user: str = "1001", chat: str = "") -> Sequence[SeenMessage]:
        person = self._people.get(self.id_of(user))
        room = chat or (person.known_direct_room if person else "")
        return person.seen(room, self.bot) if person and room else ()

    async def wait_for(self, count: int, *, user: str = "1001", chat: str = "") -> Sequence[SeenMessage]:
        person = await self.person(user)
        return await person.until(chat or await person.direct_room(self.bot), count, self.bot)

    def fault(self, method: str, *faults: Fault) -> None:
        """Methods are called `send`, `redact`, `typing`, `sync`, `join`, `upload`, `keys_query`, …"""
        self._door.fault(method, *faults)

    def calls(self, method: str) -> Sequence[Mapping[str, Any]]:
        """`path`, `query` and `body` of each."""
        return self._door.calls(method)
