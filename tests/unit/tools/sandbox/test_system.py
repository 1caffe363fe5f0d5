"""What every command may read of this machine."""

from pathlib import Path

import pytest

from talaria.tools.protected import HOST_KEYS, SYSTEM_SECRETS, TOOLCHAINS, Protected
from talaria.tools.sandbox.sandbox_policy import view_of
from talaria.tools.sandbox.sandbox_settings import TerminalSettings
from talaria.tools.sandbox.system import etc, interpreter, system


def test_no_private_key_of_the_machine_is_among_it(tmp_path: Path) -> None:
    secrets = [path for path in SYSTEM_SECRETS if path.startswith("/etc/")]
    for path in (*secrets, str(HOST_KEYS[0] / "ssh_host_rsa_key")):
        (tmp_path / path.removeprefix("/etc/")).mkdir(parents=True, exist_ok=True)
    for name in ("pki/tls/certs", "ssl/certs"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    shown = [Path(path) for path in etc(tmp_path)]
    assert tmp_path / "pki/tls/certs" in shown
    assert [path for path in secrets for place in shown if Path(tmp_path, path[5:]).is_relative_to(place)] == []


def test_commands_read_nothing_that_a_tool_would_ask_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    person, project, shared = tmp_path / "person", tmp_path / "person/project", tmp_path / "shared"
    for place in (project, shared, person / "letters", *(person / name for name in TOOLCHAINS)):
        place.mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("HOME", str(person))
    view = view_of(project, person / ".talaria", TerminalSettings(read=(str(shared),)), {})
    protected = Protected(person, person / ".talaria", shared=(shared,))
    seen = (project, *view.reads, *view.writes, *map(Path, (*system(), *etc())), *interpreter())
    assert len(seen) > len(TOOLCHAINS)
    assert [place for place in seen if protected.is_private(place.resolve(), project)] == []
    assert protected.is_private(person / "letters", project)
