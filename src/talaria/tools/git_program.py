"""Runs git outside of any repository: to parse settings that we pass to it, and to read the person's own.

In a repository git would run what the settings there name, so it is never run in one.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from talaria.core.trees import read_file
from talaria.tools.git_config import GitConfig

GIT_S = 5.0
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/opt/homebrew/bin"
"""Where we look for programs that we run: a project may bring others of the same name."""
MAX_CERTIFICATES_BYTES = 8 << 20


def list_settings(content: bytes) -> GitConfig | None:
    """As git reads them, without included files. None: git cannot read them."""
    try:
        listed = run_git(("config", "--file", "-", "--no-includes", "--list", "-z"), content)
    except (OSError, subprocess.SubprocessError):
        return None
    return _parse_listing(listed)


def read_person_settings(repository: Path) -> GitConfig:
    """The settings of the machine and the person, with what they include for this repository. Empty: git cannot read
    them."""
    known: dict[str, tuple[str, ...]] = dict(_list_as_person(()))
    for key, paths in list(known.items()):
        section, _, rest = key.partition(".")
        condition, _, name = rest.rpartition(".")
        if section == "includeif" and name == "path" and _condition_holds(condition, repository):
            for path in paths:
                with suppress(RuntimeError):  # the home of an unknown user
                    file = Path.home() / Path(path).expanduser()  # next to ~/.gitconfig if it is relative
                    known.update(_list_as_person(("--file", str(file))))
    return known


def find_own_certificates(settings: GitConfig) -> list[Path]:
    """Certificate files that the person's git trusts and other programs may not. They need not exist."""
    named = (*settings.get("http.sslcainfo", ())[-1:], os.environ.get("GIT_SSL_CAINFO", ""))
    return [Path(name).expanduser() for name in named if name]


def find_system_certificates() -> list[Path]:
    import ssl  # noqa: PLC0415  (only needed if commands run)

    usual = ssl.get_default_verify_paths()
    named = (usual.cafile, usual.openssl_cafile, "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/cert.pem")
    return [Path(file) for file in named if file]


def read_certificates(file: Path) -> bytes:
    with suppress(OSError):
        return read_file(file, MAX_CERTIFICATES_BYTES)
    return b""


def _list_as_person(words: Sequence[str]) -> GitConfig:
    program = find_git()
    environment = {name: os.environ[name] for name in ("HOME", "XDG_CONFIG_HOME") if name in os.environ}
    try:
        listed = subprocess.run(  # noqa: S603
            (program or "git", "config", *words, "--includes", "--list", "-z"),
            cwd="/",
            env={**environment, "PATH": SYSTEM_PATH},
            capture_output=True,
            timeout=GIT_S,
            check=True,
        ).stdout
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}
    return _parse_listing(listed)


def _condition_holds(condition: str, repository: Path) -> bool:
    """Evaluates conditions about git's folder, which git itself finds false in `/`. Others count as false."""
    kind, _, pattern = condition.partition(":")
    if kind not in ("gitdir", "gitdir/i") or not pattern or pattern.startswith("./"):
        return False
    with suppress(RuntimeError):
        pattern = f"{Path(pattern).expanduser()}{'/' if pattern.endswith('/') else ''}"
    pattern = pattern if pattern.startswith("/") else f"**/{pattern}"
    pattern = f"{pattern}**" if pattern.endswith("/") else pattern
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    expression = "".join(words.get(part, re.escape(part)) for part in re.split(r"(\*\*/|\*\*|\*|\?)", pattern))
    flags = re.DOTALL | (re.IGNORECASE if kind == "gitdir/i" else re.NOFLAG)
    return re.fullmatch(expression, f"{repository}/.git", flags) is not None


def _parse_listing(listed: bytes) -> GitConfig:
    found: dict[str, tuple[str, ...]] = {}
    for entry in listed.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        key, is_set, value = entry.partition("\n")
        found[key] = (*found.get(key, ()), value if is_set else "true")
    return found


def find_git() -> str | None:
    return shutil.which("git", path=SYSTEM_PATH)


def run_git(words: Sequence[str], content: bytes = b"") -> bytes:
    """Outside of any repository and without anybody's settings. Raises `OSError`, `SubprocessError`."""
    environment = {
        "PATH": SYSTEM_PATH,
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
    }
    argv = (find_git() or "git", *words)
    return subprocess.run(  # noqa: S603
        argv, cwd="/", env=environment, input=content, capture_output=True, timeout=GIT_S, check=True
    ).stdout
