"""The broker of one session: who asks for what, whether the person agrees, and what is done then."""

import asyncio
import os
import shlex
import shutil
import ssl
import struct
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from socket import socket
from threading import Lock
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from talaria.core.aio import complete, in_thread
from talaria.core.errors import Denied
from talaria.net.egress import Dial, Serve
from talaria.net.proxy_requests import ProxyRefusal, ProxyRequest
from talaria.tools.broker.commit_signing import CannotSign, find_signing_key, is_signable, sign
from talaria.tools.broker.commits import OddPush, Push, PushHead, describe_push, read_commits
from talaria.tools.broker.gh import GhRefused, check_gh
from talaria.tools.broker.relay import (
    CHUNK_BYTES,
    RelayOutput,
    close_writer,
    copy_input,
    end_program,
    run_joined,
    write_input,
)
from talaria.tools.broker.remotes import Remote, find_remotes
from talaria.tools.git_program import find_own_certificates
from talaria.tools.git_settings import GIT_LOGIN, PROGRAM_HOST
from talaria.tools.sandbox.base import ToolHost
from talaria.tools.sandbox_permissions import Permission

if TYPE_CHECKING:
    from talaria.tools.broker.certificates import SessionAuthority
    from talaria.tools.broker.https import GitRequest

MAX_REQUEST_BYTES = 1 << 20
REQUEST_S = 30.0
FILL_S = 20.0
GH_S = 120.0
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_SSH_OPTIONS = (
    *("-T", "-oBatchMode=yes", "-oClearAllForwardings=yes", "-oForwardAgent=no", "-oForwardX11=no"),
    *(
        "-oControlMaster=no",
        "-oPermitLocalCommand=no",
        "-oRequestTTY=no",
        "-oEscapeChar=none",
        "-oSendEnv=GIT_PROTOCOL",
    ),
)

Settings = Mapping[str, tuple[str, ...]]


class PermissionAsker(Protocol):
    async def check_listing(self, address: str) -> None:
        """Whether the refs of a remote may be listed before a push. Raises `Denied`."""
        ...

    async def allow(self, permission: Permission, content: str | None = None, noun: str = "command") -> None:
        """Raises `Denied`."""
        ...


class BrokerContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the broker needs of the machine and the session."""

    repositories: Callable[[], Mapping[Path, bytes]]
    """The settings of the project's repositories, as the person has them: by their files."""
    settings: Callable[[], Settings]
    """The person's own settings of git. Blocks; raises `Denied`: commands could have changed what they start."""
    environment: Callable[[], Mapping[str, str]]
    """Of programs that run out here: with nothing in it that commands could have made. Blocks; raises `Denied`."""
    reading: Callable[[], AbstractAsyncContextManager[ToolHost | None]]
    """Where the repositories can be read without risk."""
    admit: Callable[[str, int], Awaitable[None]]
    """Whether a host may be reached without a login. Raises `Denied`."""
    trust: Callable[[bytes], None]
    """Makes git in the sandbox trust this certificate, too. Blocks."""
    refused: Callable[[str, str], None]
    """Hears what was not done, and why."""


class ProgramRequest(msgspec.Struct, frozen=True):
    """What a program in the sandbox asks for."""

    kind: Literal["ssh", "sign", "gh"]
    words: tuple[str, ...] = ()
    text: str | None = None
    branch: str = ""
    protocol: str = ""
    cwd: str = ""


class _Failed(Exception):
    """`str()` of it is a sentence for the command."""


class CredentialBroker:
    def __init__(self, consent: PermissionAsker, surroundings: BrokerContext) -> None:
        self._consent = consent
        self._around = surroundings
        self._making = Lock()
        self._credentials: dict[str, str | None] = {}
        """By address; None: the person has none there."""

    @cached_property
    def _authority(self) -> "SessionAuthority":
        """Made when git first reaches a remote by https, and trusted by git in the sandbox from then on. Blocks."""
        from talaria.tools.broker.certificates import SessionAuthority  # noqa: PLC0415  (few sessions need one)

        authority = SessionAuthority()
        self._around.trust(authority.pem)
        return authority

    def _certificate(self, host: str) -> ssl.SSLContext:
        import_module("talaria.tools.broker.https")  # loaded here, it holds up nobody
        with self._making:  # git fetches from several remotes at once, and trusts one authority
            return self._authority.context_for(host)

    def intercept(self, request: ProxyRequest) -> Serve | None:
        if not request.is_tunnel:
            return None
        url = request.url
        if url.host == PROGRAM_HOST:
            return self._serve_program
        if request.credential != GIT_LOGIN or not self._at(url.host, url.port):
            return None

        async def serve(client: socket, _: bytes, dial: Dial) -> None:
            certificate = await in_thread(lambda: self._certificate(url.host))
            from talaria.tools.broker.https import Handling, serve_git  # noqa: PLC0415  (as above)

            try:
                context = await in_thread(lambda: self._trust)
            except Denied as refusal:
                self._around.refused(url.host, str(refusal))
                raise ProxyRefusal(403, str(refusal)) from refusal

            handling = Handling(
                url=url,
                judge=lambda wanted: self._judge(wanted, url.host, url.port),
                judge_push=self._judge_push,
                authorize=self._authorization,
                forget=self._forget,
                remotes=lambda: self._at(url.host, url.port),
                refused=lambda reason: self._around.refused(url.host, reason),
                context=context,
            )
            await serve_git(client, certificate, dial, handling)

        return serve

    def _remotes(self) -> list[Remote]:
        return [*find_remotes(self._around.repositories())]

    def _at(self, host: str, port: int) -> list[Remote]:
        return [one for one in self._remotes() if (one.scheme, one.host, one.port) == ("https", host, port)]

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        for file in find_own_certificates(self._around.settings()):
            with suppress(OSError, ssl.SSLError):
                context.load_verify_locations(file)
        context.set_alpn_protocols(["http/1.1"])
        return context

    async def _judge(self, wanted: "GitRequest", host: str, port: int) -> None:
        if wanted.remote is None:
            await self._report_refusal(self._around.admit(host, port), host)
        else:
            await self._judge_beginning(wanted.remote, wanted.service)

    async def _judge_beginning(self, remote: Remote, service: str) -> None:
        """To list the refs before a push tells the server nothing and changes nothing: the question comes when it is
        known what would be pushed."""
        if service == "git-receive-pack":
            await self._report_refusal(self._consent.check_listing(remote.address), remote.address)
        else:
            await self._allow(Permission("fetch", (remote.address,)), remote.address)

    async def _judge_push(self, remote: Remote, head: PushHead) -> None:
        folders = dict.fromkeys(one.folder for one in self._remotes() if one.address == remote.address)
        async with self._around.reading() as host:
            commits = await read_commits(host, folders, head.updates) if host is not None else {}
        pushes = [describe_push(update, commits) for update in head.updates]
        permission = Permission("push", (remote.address, *map(_ref, pushes)))
        content = "\n".join((f"to {remote.address}", *(push.text for push in pushes)))
        await self._allow(permission, remote.address, content, "push")

    async def _allow(
        self, permission: Permission, where: str, content: str | None = None, noun: str = "command"
    ) -> None:
        await self._report_refusal(self._consent.allow(permission, content, noun), where)

    async def _report_refusal(self, asking: Awaitable[None], where: str) -> None:
        try:
            await asking
        except Denied as refusal:
            self._around.refused(where, str(refusal))
            raise

    async def _authorization(self, remote: Remote) -> str | None:
        address = remote.address
        if address not in self._credentials:
            await in_thread(self._around.settings)  # may refuse
            self._credentials[address] = await _fill_credential(remote, await in_thread(self._around.environment))
        return self._credentials[address]

    def _forget(self, remote: Remote) -> None:
        had_one = self._credentials.pop(remote.address, None) is not None
        reason = "the server did not take the login that git has for it" if had_one else "git has no login for it"
        self._around.refused(remote.address, reason)

    async def _serve_program(self, client: socket, early: bytes, _: Dial) -> None:
        await asyncio.get_running_loop().sock_sendall(client, _ESTABLISHED)
        if early:
            return
        reader, writer = await asyncio.open_connection(sock=client, limit=CHUNK_BYTES)
        answer = RelayOutput(writer)
        try:
            request = await _read_request(reader)
            match request.kind:
                case "ssh":
                    code = await self._ssh(request, reader, answer)
                case "sign":
                    code = await self._sign(reader, answer)
                case "gh":
                    code = await self._gh(request, reader, answer)
            await answer.end(code)
        except CannotSign as refusal:
            self._around.refused("signing", str(refusal))  # git keeps what its signing program says to itself
            await answer.fail(str(refusal))
        except (_Failed, Denied, OddPush, GhRefused) as refusal:
            await answer.fail(str(refusal))
        except (OSError, EOFError, msgspec.MsgspecError):
            return  # it has gone, or is not one of ours
        finally:
            await close_writer(writer)

    async def _ssh(self, request: ProgramRequest, reader: asyncio.StreamReader, answer: "RelayOutput") -> int:
        remote, service = self._find_ssh(request.words)
        await self._judge_beginning(remote, service)
        settings = await in_thread(self._around.settings)
        environment = dict(await in_thread(self._around.environment))
        if request.protocol in ("version=1", "version=2"):
            environment["GIT_PROTOCOL"] = request.protocol
        port = ("-p", str(remote.port)) if remote.port else ()
        to = f"{remote.user}@{remote.host}" if remote.user else remote.host
        command = f"{service} {_quote(_ssh_path(remote))}"
        words = (*_ssh_program(settings), *_SSH_OPTIONS, *port, "--", to, command)

        async def pass_in(process: asyncio.subprocess.Process) -> None:
            if service == "git-receive-pack":
                head = PushHead()
                while not head.is_decided and (chunk := await reader.read(CHUNK_BYTES)):
                    head.feed(chunk)
                head.end()
                if head.updates:
                    await self._judge_push(remote, head)
                await write_input(process, bytes(head.received))
            await copy_input(reader, process)

        return await run_joined(words, environment, answer, pass_in)

    def _find_ssh(self, words: Sequence[str]) -> tuple[Remote, str]:
        """As git starts ssh. Raises `_Failed`."""
        port, rest = 0, [*words]
        while rest and rest[0].startswith("-"):
            option = rest.pop(0)
            if option == "-p" and rest and rest[0].isdecimal():
                port = int(rest.pop(0))
            elif option == "-o" and rest[:1] == ["SendEnv=GIT_PROTOCOL"]:
                rest.pop(0)
            elif option not in ("-4", "-6"):
                raise _Failed(f"ssh runs outside the sandbox for git alone, and not with {option}.")
        to, command = (*rest, "", "")[:2]
        user, _, host = to.rpartition("@")
        for remote in self._remotes():
            is_there = (remote.scheme, remote.user, remote.host, remote.port or 22) == (
                "ssh",
                user,
                host.lower(),
                port or 22,
            )
            for service in ("git-upload-pack", "git-receive-pack"):
                if is_there and len(rest) == 2 and command == f"{service} {_quote(_ssh_path(remote))}":
                    return remote, service
        raise _Failed(
            f"git reaches {to or 'nothing'} by ssh only if that is a remote of this repository: one that it had when "
            "the session began, or that the person has allowed since."
        )

    async def _sign(self, reader: asyncio.StreamReader, answer: "RelayOutput") -> int:
        text = await _read_all(reader)
        if not is_signable(text):
            raise CannotSign("Only commits and tags are signed.")
        key = find_signing_key(await in_thread(self._around.settings))
        await self._allow(Permission("sign", (key.name,)), "signing", text.decode(), "object to sign")
        await answer.send(b"o", await sign(text, key, await in_thread(self._around.environment)))
        return 0

    async def _gh(self, request: ProgramRequest, reader: asyncio.StreamReader, answer: "RelayOutput") -> int:
        repository = self._forge(request.cwd)
        call = check_gh(request.words, repository, request.branch, has_text=request.text is not None)
        environment = dict(await in_thread(self._around.environment))
        program = shutil.which("gh", path=environment.get("PATH"))
        if program is None:
            raise GhRefused("gh is not installed on this machine.")
        shown = shlex.join(("gh", *call.words)) + (f"\n\n{request.text}" if request.text is not None else "")
        what = ("read",) if call.is_reading else call.command
        await self._allow(Permission("gh", (repository, *what)), repository, shown)
        quiet = {"GH_PROMPT_DISABLED": "1", "GH_PAGER": "cat", "NO_COLOR": "1", "GH_NO_UPDATE_NOTIFIER": "1"}
        logins = _gh_logins(os.environ, repository.partition("/")[0])

        async def pass_in(process: asyncio.subprocess.Process) -> None:
            await write_input(process, (request.text or "").encode())
            if process.stdin is not None:
                process.stdin.close()
            while await reader.read(CHUNK_BYTES):
                pass

        try:
            async with asyncio.timeout(GH_S):
                return await run_joined((program, *call.words), {**environment, **logins, **quiet}, answer, pass_in)
        except TimeoutError:
            raise GhRefused(f"gh took longer than {GH_S:.0f} seconds.") from None

    def _forge(self, cwd: str) -> str:
        """The repository that `gh` would take. Raises `GhRefused`."""
        around = [one for one in self._remotes() if one.name is not None]
        inner = [one for one in around if one.folder.name == ".git" and Path(cwd).is_relative_to(one.folder.parent)]
        chosen = max(inner, key=lambda one: len(one.folder.parts), default=around[0] if around else None)
        if chosen is None or chosen.name is None:
            raise GhRefused("gh works here for the remotes of the project's repository, and it has none.")
        same = [one for one in around if one.folder == chosen.folder]
        return f"{same[0].host}/{same[0].name}"


async def _read_request(reader: asyncio.StreamReader) -> ProgramRequest:
    async with asyncio.timeout(REQUEST_S):
        size = struct.unpack(">I", await reader.readexactly(4))[0]
        if size > 2 * MAX_REQUEST_BYTES:
            raise _Failed("That is too long.")
        return msgspec.json.decode(await reader.readexactly(size), type=ProgramRequest)


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    received = bytearray()
    async with asyncio.timeout(REQUEST_S):
        while chunk := await reader.read(CHUNK_BYTES):
            received += chunk
            if len(received) > MAX_REQUEST_BYTES:
                raise _Failed("That is too long.")
    return bytes(received)


async def _fill_credential(remote: Remote, environment: Mapping[str, str]) -> str | None:
    """From the person's credential helpers; nobody is asked anything."""
    port = "" if remote.port == 443 else f":{remote.port}"
    wanted = f"protocol=https\nhost={remote.host}{port}\npath={remote.path.lstrip('/')}\n\n"
    quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "/bin/false", "SSH_ASKPASS": "/bin/false"}
    quiet["GCM_INTERACTIVE"] = "never"
    try:
        process = await asyncio.create_subprocess_exec(
            *("git", "credential", "fill"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd="/",
            env={**environment, **quiet},
            start_new_session=True,
        )
    except OSError:
        return None
    try:
        async with asyncio.timeout(FILL_S):
            told, _ = await process.communicate(wanted.encode())
    except TimeoutError:
        return None
    finally:
        await complete(end_program(process))
    pairs = (line.partition("=") for line in told.decode("utf-8", "replace").splitlines())
    given = {name: value for name, _, value in pairs}
    if process.returncode != 0 or not given.get("password"):
        return None
    login = f"{given.get('username', '')}:{given['password']}"
    return f"Basic {b64encode(login.encode()).decode()}"


def _gh_logins(environment: Mapping[str, str], host: str) -> dict[str, str]:
    """What `gh` would send to this host. It sends those of an enterprise to whatever host is not github.com."""
    is_enterprise = environment.get("GH_HOST", "").lower() == host
    names = ("GH_TOKEN", "GITHUB_TOKEN", *(("GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN") if is_enterprise else ()))
    return {name: environment[name] for name in names if environment.get(name)}


def _ref(push: Push) -> str:
    """As a permission names it; what the server would lose has a name of its own, so that no other yes covers it."""
    sign = ":" if push.update.is_deletion else "+" if push.is_forced else ""
    return f"{sign}{push.update.ref}"


def _ssh_path(remote: Remote) -> str:
    """As git hands it over."""
    return remote.path[1:] if remote.path.startswith("/~") else remote.path


def _quote(path: str) -> str:
    """As git quotes it for a shell."""
    return "'" + path.replace("'", "'\\''").replace("!", "'\\!'") + "'"


def _ssh_program(settings: Settings) -> tuple[str, ...]:
    try:
        words = shlex.split((settings.get("core.sshcommand") or ("ssh",))[-1])
    except ValueError:
        words = []
    return tuple(words) or ("ssh",)
