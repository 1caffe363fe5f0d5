"""Signs commits and tags with the person's key, as their own git would: with gpg, gpgsm or ssh-keygen, outside the
sandbox, where the key agent is. What is signed is exactly the text that the person was shown."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import msgspec

from talaria.core.aio import in_thread
from talaria.tools.broker.relay import run_program

MAX_SIGNED_BYTES = 256 << 10
SIGN_S = 60.0
_OBJECT = re.compile(
    rb"tree [0-9a-f]{40,64}\n(?:parent [0-9a-f]{40,64}\n)*author [^\n]+\ncommitter [^\n]+\n"
    rb"(?:(?!encoding )[a-z][a-z0-9-]* [^\n]*\n(?: [^\n]*\n)*)*\n.*|"
    rb"object [0-9a-f]{40,64}\ntype [a-z]+\ntag [^\n]+\ntagger [^\n]+\n\n.*",
    re.DOTALL,
)
_CREATED = b"[GNUPG:] SIG_CREATED "


class CannotSign(Exception):
    """`str()` of it is a sentence."""


class SigningKey(msgspec.Struct, frozen=True):
    format: Literal["openpgp", "x509", "ssh"]
    key: str
    """As git's settings name it."""
    program: str

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.key} ({'gpg' if self.format == 'openpgp' else self.format})"


def find_signing_key(settings: Mapping[str, Sequence[str]]) -> SigningKey:
    """The one that the person's git would use. Raises `CannotSign`."""

    def last(key: str, otherwise: str = "") -> str:
        return (settings.get(key) or (otherwise,))[-1]

    usual = {"openpgp": "gpg", "x509": "gpgsm", "ssh": "ssh-keygen"}
    format = last("gpg.format", "openpgp")
    if format not in usual:
        raise CannotSign(f"gpg.format {format!r} is not supported")
    program = last(f"gpg.{format}.program") or (last("gpg.program") if format == "openpgp" else "") or usual[format]
    key = last("user.signingkey")
    if not key and format == "ssh":
        raise CannotSign("no signing key is set: git config --global user.signingkey PATH")
    if not key and last("user.name") and last("user.email"):
        key = f"{last('user.name')} <{last('user.email')}>"
    if not key:
        raise CannotSign("no signing key is set: git config --global user.signingkey KEY")
    return SigningKey("ssh" if format == "ssh" else "x509" if format == "x509" else "openpgp", key, program)


def is_signable(text: bytes) -> bool:
    """A commit or an annotated tag in UTF-8; nothing else is ever signed. In another encoding others would read what
    the person did not see."""
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return len(text) <= MAX_SIGNED_BYTES and b"\0" not in text and _OBJECT.fullmatch(text) is not None


async def sign(text: bytes, key: SigningKey, environment: Mapping[str, str]) -> bytes:
    """The signature. Raises `CannotSign` with the reason that the program gave."""
    if key.format != "ssh":
        output, errors = await _run((key.program, "--status-fd=2", "-bsau", key.key), text, environment)
        if _CREATED not in errors:
            raise CannotSign(_format_failure(errors, key))
        return output
    with TemporaryDirectory(prefix="talaria-") as folder:
        named, more = key.key, tuple[str, ...]()
        literal = named.removeprefix("key::") if named.startswith(("key::", "ssh-", "ecdsa-", "sk-")) else None
        if literal is not None:
            named, more = f"{folder}/key.pub", ("-U",)
            await in_thread(lambda: Path(named).write_text(f"{literal}\n", "utf-8"))
        file = str(Path(named).expanduser())  # noqa: ASYNC240  (reads nothing but the environment)
        words = (key.program, "-Y", "sign", "-n", "git", "-f", file, *more)
        output, errors = await _run(words, text, environment)
    if not output.startswith(b"-----BEGIN SSH SIGNATURE-----"):
        raise CannotSign(_format_failure(errors, key))
    return output


async def _run(words: Sequence[str], text: bytes, environment: Mapping[str, str]) -> tuple[bytes, bytes]:
    """Without a terminal: the person's key agent asks for a passphrase, or it fails. Raises `CannotSign`."""
    try:
        _, output, errors = await run_program(words, text, {**environment, "LC_ALL": "C.UTF-8"}, SIGN_S)
    except TimeoutError:
        raise CannotSign(f"{words[0]} took longer than {SIGN_S:.0f} seconds") from None
    except OSError as fault:
        raise CannotSign(f"{words[0]} cannot be started: {fault.strerror}") from fault
    return output, errors


def _format_failure(errors: bytes, key: SigningKey) -> str:
    lines = [line for line in errors.decode("utf-8", "replace").splitlines() if not line.startswith("[GNUPG:]")]
    reason = " ".join(" ".join(lines).split())[:300]
    return f"{key.program} could not sign with {key.key}: {reason or 'it gave no reason'}"
