"""The broker of one session: what a command asks for, whether the person agrees, and what is done then. Imported when
commands first ask for a credential."""

import asyncio
import os
import re
import shlex
import shutil
import ssl
import struct
from asyncio.subprocess import DEVNULL
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from socket import socket
from threading import Lock
from typing import TYPE_CHECKING, Literal

import msgspec

from talaria.core.aio import in_thread
from talaria.core.errors import Denied
from talaria.net.egress import Dial, Serve
from talaria.net.proxy_requests import ProxyRefusal, ProxyRequest
from talaria.net.urls import WebUrl
from talaria.tools.broker.commit_signing import CannotSign, find_signing_key, is_signable, sign
from talaria.tools.broker.commits import OddPush, PushHead, describe_push, read_commits
from talaria.tools.broker.gh import GhRefused, check_gh
from talaria.tools.broker.relay import (
    CHUNK_BYTES,
    ESTABLISHED,
    RelayOutput,
    close_writer,
    copy_input,
    run_joined,
    run_program,
    write_input,
)
from talaria.tools.broker.remotes import Remote, find_remotes
from talaria.tools.git_program import find_own_certificates, list_settings, read_person_settings
from talaria.tools.git_settings import GIT_LOGIN, PROGRAM_HOST, GitSettings
from talaria.tools.sandbox.base import ToolHost
from talaria.tools.sandbox.egress_proxy import EgressProxy
from talaria.tools.sandbox.local import is_in, outside_environment
from talaria.tools.sandbox_consent import SessionConsent
from talaria.tools.sandbox_permissions import Permission

if TYPE_CHECKING:
    from talaria.tools.broker.https import GitRequest, SessionAuthority

MAX_REQUEST_BYTES = 1 << 20
REQUEST_S = 30.0
FILL_S = 20.0
GH_S = 120.0
_SSH_OPTIONS = (
    *("-T", "-oBatchMode=yes", "-oClearAllForwardings=yes", "-oForwardAgent=no", "-oForwardX11=no"),
    *("-oControlMaster=no", "-oPermitLocalCommand=no", "-oRequestTTY=no", "-oEscapeChar=none"),
    "-oSendEnv=GIT_PROTOCOL",
)
_OF_REPOSITORY = frozenset(("user.name", "user.email", "user.signingkey", "gpg.format"))
_PLAIN_SSH = re.compile(r"ssh(?: -i [^\s'\"\\$`;|&<>]+| -o ?IdentitiesOnly=yes)*")
"""What a repository may set for ssh: which key to use. Other options start programs."""
_STARTS = re.compile(r"core\.sshcommand|gpg\.(?:.+\.)?program|credential\.(?:.+\.)?helper", re.DOTALL)
"""Settings that name a program which the broker starts."""
_CONFIG_FILES = (
    *(".ssh/config", ".gnupg/gpg.conf", ".gnupg/gpg-agent.conf", ".config/gh/config.yml", ".config/gh/hosts.yml"),
)
"""Some people keep these in a repository and link to them."""


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
    def __init__(
        self,
        consent: SessionConsent,
        git: GitSettings,
        egress: EgressProxy,
        top: Callable[[], Path],
        roots: Callable[[], tuple[Path, ...]],
        open_reader: Callable[[], AbstractAsyncContextManager[ToolHost | None]],
    ) -> None:
        """`top`: the folder of the repository. `roots`: all that commands can write. `open_reader`: a tool host in
        which the repositories can be read without risk."""
        self._consent = consent
        self._git = git
        self._egress = egress
        self._top = top
        self._roots = roots
        self._open_reader = open_reader
        self._loading = Lock()
        self._authority: SessionAuthority | None = None
        self._trust: ssl.SSLContext | None = None
        self._credentials: dict[str, str | None] = {}
        """By address; None: the person has none for it."""
        self.report = egress.note
        """Notes what was refused, and why."""

    def intercept(self, request: ProxyRequest) -> Serve | None:
        if not request.is_tunnel:
            return None
        url = request.url
        if url.host == PROGRAM_HOST:
            return self._serve_program
        if request.credential != GIT_LOGIN or not self.list_remotes(url):
            return None

        async def serve(client: socket, _: bytes, dial: Dial) -> None:
            try:
                certificate, trust = await in_thread(lambda: self._load_tls(url.host))
            except Denied as refusal:
                self.report(url.host, str(refusal))
                raise ProxyRefusal(403, str(refusal)) from refusal
            from talaria.tools.broker.https import serve_git  # noqa: PLC0415  (as in `_load_tls`)

            await serve_git(client, dial, url, self, certificate, trust)

        return serve

    def _load_tls(self, host: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """What git is shown as the certificate of a host, and what is trusted towards it. Blocks. Raises `Denied`."""
        from talaria.tools.broker.https import SessionAuthority  # noqa: PLC0415  (few sessions need it)

        with self._loading:  # git fetches from several remotes at once, and trusts one authority
            if self._authority is None:
                authority = SessionAuthority()
                self._git.trust_certificate(authority.pem)
                self._authority = authority
            certificate = self._authority.context_for(host)
            if self._trust is None:
                trust = ssl.create_default_context()
                for file in find_own_certificates(self._read_settings()):
                    with suppress(OSError, ssl.SSLError):
                        trust.load_verify_locations(file)
                trust.set_alpn_protocols(["http/1.1"])
                self._trust = trust
            return certificate, self._trust

    def _read_settings(self) -> dict[str, tuple[str, ...]]:
        """The person's own settings of git; from the repository only who they are in it. Blocks. Raises `Denied`:
        commands could have changed a program that they name."""
        found = dict(read_person_settings(self._top()))
        for key, values in found.items():
            if not _STARTS.fullmatch(key):
                continue
            for word in re.split(r"[\s'\"!;=]+", " ".join(values)):
                try:
                    place = Path(word).expanduser()
                except RuntimeError:  # the home of a user who does not exist
                    continue
                if place.is_absolute() and is_in(place, self._roots()):
                    raise Denied(f"{key} in your git settings names {place}, which commands can change.")
        own = list_settings(self._git.known.get(self._top() / ".git/config", b"")) or {}
        found.update({key: value for key, value in own.items() if key in _OF_REPOSITORY})
        if _PLAIN_SSH.fullmatch((own.get("core.sshcommand") or ("",))[-1]):
            found["core.sshcommand"] = own["core.sshcommand"]
        return found

    def _make_environment(self) -> dict[str, str]:
        """For programs outside the sandbox: nothing in it can come from commands. Blocks. Raises `Denied`."""
        for file in _CONFIG_FILES:
            named = Path.home().resolve() / file
            if named.resolve() != named and is_in(named.resolve(), self._roots()):
                raise Denied(f"~/{file} leads to {named.resolve()}, which commands can change.")
        return outside_environment(self._roots(), os.environ)

    def _list_remotes(self) -> list[Remote]:
        return [*find_remotes(self._git.known)]

    def list_remotes(self, url: WebUrl) -> list[Remote]:
        """Those that git reaches over https at this host and port."""
        return [
            one for one in self._list_remotes() if (one.scheme, one.host, one.port) == ("https", url.host, url.port)
        ]

    async def judge(self, wanted: "GitRequest", url: WebUrl) -> None:
        """Before anything goes out. Raises `Denied`."""
        if wanted.remote is None:
            await self._report_denial(self._egress.admit(url.host, url.port), url.host)
        else:
            await self._judge_start(wanted.remote, wanted.service)

    async def _judge_start(self, remote: Remote, service: str) -> None:
        """Listing the refs before a push tells the server nothing and changes nothing: the person is asked once it is
        known what would be pushed."""
        if service == "git-receive-pack":
            await self._report_denial(self._consent.check_listing(remote.address), remote.address)
        else:
            await self._allow(Permission("fetch", (remote.address,)), remote.address)

    async def judge_push(self, remote: Remote, head: PushHead) -> None:
        """Raises `Denied`."""
        folders = dict.fromkeys(one.folder for one in self._list_remotes() if one.address == remote.address)
        async with self._open_reader() as host:
            commits = await read_commits(host, folders, head.updates) if host is not None else {}
        pushes = [describe_push(update, commits) for update in head.updates]
        permission = Permission("push", (remote.address, *(push.granted_ref for push in pushes)))
        content = "\n".join((f"to {remote.address}", *(push.text for push in pushes)))
        await self._allow(permission, remote.address, content, "push")

    async def _allow(
        self, permission: Permission, where: str, content: str | None = None, noun: str = "command"
    ) -> None:
        await self._report_denial(self._consent.allow(permission, content, noun), where)

    async def _report_denial(self, asking: Awaitable[None], where: str) -> None:
        try:
            await asking
        except Denied as refusal:
            self.report(where, str(refusal))
            raise

    async def authorize(self, remote: Remote) -> str | None:
        """The value of the header, from the person's credential helpers, which ask nobody; None: git has no login for
        it. Raises `Denied`."""
        address = remote.address
        if address in self._credentials:
            return self._credentials[address]
        await in_thread(self._read_settings)  # may refuse
        environment = await in_thread(self._make_environment)
        environment.update(GIT_TERMINAL_PROMPT="0", GIT_ASKPASS="/bin/false", SSH_ASKPASS="/bin/false")
        environment["GCM_INTERACTIVE"] = "never"
        port = "" if remote.port == 443 else f":{remote.port}"
        wanted = f"protocol=https\nhost={remote.host}{port}\npath={remote.path.lstrip('/')}\n\n"
        given: dict[str, str] = {}
        with suppress(OSError, TimeoutError):
            words = ("git", "credential", "fill")
            code, output, _ = await run_program(words, wanted.encode(), environment, FILL_S, DEVNULL)
            if code == 0:
                pairs = (line.partition("=") for line in output.decode("utf-8", "replace").splitlines())
                given = {name: value for name, _, value in pairs}
        login = f"{given.get('username', '')}:{given.get('password')}"
        self._credentials[address] = f"Basic {b64encode(login.encode()).decode()}" if given.get("password") else None
        return self._credentials[address]

    def forget(self, remote: Remote) -> None:
        """The server has refused the login."""
        had_one = self._credentials.pop(remote.address, None) is not None
        reason = "the server did not accept the login that git has for it" if had_one else "git has no login for it"
        self.report(remote.address, reason)

    async def _serve_program(self, client: socket, early: bytes, _: Dial) -> None:
        await asyncio.get_running_loop().sock_sendall(client, ESTABLISHED)
        if early:
            return
        reader, writer = await asyncio.open_connection(sock=client, limit=CHUNK_BYTES)
        answer = RelayOutput(writer)
        try:
            async with asyncio.timeout(REQUEST_S):
                size = struct.unpack(">I", await reader.readexactly(4))[0]
                if size > 2 * MAX_REQUEST_BYTES:
                    await answer.fail("The request is too long.")
                    return
                request = msgspec.json.decode(await reader.readexactly(size), type=ProgramRequest)
            match request.kind:
                case "ssh":
                    code = await self._ssh(request, reader, answer)
                case "sign":
                    code = await self._sign(reader, answer)
                case "gh":
                    code = await self._gh(request, reader, answer)
            await answer.end(code)
        except CannotSign as refusal:
            self.report("signing", str(refusal))  # git does not show what its signing program says
            await answer.fail(str(refusal))
        except (_Failed, Denied, OddPush, GhRefused) as refusal:
            await answer.fail(str(refusal))
        except (OSError, EOFError, msgspec.MsgspecError):
            return  # it has gone, or is not one of our programs
        finally:
            await close_writer(writer)

    async def _ssh(self, request: ProgramRequest, reader: asyncio.StreamReader, answer: RelayOutput) -> int:
        remote, service, command = _find_ssh(request.words, self._list_remotes())
        await self._judge_start(remote, service)
        settings = await in_thread(self._read_settings)
        environment = await in_thread(self._make_environment)
        if request.protocol in ("version=1", "version=2"):
            environment["GIT_PROTOCOL"] = request.protocol
        try:
            program = shlex.split((settings.get("core.sshcommand") or ("ssh",))[-1])
        except ValueError:
            program = []
        port = ("-p", str(remote.port)) if remote.port else ()
        to = f"{remote.user}@{remote.host}" if remote.user else remote.host
        words = (*(program or ["ssh"]), *_SSH_OPTIONS, *port, "--", to, command)

        async def pass_in(process: asyncio.subprocess.Process) -> None:
            if service == "git-receive-pack":
                head = PushHead()
                while not head.is_decided and (chunk := await reader.read(CHUNK_BYTES)):
                    head.feed(chunk)
                head.end()
                if head.updates:
                    await self.judge_push(remote, head)
                await write_input(process, bytes(head.received))
            await copy_input(reader, process)

        return await run_joined(words, environment, answer, pass_in)

    async def _sign(self, reader: asyncio.StreamReader, answer: RelayOutput) -> int:
        received = bytearray()
        async with asyncio.timeout(REQUEST_S):
            while chunk := await reader.read(CHUNK_BYTES):
                received += chunk
                if len(received) > MAX_REQUEST_BYTES:
                    raise _Failed("The text to sign is too long.")
        text = bytes(received)
        if not is_signable(text):
            raise CannotSign("Only commits and tags can be signed.")
        key = find_signing_key(await in_thread(self._read_settings))
        await self._allow(Permission("sign", (key.name,)), "signing", text.decode(), "object to sign")
        await answer.send(b"o", await sign(text, key, await in_thread(self._make_environment)))
        return 0

    async def _gh(self, request: ProgramRequest, reader: asyncio.StreamReader, answer: RelayOutput) -> int:
        named = [one for one in self._list_remotes() if one.name is not None]
        near = [
            one for one in named if one.folder.name == ".git" and Path(request.cwd).is_relative_to(one.folder.parent)
        ]
        chosen = max(near, key=lambda one: len(one.folder.parts), default=named[0] if named else None)
        if chosen is None:
            raise GhRefused("gh works only on the remotes of the project's repository, and it has none.")
        first = next(one for one in named if one.folder == chosen.folder)
        repository = f"{first.host}/{first.name}"
        call = check_gh(request.words, repository, request.branch, has_text=request.text is not None)
        environment = await in_thread(self._make_environment)
        program = shutil.which("gh", path=environment.get("PATH"))
        if program is None:
            raise GhRefused("gh is not installed on this machine.")
        shown = shlex.join(("gh", *call.words)) + (f"\n\n{request.text}" if request.text is not None else "")
        what = ("read",) if call.is_reading else call.command
        await self._allow(Permission("gh", (repository, *what)), repository, shown)
        logins = ["GH_TOKEN", "GITHUB_TOKEN"]
        if os.environ.get("GH_HOST", "").lower() == first.host:  # gh sends these to any host but github.com
            logins += ["GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN"]
        environment.update({name: os.environ[name] for name in logins if os.environ.get(name)})
        environment.update(GH_PROMPT_DISABLED="1", GH_PAGER="cat", NO_COLOR="1", GH_NO_UPDATE_NOTIFIER="1")

        async def pass_in(process: asyncio.subprocess.Process) -> None:
            await write_input(process, (request.text or "").encode())
            if process.stdin is not None:
                process.stdin.close()
            while await reader.read(CHUNK_BYTES):
                pass

        try:
            async with asyncio.timeout(GH_S):
                return await run_joined((program, *call.words), environment, answer, pass_in)
        except TimeoutError:
            raise GhRefused(f"gh took longer than {GH_S:.0f} seconds.") from None


def _find_ssh(words: Sequence[str], remotes: Sequence[Remote]) -> tuple[Remote, str, str]:
    """The remote and service that git starts ssh for, and the command for the other side. Raises `_Failed`."""
    port, rest = 0, [*words]
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "-p" and rest and rest[0].isdecimal():
            port = int(rest.pop(0))
        elif option == "-o" and rest[:1] == ["SendEnv=GIT_PROTOCOL"]:
            rest.pop(0)
        elif option not in ("-4", "-6"):
            raise _Failed(f"Only git may run ssh outside the sandbox, and not with {option}.")
    to, command = (*rest, "", "")[:2]
    user, _, host = to.rpartition("@")
    wanted = ("ssh", user, host.lower(), port or 22)
    for remote in remotes:
        is_wanted = (remote.scheme, remote.user, remote.host, remote.port or 22) == wanted
        path = remote.path[1:] if remote.path.startswith("/~") else remote.path  # as git passes it on
        quoted = "'" + path.replace("'", "'\\''").replace("!", "'\\!'") + "'"  # as git quotes it for a shell
        for service in ("git-upload-pack", "git-receive-pack"):
            if is_wanted and len(rest) == 2 and command == f"{service} {quoted}":
                return remote, service, command
    raise _Failed(
        f"git reaches {to or 'nothing'} over ssh only if it is a remote of this repository: one that it had when the "
        "session began, or one that the person has allowed since."
    )
