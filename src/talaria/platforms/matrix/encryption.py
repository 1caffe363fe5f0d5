"""Encrypted rooms: our keys are tended between two syncs, shared before a message, and others' used to read theirs.

A device is trusted when it is first seen; nio refuses one whose keys change later. Who is in a room may read it.
"""

import logging
from collections.abc import Awaitable
from typing import Any, cast

import nio  # pyright: ignore[reportMissingTypeStubs]
from nio.crypto import ENCRYPTION_ENABLED  # pyright: ignore[reportMissingTypeStubs]

from talaria.platforms.base import NotTaken, PlatformFailure
from talaria.platforms.matrix.matrix_client import MatrixClient, read

IS_INSTALLED = ENCRYPTION_ENABLED
NOT_INSTALLED = (
    "This room is encrypted, and I cannot read encrypted messages: the package for it is not installed where I run "
    "(pip install 'talaria-agent[matrix-e2e]'). Until it is, talk to me in a room without encryption."
)
TURNED_OFF = (
    "This room is encrypted, and I do not read encrypted messages: encryption is off in my settings "
    "(gateway.platforms.matrix.encryption). Talk to me in a room without encryption."
)
UNREADABLE = (
    "I could not read an encrypted message here: its key has not reached me. Say it once more; if that does not help, "
    "turn off the option of your app that encrypts to verified devices only."
)

log = logging.getLogger(__name__)


async def tend(client: MatrixClient) -> None:
    """What fails is due again at the next call. Raises `Refused`."""
    if client.olm is None:
        return
    if client.should_upload_keys:
        await _tried(client.keys_upload(), nio.KeysUploadResponse)
    if client.should_query_keys:
        await _tried(client.keys_query(), nio.KeysQueryResponse)
    if client.should_claim_keys:
        await _tried(client.keys_claim(dict(client.get_users_for_key_claiming())), nio.KeysClaimResponse)
    for message in list(client.outgoing_to_device_messages):
        await _tried(client.to_device(message), nio.ToDeviceResponse)


async def _tried(work: Awaitable[object], kind: type[object]) -> None:
    try:
        await read(work, kind)
    except PlatformFailure as fault:
        log.warning("the keys for encrypted Matrix rooms: %s", fault)


async def share(client: MatrixClient, room_id: str) -> None:
    """Everybody in the room can read what we say next. Raises `NotTaken`, `AccessLost`, `Refused`."""
    room = client.rooms[room_id]
    if not room.members_synced:
        await read(client.joined_members(room_id), nio.JoinedMembersResponse)
    if client.should_query_keys:
        await read(client.keys_query(), nio.KeysQueryResponse)
    while room_id in client.sharing_session:
        await client.sharing_session[room_id].wait()
    if client.olm is not None and client.olm.should_share_group_session(room_id):
        shared = await read(
            client.share_group_session(room_id, ignore_unverified_devices=True), nio.ShareGroupSessionResponse
        )
        if _reachable(client, room) - cast("Any", shared).users_shared_with:
            client.invalidate_outbound_session(room_id)
            raise NotTaken("The keys of an encrypted Matrix room could not be shared with everybody in it.")


def _reachable(client: MatrixClient, room: nio.MatrixRoom) -> set[tuple[str, str]]:
    """Devices in the room to which there is a secure channel."""
    return {
        (user, device.id)
        for user in room.users
        for device in client.device_store.active_user_devices(user)
        if device.id != client.device_id and client.olm is not None and client.olm.session_store.get(device.curve25519)
    }


def readable(client: MatrixClient, room: str, event: nio.Event) -> nio.Event | None:
    """The event itself, if it was not encrypted or can be read; None if it cannot be read (yet)."""
    if isinstance(event, nio.RedactedEvent):
        return event
    if isinstance(event, nio.MegolmEvent):
        event.room_id = room
        try:
            event = cast("nio.Event", client.decrypt_event(event))
        except (nio.EncryptionError, nio.LocalProtocolError, AssertionError):
            return None
    if not event.decrypted:
        return None if event.source.get("type") == "m.room.encrypted" else event
    return event if _is_genuine(client, event) else None


def _is_genuine(client: MatrixClient, event: nio.Event) -> bool:
    """Whether the key that opened it belongs to a device of whoever is said to have sent it."""
    return event.sender == client.user_id or (
        client.device_store.device_from_sender_key(event.sender, event.sender_key or "") is not None
    )
