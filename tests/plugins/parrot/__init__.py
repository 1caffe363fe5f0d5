"""The smallest platform adapter that others write: for Hermes' gateway, knowing nothing of the host that runs it here."""

from gateway.config import Platform, PlatformConfig
from gateway.platforms.base import BasePlatformAdapter, MessageEvent, MessageType, SendResult


class Service:
    """What others would reach over the network."""

    def __init__(self):
        self.posts = []
        self.listener = None

    async def say(self, text, user="anna", **facts):
        await self.listener(text, user, **facts)


SERVICE = Service()


class ParrotAdapter(BasePlatformAdapter):
    def __init__(self, config: PlatformConfig):
        super().__init__(config, Platform("parrot"))

    async def connect(self) -> bool:
        SERVICE.listener = self._on_message
        return True

    async def disconnect(self) -> None:
        SERVICE.listener = None

    async def send(self, chat_id, content, reply_to=None, metadata=None):
        SERVICE.posts.append((chat_id, content))
        return SendResult(success=True)

    async def get_chat_info(self, chat_id):
        return {"name": chat_id, "type": "dm"}

    async def _on_message(self, text, user, **facts):
        source = self.build_source(chat_id=f"room-of-{user}", user_id=user, user_name=user.title())
        await self.handle_message(MessageEvent(text=text, message_type=MessageType.TEXT, source=source, **facts))


def register(ctx):
    ctx.register_platform(
        name="parrot",
        label="Parrot",
        adapter_factory=lambda cfg: ParrotAdapter(cfg),
        check_fn=lambda: True,
    )
