"""Our login: made once and kept, because the server knows our messages again by the device that sent them."""

from pathlib import Path

import msgspec
import nio  # pyright: ignore[reportMissingTypeStubs]

from talaria.files import read_bytes, replace_file
from talaria.platforms.base import AccessLost, NotTaken, Refused
from talaria.platforms.matrix.config import MatrixSettings
from talaria.platforms.matrix.failures import LoggedOut
from talaria.platforms.matrix.matrix_client import MatrixClient, read
from talaria.waiting import in_thread

_MAX_BYTES = 65_536


class Login(msgspec.Struct, frozen=True):
    homeserver: str
    """A token is shown to nobody else."""
    user_id: str
    device_id: str
    access_token: str


async def log_in(client: MatrixClient, settings: MatrixSettings, home: Path) -> None:
    """Raises `NotTaken`, `Refused`."""
    file = home / "login.json"
    known = await in_thread(lambda: _read(file))
    if known is not None and (known.homeserver, known.user_id) != (client.homeserver, settings.user_id):
        known = None
    token = settings.access_token.reveal() or (known.access_token if known is not None else "")
    try:
        login = await _resumed(client, settings, token) if token else await _new(client, settings, known)
    except LoggedOut:
        if not settings.password:
            raise
        login = await _new(client, settings, known)
    if login != known:
        try:
            await in_thread(lambda: _write(file, login))
        except OSError as fault:
            raise NotTaken(f"The Matrix login cannot be kept in {file}: {fault.strerror}.") from fault


async def _resumed(client: MatrixClient, settings: MatrixSettings, token: str) -> Login:
    client.access_token = token
    who = await read(client.whoami(), nio.WhoamiResponse)
    if who.user_id != settings.user_id:
        raise Refused(
            f"The Matrix token is for {who.user_id}, and gateway.platforms.matrix.user_id is {settings.user_id}."
        )
    if not who.device_id:
        raise Refused(
            "The Matrix token belongs to no device: without one, messages could be sent twice. Use a password."
        )
    client.restore_login(who.user_id, who.device_id, token)
    return Login(client.homeserver, who.user_id, who.device_id, token)


async def _new(client: MatrixClient, settings: MatrixSettings, known: Login | None) -> Login:
    client.access_token = ""
    client.device_id = known.device_id if known is not None else ""
    asking = client.login(settings.password.reveal(), settings.device_name)
    try:
        made = await read(asking, nio.LoginResponse)
    except AccessLost as fault:
        raise Refused(f"The Matrix server does not take the password of {settings.user_id}.") from fault
    if made.user_id != settings.user_id:
        raise Refused(f"The Matrix server calls us {made.user_id}: set that as gateway.platforms.matrix.user_id.")
    return Login(client.homeserver, made.user_id, made.device_id, made.access_token)


def _read(file: Path) -> Login | None:
    try:
        return msgspec.json.decode(read_bytes(file, _MAX_BYTES), type=Login)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(file: Path, login: Login) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(file, msgspec.json.encode(login), mode=0o600)
