"""What every command may read of how this machine is set up."""

from pathlib import Path

from talaria.tools.protected import HOST_KEYS, SYSTEM_SECRETS
from talaria.tools.sandbox.system import etc


def test_no_private_key_of_the_machine_is_among_it(tmp_path: Path) -> None:
    secrets = [path for path in SYSTEM_SECRETS if path.startswith("/etc/")]
    for path in (*secrets, str(HOST_KEYS[0] / "ssh_host_rsa_key")):
        (tmp_path / path.removeprefix("/etc/")).mkdir(parents=True, exist_ok=True)
    for name in ("pki/tls/certs", "ssl/certs"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    shown = [Path(path) for path in etc(tmp_path)]
    assert tmp_path / "pki/tls/certs" in shown
    assert [path for path in secrets for place in shown if Path(tmp_path, path[5:]).is_relative_to(place)] == []
