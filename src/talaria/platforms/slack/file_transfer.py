"""Files, both ways. Our token goes to Slack's own hosts only."""

from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from talaria.net.proxies import proxy_for
from talaria.platforms.base import Attachment, File, NotTaken, Outbound, PlatformFailure, Rejected
from talaria.platforms.downloads import PIECE_BYTES, save
from talaria.platforms.failures import harmless
from talaria.platforms.slack import render
from talaria.platforms.slack.answers import Done, FoundFile, Ticket
from talaria.platforms.slack.config import SlackSettings
from talaria.platforms.slack.failures import FAULTS, failure
from talaria.platforms.slack.web_api import Web
from talaria.waiting import in_thread

_HOSTS = ("slack.com", "slack-gov.com")
_TIMEOUT = aiohttp.ClientTimeout(total=600, sock_connect=10, sock_read=30)


async def share(web: Web, message: Outbound, file: File) -> str:
    """The file's id. Only the last of the three steps is seen by anybody."""
    try:
        size = (await in_thread(file.path.stat)).st_size
    except OSError as fault:
        raise Rejected(f"{file.name} cannot be read: {fault.strerror}.") from fault
    ticket = await web.read("files_getUploadURLExternal", Ticket, filename=file.name, length=size)
    await _upload(web, ticket.upload_url, file)
    await web.write(
        "files_completeUploadExternal",
        Done,
        files=[{"id": ticket.file_id, "title": file.name}],
        channel_id=message.where.chat,
        thread_ts=message.where.thread or None,
        initial_comment=render.plain(message.text) or None,
    )
    return ticket.file_id


async def _upload(web: Web, url: str, file: File) -> None:
    content = await in_thread(lambda: file.path.open("rb"))
    headers = {"Content-Type": "application/octet-stream"}
    try:
        async with web.session.post(
            url, data=content, headers=headers, allow_redirects=False, proxy=proxy_for(url), timeout=_TIMEOUT
        ) as answer:
            status = answer.status
    except FAULTS as fault:
        raise harmless(failure(fault)) from fault
    if status != 200:
        raise _unfetched(status, f"Slack does not take {file.name}")


async def fetch(web: Web, settings: SlackSettings, attachment: Attachment, to: Path, max_bytes: int) -> None:
    url = (await web.read("files_info", FoundFile, file=attachment.ref)).file.url
    if not _is_slacks(url, settings.api_url):
        raise Rejected(f"{attachment.name or 'The file'} is not kept by Slack.")
    headers = {"Authorization": f"Bearer {settings.bot_token.reveal()}", "Accept-Encoding": "identity"}
    try:
        async with web.session.get(
            url, headers=headers, allow_redirects=False, proxy=proxy_for(url), timeout=_TIMEOUT
        ) as answer:
            is_login = answer.content_type == "text/html" and attachment.mime != "text/html"
            if answer.status != 200 or is_login:
                raise _unfetched(answer.status, f"Slack does not hand out {attachment.name or 'the file'}")
            await save(answer.content.iter_chunked(PIECE_BYTES), to, max_bytes)
    except FAULTS as fault:
        raise harmless(failure(fault)) from fault


def _unfetched(status: int, sentence: str) -> PlatformFailure:
    if status == 429 or status >= 500:
        return NotTaken(f"{sentence} now ({status}).")
    return Rejected(f"{sentence} ({status}).")


def _is_slacks(url: str, api_url: str) -> bool:
    there, api = urlsplit(url), urlsplit(api_url)
    if (there.scheme, there.netloc) == (api.scheme, api.netloc):
        return True
    host = there.hostname or ""
    return there.scheme == "https" and any(host == known or host.endswith(f".{known}") for known in _HOSTS)
