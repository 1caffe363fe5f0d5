"""discord.py as an oracle: the real library takes our Discord on loopback for Discord."""

import asyncio
import warnings
from collections.abc import AsyncIterator
from io import BytesIO

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it loads `audioop` for voices
    import discord
    from discord.gateway import DiscordWebSocket
    from discord.http import Route

import yarl
from tests.servers.discord_server import DiscordServer

from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.chat_service import Refusal

discord.VoiceClient.warn_nacl = False
discord.VoiceClient.warn_dave = False
CHANNEL = "2001"
THREAD = "2500"


class Oracle(discord.Client):
    def __init__(self) -> None:
        intents = discord.Intents(guilds=True, messages=True, message_content=True)
        super().__init__(intents=intents, guild_ready_timeout=0.1)
        self.messages: asyncio.Queue[discord.Message] = asyncio.Queue()
        self.interactions: asyncio.Queue[discord.Interaction] = asyncio.Queue()
        self.deleted: asyncio.Queue[int] = asyncio.Queue()
        self.is_resumed = asyncio.Event()

    async def on_message(self, message: discord.Message) -> None:
        self.messages.put_nowait(message)

    async def on_interaction(self, interaction: discord.Interaction) -> None:
        self.interactions.put_nowait(interaction)

    async def on_raw_message_delete(self, payload: discord.RawMessageDeleteEvent) -> None:
        self.deleted.put_nowait(payload.message_id)

    async def on_resumed(self) -> None:
        self.is_resumed.set()


@pytest.fixture
async def server() -> AsyncIterator[DiscordServer]:
    async with DiscordServer() as running:
        running.add_channel(CHANNEL)
        running.add_channel(THREAD, parent=CHANNEL)
        yield running


@pytest.fixture
async def oracle(server: DiscordServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Oracle]:
    monkeypatch.setattr(Route, "BASE", server.url)
    monkeypatch.setattr(DiscordWebSocket, "DEFAULT_GATEWAY", yarl.URL(server.gateway.url))
    async with asyncio.timeout(2 * PATIENCE_S), Oracle() as client:
        await client.http.static_login(server.token)
        running = asyncio.create_task(client.connect())
        await client.wait_until_ready()
        if client.guilds[0].unavailable:
            await client.wait_for("guild_available")
        yield client
        await client.close()
        await running


async def test_the_library_logs_in_and_knows_the_server_its_channels_and_our_role(oracle: Oracle) -> None:
    [guild] = oracle.guilds
    thread = oracle.get_channel(int(THREAD))
    assert [channel.id for channel in guild.text_channels] == [int(CHANNEL)]
    assert isinstance(thread, discord.Thread)
    assert thread.parent_id == int(CHANNEL)
    assert guild.self_role is not None
    assert guild.self_role.id == 9001


async def test_the_library_hears_messages_replies_files_presses_commands_and_deletions(
    server: DiscordServer, oracle: Oracle
) -> None:
    first = await server.say("<@9000> hello", chat=CHANNEL, file=("a.txt", b"content", "text/plain"))
    await server.say("and", chat=CHANNEL, thread=THREAD)
    heard = [await oracle.messages.get() for _ in range(2)]
    assert [message.content for message in heard] == ["<@9000> hello", "and"]
    assert await heard[0].attachments[0].read() == b"content"
    assert oracle.user in heard[0].mentions
    assert isinstance(heard[1].channel, discord.Thread)
    await server.say("a reply", chat=CHANNEL, reply_to=first)
    reply = await oracle.messages.get()
    assert reply.reference is not None
    assert reply.reference.message_id == int(first)
    await server.command("model", "gpt-5", chat=CHANNEL)
    assert (await oracle.interactions.get()).type is discord.InteractionType.application_command
    await server.remove(first)
    assert await oracle.deleted.get() == int(first)


async def test_the_library_speaks_edits_reacts_and_sends_files(server: DiscordServer, oracle: Oracle) -> None:
    channel = oracle.get_channel(int(CHANNEL))
    assert isinstance(channel, discord.TextChannel)
    sent = await channel.send("thinking", file=discord.File(BytesIO(b"png"), "a.png"))
    await sent.edit(content="thought")
    await sent.add_reaction("👀")
    async with channel.typing():
        pass
    thread = await channel.create_thread(name="A talk", type=discord.ChannelType.public_thread)
    await thread.send("here")
    seen = server.list_messages(chat=CHANNEL)
    assert [(one.text, one.edits, one.file) for one in seen] == [("thought", 1, "a.png"), ("here", 0, "")]
    assert [message.content async for message in channel.history(limit=5)] == ["thought"]
    await sent.delete()
    assert [seen.text for seen in server.list_messages(chat=CHANNEL)] == ["here"]


@pytest.mark.parametrize("code", [4000, 4009])
async def test_the_library_resumes_and_misses_nothing(server: DiscordServer, oracle: Oracle, code: int) -> None:
    await server.close_socket(code)
    await server.say("meanwhile", chat=CHANNEL)
    await oracle.is_resumed.wait()
    assert (await oracle.messages.get()).content == "meanwhile"
    assert (server.gateway.identified, server.gateway.resumed) == (1, 1)


@pytest.mark.parametrize(
    ("refusal", "error"),
    [(Refusal(403, extra={"code": 50001}), discord.Forbidden), (Refusal(404, extra={"code": 10003}), discord.NotFound)],
)
async def test_the_library_reads_each_refusal_as_what_it_is(
    server: DiscordServer, oracle: Oracle, refusal: Refusal, error: type[discord.HTTPException]
) -> None:
    server.fault("create_message", refusal)
    channel = oracle.get_channel(int(CHANNEL))
    assert isinstance(channel, discord.TextChannel)
    with pytest.raises(error):
        await channel.send("hello")
