"""Files in the server's store: up with a message, down in pieces and within bounds, decrypted on the way."""

import hashlib
import os
import re
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import aiofiles
import aiohttp
import msgspec
import nio  # pyright: ignore[reportMissingTypeStubs]
import unpaddedbase64
from aiofiles.threadpool.binary import AsyncBufferedReader
from Crypto.Cipher import AES
from Crypto.Util import Counter

from talaria.platforms.base import PICTURES, AccessLost, Attachment, File, Rejected
from talaria.platforms.http_sessions import CHUNK_BYTES, explain_no_answer, resolve_doubt, save
from talaria.platforms.matrix import matrix_client
from talaria.platforms.matrix.incoming import Media
from talaria.platforms.matrix.matrix_client import API, SERVER, MatrixClient, read

_PLACE = re.compile(r"mxc://([\w.:\[\]-]+)/([\w-]+)", re.ASCII)
_KINDS = {**dict.fromkeys(PICTURES, "m.image"), "audio": "m.audio", "video": "m.video"}


async def upload_file(client: MatrixClient, file: File, *, is_encrypted: bool) -> dict[str, Any]:
    """The part of a message's content that is about the file. Raises `NotTaken`, `Rejected`, `Refused`."""
    async with AsyncExitStack() as stack:
        try:
            opened = await stack.enter_async_context(aiofiles.open(file.path, "rb"))
        except OSError as fault:
            raise Rejected(f"{file.name} cannot be read: {fault.strerror}.") from fault
        size = os.fstat(opened.fileno()).st_size
        try:
            where = await _upload(client, opened, file, size, is_encrypted=is_encrypted)
        except AccessLost as fault:
            raise Rejected(f"The Matrix server does not take the file {file.name}.") from fault
    kind = _KINDS.get(file.mime) or _KINDS.get(file.mime.partition("/")[0], "m.file")
    info: dict[str, Any] = {"mimetype": file.mime, "size": size}
    if file.pixels is not None:
        info["w"], info["h"] = file.pixels
    return {"msgtype": kind, "filename": file.name, "info": info, **where}


async def _upload(
    client: MatrixClient, opened: AsyncBufferedReader, file: File, size: int, *, is_encrypted: bool
) -> dict[str, Any]:
    keys: dict[str, Any] | None = None

    async def send() -> object:
        nonlocal keys
        name = None if is_encrypted else file.name
        answer, keys = await client.upload(opened, file.mime, name, encrypt=is_encrypted, filesize=size)
        return answer

    url = (await read(send(), nio.UploadResponse)).content_uri
    return {"file": {**keys, "url": url}} if keys else {"url": url}


async def download(client: MatrixClient, attachment: Attachment, to: Path, max_bytes: int) -> None:
    """Raises `NotTaken`, `Rejected`, `Refused`."""
    media = msgspec.json.decode(attachment.ref, type=Media)
    place = _PLACE.fullmatch(media.url)
    if place is None:
        raise Rejected(f"{attachment.name} is at no place of a Matrix server.")
    path = f"{API}/v1/media/download/{place[1]}/{place[2]}"
    try:
        async with await client.send("GET", path, headers=client.authorization, timeout=0) as answer:
            _check(answer, attachment)
            pieces = answer.content.iter_chunked(CHUNK_BYTES)
            if media.key:
                async with aclosing(_decrypt(pieces, media, attachment.name)) as opened:
                    await save(opened, to, max_bytes)
            else:
                await save(pieces, to, max_bytes)
    except matrix_client.TRANSPORT as fault:
        raise resolve_doubt(explain_no_answer(SERVER, fault)) from fault


def _check(answer: aiohttp.ClientResponse, attachment: Attachment) -> None:
    if answer.status == 200:
        return
    if answer.status in {403, 404}:
        raise Rejected(f"{attachment.name} is gone from the Matrix server.")
    raise resolve_doubt(matrix_client.refusal(answer.status, "", "", None))


async def _decrypt(pieces: AsyncIterable[bytes], media: Media, name: str) -> AsyncGenerator[bytes]:
    """Only after the last piece is it known whether it is the right file."""
    try:
        start, key, expected = map(unpaddedbase64.decode_base64, (media.iv, media.key, media.sha256))
        counter = Counter.new(64, prefix=start[:8], initial_value=int.from_bytes(start[8:], "big"))
        cipher = AES.new(key, AES.MODE_CTR, counter=counter)
    except ValueError as fault:
        raise Rejected("The keys of an encrypted file are wrong.") from fault
    seen = hashlib.sha256()
    async for piece in pieces:
        seen.update(piece)
        yield cipher.decrypt(piece)
    if seen.digest() != expected:
        raise Rejected(f"{name} was changed on its way.")
