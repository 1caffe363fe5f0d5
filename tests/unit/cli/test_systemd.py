"""The unit under which systemd keeps the gateway running."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from talaria.cli.gateway.daemon import unit, unit_file, unit_name
from talaria.core.errors import BadInput

COMMAND = ("/opt/my python/bin/python", "-m", "talaria", "gateway", "run")


def test_it_is_started_again_and_has_time_for_its_end() -> None:
    lines = unit(Path("/home/ann/.talaria"), COMMAND, {"TALARIA_HOME": "/home/ann/.talaria"}, 20.0).splitlines()
    assert {"Restart=always", "RestartSec=2", "TimeoutStopSec=35", "KillMode=mixed"} <= {*lines}
    assert 'ExecStart="/opt/my python/bin/python" "-m" "talaria" "gateway" "run"' in lines
    assert 'Environment="TALARIA_HOME=/home/ann/.talaria"' in lines
    assert "WantedBy=default.target" in lines


def test_signs_that_mean_something_to_systemd_are_escaped() -> None:
    lines = unit(Path("/100%"), ('/a "b"', "c\\d", "$HOME"), {"PATH": "/50%:$x"}, 20.0).splitlines()
    assert r'ExecStart="/a \"b\"" "c\\d" "$$HOME"' in lines
    assert "WorkingDirectory=/100%%" in lines
    assert 'Environment="PATH=/50%%:$x"' in lines


def test_line_breaks_are_refused() -> None:
    with pytest.raises(BadInput, match="cannot be written to a systemd unit"):
        unit(Path("/a\nExecStartPre=/bin/evil"), COMMAND, {}, 20.0)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_understands_it(tmp_path: Path) -> None:
    home = tmp_path / 'odd "home" 100% $x \\'
    home.mkdir()
    file = tmp_path / "talaria-gateway.service"
    file.write_text(unit(home, (sys.executable, "-m", "talaria"), {"TALARIA_HOME": str(home)}, 20.0))
    verified = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(file)],
        env={"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (verified.returncode, [line for line in verified.stderr.splitlines() if file.name in line]) == (0, [])


def test_every_home_has_a_name_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    homes = [Path("/home/ann/.talaria"), Path("/home/ann/.talaria/profiles/work"), Path("/srv/a"), Path("/srv/b")]
    names = [unit_name(home) for home in homes]
    assert names[:2] == ["talaria-gateway.service", "talaria-gateway-work.service"]
    assert len({*names}) == 4
    assert unit_file(homes[0]) == tmp_path / "systemd" / "user" / "talaria-gateway.service"
