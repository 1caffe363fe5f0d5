"""What was allowed beforehand can be seen and taken back; and what the doctor says of the sandbox."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from talaria.app.build import open_store
from talaria.core.ids import GrantId, SessionId
from talaria.store.base import NewSession
from talaria.store.permission_ports import Grant
from talaria.tools.sandbox_permissions import SANDBOX

Talaria = Callable[..., subprocess.CompletedProcess[str]]
GONE = "/nowhere/work"
"""A project that is not there."""


@pytest.fixture
async def granted(home: Path) -> None:
    home.mkdir(mode=0o700)
    async with open_store(home) as store:
        await store.sessions.create(NewSession(SessionId("s1"), "terminal"))
        session = SessionId("s1")
        await store.grants.add(Grant(GrantId("aaaa1111"), "", "terminal", "git push", GONE, None, 1.0, 4e9))
        await store.grants.add(Grant(GrantId("aaaa2222"), "", "write_file", "/data/\x1b[2J", GONE, session, 2.0, None))
        index = "network pypi.org files.pythonhosted.org"
        await store.grants.add(Grant(GrantId("bbbb1111"), "", SANDBOX, index, GONE, None, 3.0, None))
        await store.grants.add(Grant(GrantId("bbbb2222"), "", SANDBOX, "unsandboxed git push", "", None, 4.0, None))


@pytest.mark.usefixtures("granted")
def test_grants_are_listed_and_revoked(talaria: Talaria) -> None:
    listed = talaria("approvals", "list").stdout.splitlines()
    assert listed[0].startswith(f"aaaa1111  terminal(git push)  in {GONE} until 20")
    assert listed[1] == r"aaaa2222  write_file(/data/\x1b[2J)  in session s1"
    assert (
        listed[2]
        == f"bbbb1111  sandbox: reach the Python package index (pypi.org and files.pythonhosted.org)  in {GONE}"
    )
    assert (
        listed[3] == "bbbb2222  sandbox: run commands that start with `git push` outside the sandbox  in every project"
    )
    assert talaria("approvals", "revoke", "aaaa1", "bbbb1", "bbbb2").returncode == 0
    left = json.loads(talaria("approvals", "list", "--json").stdout)
    assert [one["id"] for one in left] == ["aaaa2222"]


@pytest.mark.usefixtures("granted")
@pytest.mark.parametrize(
    ("name", "said"), [("aaaa", "Several approvals start with"), ("cccc", "No approval starts with")]
)
def test_a_name_that_is_not_clear_revokes_nothing(talaria: Talaria, name: str, said: str) -> None:
    refused = talaria("approvals", "revoke", name)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert len(talaria("approvals", "list").stdout.splitlines()) == 4


@pytest.mark.usefixtures("granted")
def test_doctor_names_what_was_allowed_in_a_project_that_has_moved(talaria: Talaria) -> None:
    told = talaria("doctor").stdout
    assert (
        f"warn  permissions: 2 standing approval(s) for {GONE}, which no longer exists; if it moved, you will" in told
    )
    assert "`talaria approvals revoke aaaa1111 bbbb1111`" in told
    talaria("approvals", "revoke", "aaaa1111", "bbbb1111")
    assert "permissions" not in talaria("doctor").stdout


def test_doctor_tries_to_break_out_and_tells_the_level(talaria: Talaria) -> None:
    told = talaria("doctor", "--security")
    lines = told.stdout.splitlines()
    assert lines[0].startswith("PASS  sandbox: level strict (bubblewrap)")
    assert "PASS  read the secret store: fails" in lines
    assert "PASS  write .git/hooks: fails" in lines
    assert "PASS  change git settings that were replaced from outside: fails" in lines
    assert "PASS  get a person to approve more than they see: fails" in lines
    assert "PASS  lose a home by two restores in one second: fails" in lines
    assert not [line for line in lines if line.startswith("FAIL")]
    assert told.returncode == 0


def test_doctor_fails_where_nothing_is_confined(talaria: Talaria, home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text("terminal: {backend: local}\n")
    told = talaria("doctor", "--security", "--json")
    findings = {one["subject"]: one for one in json.loads(told.stdout)}
    assert findings["sandbox"]["verdict"] == "fail"
    assert findings["read the secret store"]["text"].startswith("SUCCEEDS")
    assert findings["leave a file that other programs obey"]["text"].startswith("SUCCEEDS")
    assert findings["change settings of a nested submodule"]["text"].startswith("SUCCEEDS")
    assert told.returncode != 0
    assert not list(home.glob("*.env"))
