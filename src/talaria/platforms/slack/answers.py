"""What we read of the answers of Slack's Web API."""

from typing import Any

import msgspec


class Done(msgspec.Struct, frozen=True):
    pass


class Identity(msgspec.Struct, frozen=True):
    team_id: str
    user_id: str


class Opened(msgspec.Struct, frozen=True):
    url: str


class Posted(msgspec.Struct, frozen=True):
    ts: str


class Ticket(msgspec.Struct, frozen=True):
    """To upload one file."""

    upload_url: str
    file_id: str


class FileInfo(msgspec.Struct, frozen=True):
    url_private: str = ""
    url_private_download: str = ""

    @property
    def url(self) -> str:
        return self.url_private_download or self.url_private


class FoundFile(msgspec.Struct, frozen=True):
    file: FileInfo


class Profile(msgspec.Struct, frozen=True):
    display_name: str = ""


class SlackMember(msgspec.Struct, frozen=True):
    name: str = ""
    real_name: str = ""
    profile: Profile = Profile()


class FoundPerson(msgspec.Struct, frozen=True):
    user: SlackMember


class SlackChannel(msgspec.Struct, frozen=True):
    id: str
    user: str = ""
    """Of a direct message: with whom."""


class FoundChannel(msgspec.Struct, frozen=True):
    channel: SlackChannel


class Following(msgspec.Struct, frozen=True):
    next_cursor: str = ""


class SlackPage(msgspec.Struct, frozen=True):
    response_metadata: Following | None = None

    @property
    def next_cursor(self) -> str:
        return self.response_metadata.next_cursor if self.response_metadata else ""


class Channels(SlackPage, frozen=True):
    channels: tuple[SlackChannel, ...] = ()


class Messages(SlackPage, frozen=True):
    messages: tuple[dict[str, Any], ...] = ()
    """Each is decoded for itself: one that is odd does not spoil the others."""
