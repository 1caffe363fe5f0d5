"""What runs in the sandbox in place of ssh, of a program that signs, and of `gh`: it asks the credential broker through
the sandbox's proxy, and passes on what comes back. Imports nothing of ours.

    inside_program.py ssh|sign|gh WORDS...
"""

import contextlib
import json
import os
import select
import socket
import struct
import subprocess
import sys
from urllib.parse import urlsplit

CHUNK_BYTES = 64 << 10
MAX_INPUT_BYTES = 1 << 20
HOST = "broker.talaria.internal:1"
_FILE_OPTIONS = ("-F", "--body-file", "--notes-file")


def fail(sentence: str) -> None:
    sys.stderr.write(f"talaria: {sentence}\n")
    sys.exit(1)


def ask(request: dict[str, object]) -> socket.socket:
    proxy = urlsplit(os.environ.get("TALARIA_PROXY", ""))
    if proxy.hostname is None:
        fail("the person's credentials cannot be reached from here.")
    connection = socket.create_connection((proxy.hostname or "", proxy.port or 0))
    connection.sendall(f"CONNECT {HOST} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            fail("the connection to the person's credentials was closed.")
        answer += byte
    if b" 200 " not in answer.partition(b"\r\n")[0]:
        fail(answer.decode("latin-1").strip())
    body = json.dumps(request).encode()
    connection.sendall(struct.pack(">I", len(body)) + body)
    return connection


def pass_on(connection: socket.socket, output: int, errors: int) -> int:
    """Standard input goes out and frames come in, until one brings the exit status, which is returned."""
    received = b""
    source = connection.fileno()
    watched = [0, source]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if 0 in ready:
            chunk = os.read(0, CHUNK_BYTES)
            with contextlib.suppress(OSError):
                if chunk:
                    connection.sendall(chunk)
                else:
                    connection.shutdown(socket.SHUT_WR)
            if not chunk:
                watched.remove(0)
        if source in ready:
            chunk = connection.recv(CHUNK_BYTES)
            if not chunk:
                return 1
            received += chunk
            while len(received) >= 5:
                kind, size = received[:1], struct.unpack(">I", received[1:5])[0]
                if len(received) < 5 + size:
                    break
                content, received = received[5 : 5 + size], received[5 + size :]
                if kind == b"x":
                    return int(content)
                write(output if kind == b"o" else errors, content)


def write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def sign(words: list[str]) -> int:
    """Git calls it like gpg: `--status-fd=2 -bsau KEY`, with a commit on standard input."""
    if "--verify" in words:
        fail("signatures cannot be verified in the sandbox.")
    code = pass_on(ask({"kind": "sign"}), 1, 2)
    if code == 0:
        write(2, b"\n[GNUPG:] SIG_CREATED \n")
    return code


def gh(words: list[str]) -> int:
    """Reads a text that is in a file: the real `gh` sees nothing of the sandbox."""
    given: list[str] = []
    text = None
    rest = iter(words)
    for word in rest:
        name, is_joined, value = word.partition("=")
        if name in _FILE_OPTIONS and (is_joined or not word.startswith("--") or word == name):
            file = value if is_joined else next(rest, "-")
            with open(0 if file == "-" else file, "rb") as opened:  # noqa: PTH123
                text = opened.read(MAX_INPUT_BYTES + 1).decode("utf-8", "replace")
        else:
            given.append(word)
    command = ("git", "branch", "--show-current")
    branch = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
    connection = ask({"kind": "gh", "words": given, "text": text, "branch": branch, "cwd": os.getcwd()})  # noqa: PTH109
    connection.shutdown(socket.SHUT_WR)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return pass_on(connection, 1, 2)


def main() -> int:
    kind, *words = sys.argv[1:]
    if kind == "ssh":
        return pass_on(ask({"kind": "ssh", "words": words}), 1, 2)
    return sign(words) if kind == "sign" else gh(words)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, ValueError) as fault:
        fail(f"the person's credentials cannot be used: {fault}.")
