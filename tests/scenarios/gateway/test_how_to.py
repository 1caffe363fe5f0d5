"""Somebody does what the how-tos about the gateway say, word for word: what they are told works as it stands."""

import asyncio
import os
import re
import shlex
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.ports import reserved_port
from tests.servers.discord_server import DiscordServer
from tests.servers.slack_server import SlackServer
from tests.servers.synapse import Synapse

import talaria
from talaria.app.build import open_store
from talaria.app.gateway_app import load_wanted
from talaria.app.settings import read_settings
from talaria.core.clock import SystemClock
from talaria.core.secret import Secret
from talaria.gateway.authorization import APPROVED, Pairing
from talaria.gateway.claims import find_holder, gateway_file
from talaria.gateway.gateway_status import read_status
from talaria.platforms.base import Sender
from talaria.platforms.webhook import config
from talaria.testing import ModelServer
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.telegram_server import TelegramServer

DOCS = Path(__file__).parents[3] / "docs"
ANSWER = "At your service."


def blocks(file: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / file).read_text("utf-8"), re.DOTALL)


def as_here(text: str, changes: Mapping[str, str]) -> str:
    """With what somebody puts in place of the examples."""
    for example, own in changes.items():
        assert example in text, f"the how-to does not speak of {example}"
        text = text.replace(example, own)
    return text


class Somebody:
    """With a shell, a home, a scripted model, and a how-to."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = Path(environment["PWD"])
        self.home = Path(environment["TALARIA_HOME"])
        program = folder / "bin" / "talaria"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m talaria.cli.main "$@"\n')
        program.chmod(0o755)
        self.environment = {
            **environment,
            "PATH": f"{program.parent}:{environment['PATH']}",
            "XDG_RUNTIME_DIR": str(folder),
        }
        self.running: list[Process] = []

    async def does(self, script: str, *arguments: str) -> str:
        """In a shell that stops at the first mistake; what it printed."""
        process = await self._spawn("sh", "-euc", script, "sh", *arguments, out=PIPE)
        async with asyncio.timeout(PATIENCE_S):
            out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        return out.decode()

    async def starts(self, *command: str) -> Process:
        process = await self._spawn(*command, out=PIPE)
        self.running.append(process)
        return process

    async def _spawn(self, *command: str, out: int) -> Process:
        return await asyncio.create_subprocess_exec(
            *command, env=self.environment, cwd=self.folder, stdin=DEVNULL, stdout=out, stderr=PIPE
        )

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                await asyncio.sleep(0.01)

    async def leaves(self) -> None:
        if (pid := find_holder(gateway_file(self.home))) is not None:
            os.kill(pid, signal.SIGKILL)
        for process in self.running:
            if process.returncode is None:
                process.kill()
            await process.communicate()


@pytest.fixture
async def somebody(tmp_path: Path, environment: dict[str, str]) -> AsyncIterator[Somebody]:
    async with AsyncExitStack() as stack:
        model = stack.enter_context(ModelServer())
        model.say(*[ANSWER] * 5)
        one = Somebody(tmp_path, environment)
        one.home.mkdir(mode=0o700)
        (one.home / "config.yaml").write_text(
            f"model: {{default: m, base_url: '{model.base_url}'}}\ngateway: {{workspace: '{tmp_path / 'people'}'}}\n"
        )
        stack.push_async_callback(one.leaves)
        yield one


class Place(msgspec.Struct, frozen=True):
    """A service, and what its how-to calls things."""

    serve: Callable[[Path], Any]
    examples: Mapping[str, str]
    """By what stands there: the setting that has it here."""
    person: str
    is_called: str
    """The person `1001`."""
    elsewhere: Mapping[str, str] = {}
    """Settings that make the gateway come here; `{setting}` is the service's."""


PLACES = {
    "telegram": Place(
        lambda _: TelegramServer(), {"123456:ABC-def": "token"}, "123456789", "1001", {"base_url": "{base_url}"}
    ),
    "discord": Place(
        lambda _: DiscordServer(), {"your-token": "token"}, "123456789012345678", "1001", {"api_url": "{api_url}"}
    ),
    "slack": Place(
        lambda _: SlackServer(),
        {"xoxb-your-token": "bot_token", "xapp-your-token": "app_token"},
        "U0123ABCD",
        "U1001",
        {"api_url": "{api_url}", "ping_s": "0.2"},
    ),
    "matrix": Place(
        lambda folder: Synapse(folder / "synapse"),
        {
            "https://matrix.example.org": "homeserver",
            "@talaria:example.org": "user_id",
            "a-long-password": "password",
        },
        "@ann:example.org",
        "",
    ),
}


@pytest.mark.parametrize("name", PLACES)
async def test_a_service_is_connected_as_its_how_to_says(somebody: Somebody, tmp_path: Path, name: str) -> None:
    place = PLACES[name]
    async with place.serve(tmp_path) as service:
        await connect(somebody, service, name)
        await service.say("hello")
        assert [one.text for one in await service.wait_for(1)] == [ANSWER]


async def connect(somebody: Somebody, service: Any, name: str) -> None:
    """As far as the gateway runs."""
    place = PLACES[name]
    given = {example: shlex.quote(str(service.settings[setting])) for example, setting in place.examples.items()}
    person = {place.person: place.is_called or service.id_of("1001")}
    *lines, last = as_here(blocks(f"how-to/connect-{name}.md", "sh")[0], {**given, **person}).splitlines()
    assert last == "talaria gateway run"
    for setting, value in place.elsewhere.items():
        own = value.format_map(service.settings)
        await somebody.does(f"talaria config set gateway.platforms.{name}.{setting} {own}")
    told = await somebody.does("\n".join(lines))
    assert re.search(rf"^configured +{name} ", told, re.MULTILINE)
    await somebody.starts(*shlex.split(last))
    await somebody.until(lambda: has_heard(somebody.home))


def has_heard(home: Path) -> bool:
    status = read_status(home)
    return status is not None and all(one.heard_at for one in status.platforms)


async def test_a_stranger_is_let_in_as_the_how_to_says(somebody: Somebody) -> None:
    async with TelegramServer() as service:
        await connect(somebody, service, "telegram")
        await service.say("let me in", user="1002")
        (offer,) = await service.wait_for(1, user="1002")
        code = re.search(r"talaria pairing approve telegram (\w+)", offer.text)
        assert code is not None
        approving = as_here(blocks("how-to/connect-telegram.md", "sh")[1], {"K7QFM2XA": code[1]})
        assert "waiting   telegram 1002" in await somebody.does(approving)
        await service.say("hello", user="1002")
        _, *then = await service.wait_for(3, user="1002")
        assert {one.text for one in then} == {APPROVED, ANSWER}


async def test_people_are_let_in_and_sent_away_as_the_how_to_says(somebody: Somebody) -> None:
    async with open_store(somebody.home) as store:
        code = await Pairing(store.access, SystemClock()).offer("telegram", Sender("987654321", "Bob"))
        assert code is not None
        as_typed = f"{code[:4]}-{code[4:]}".lower()
        listed = await somebody.does(as_here(blocks("how-to/run-the-gateway.md", "sh")[0], {"k7qf-m2xa": as_typed}))
        assert "approved  telegram 987654321 (Bob)" in listed
        assert await store.access.members() == []


SECRETS = """\
TELEGRAM_BOT_TOKEN=1:a
DISCORD_BOT_TOKEN=a
SLACK_BOT_TOKEN=xoxb-1
SLACK_APP_TOKEN=xapp-1
MATRIX_HOMESERVER=https://example.org
MATRIX_USER_ID=@b:example.org
MATRIX_PASSWORD=a
WEBHOOK_SECRET=a-secret-of-webhooks
DESK_SECRET=a-secret-of-the-desk
GITHUB_WEBHOOK_SECRET=a-secret-of-github
TELEGRAM_WEBHOOK_SECRET=a-secret-of-telegram
"""


@pytest.mark.parametrize("name", [*PLACES, "a-webhook"])
def test_the_settings_of_the_how_tos_are_understood(tmp_path: Path, name: str) -> None:
    (tmp_path / ".env").write_text(SECRETS)
    (tmp_path / ".env").chmod(0o600)
    for shown in blocks(f"how-to/connect-{name}.md", "yaml"):
        (tmp_path / "config.yaml").write_text(shown)
        found = load_wanted(read_settings(tmp_path), SystemClock())
        assert found.problems == {}
        assert name.removeprefix("a-") in [door.name for door in found.specs]


@pytest.fixture
def ports() -> Iterator[tuple[str, str]]:
    with reserved_port() as one, reserved_port() as other:
        yield str(one), str(other)


async def test_a_program_speaks_as_the_how_to_and_the_reference_say(somebody: Somebody, ports: tuple[str, str]) -> None:
    port, receiving = ports
    how_to, reference = "how-to/connect-a-webhook.md", "reference/webhook.md"
    told = await somebody.does(as_here(blocks(how_to, "sh")[0], {"9000": receiving}))
    assert re.search(r"^configured +webhook ", told, re.MULTILINE)
    await somebody.does(f"talaria config set gateway.platforms.webhook.listen_port {port}")
    secret = re.search(r"WEBHOOK_SECRET=(\w+)", (somebody.home / ".env").read_text())
    assert secret is not None
    somebody.environment["WEBHOOK_SECRET"] = secret[1]
    (somebody.folder / "post.sh").write_text(as_here(blocks(reference, "sh")[0], {"8644": port}))
    (somebody.folder / "receiver.py").write_text(as_here(blocks(how_to, "python")[0], {"9000": receiving}))
    _, receive, start, post = as_here(blocks(how_to, "console")[0], {"python": sys.executable}).splitlines()
    receiver = await somebody.starts(*shlex.split(receive.removesuffix(" &")))
    await somebody.does(start)
    assert await somebody.does(post) == '{"status": "accepted"}'
    assert await somebody.does(post) in ('{"status": "known"}', '{"error": "This exact request was already received."}')
    assert receiver.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        assert (await receiver.stdout.readline()).decode() == f"{ANSWER}\n"
    somebody.environment["WEBHOOK_SECRET"] = "somebody else's"
    assert await somebody.does(post) == '{"error": "The signature is wrong."}'


async def test_the_signature_in_the_reference_is_right(somebody: Somebody) -> None:
    told = " ".join((DOCS / "reference" / "webhook.md").read_text("utf-8").split())
    example = re.search(r"`(\w+)`, the timestamp (\d+) and the body `(.+?)` the signature is `(v1=\w+)`", told)
    assert example is not None
    secret, timestamp, body, signature = example.groups()
    assert config.sign(Secret(secret), body.encode(), float(timestamp))[config.SIGNATURE] == signature
    signs = next(line for line in blocks("reference/webhook.md", "sh")[0].splitlines() if line.startswith("signature="))
    somebody.environment |= {"WEBHOOK_SECRET": secret, "timestamp": timestamp, "body": body}
    assert await somebody.does(f'{signs}\nprintf %s "v1=$signature"') == signature


async def test_the_platform_of_the_how_to_works(somebody: Somebody, tmp_path: Path) -> None:
    """In a copy of the package, into which its folder is put."""
    here = Path(talaria.__file__).parent
    there = tmp_path / "copy" / "talaria"
    for original, copy in ((here, there), (here / "platforms", there / "platforms")):
        copy.mkdir(parents=True)
        for one in original.iterdir():
            if one.name != "platforms":
                (copy / one.name).symlink_to(one)
    new = there / "platforms" / "postbox"
    new.mkdir()
    (manifest,), (config, platform) = (blocks("how-to/add-a-platform.md", kind) for kind in ("toml", "python"))
    for name, text in {"__init__": "", "config": config, "platform": platform}.items():
        (new / f"{name}.py").write_text(text)
    (new / "manifest.toml").write_text(manifest)
    somebody.environment |= {"PYTHONPATH": str(there.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    setting_up, looking = blocks("how-to/add-a-platform.md", "sh")
    assert re.search(r"^configured +postbox +A folder", await somebody.does(setting_up), re.MULTILINE)
    box = somebody.folder / "box" / "ann"
    shown = "out/[!.]*"  # as `*` in a shell: while a file is replaced there is a hidden one, too
    await somebody.until(lambda: [one.read_text() for one in box.glob(shown)] == [f"{ANSWER}\n"])
    await somebody.until(lambda: not any((box / "in").iterdir()))
    assert await somebody.does(looking) == f"{ANSWER}\n"
