"""Section C, two processes on one home: both keep live sessions of the same conversations."""

import subprocess
import sys
from pathlib import Path

import pytest

from talaria.app.build import open_store
from talaria.core.entries import MessageAdded, TurnEnded
from talaria.core.messages import User
from talaria.testing.patience import PATIENCE_S

TALKER = Path(__file__).with_name("talker.py")


@pytest.mark.clause("C-27")
@pytest.mark.clause("C-X3")
async def test_two_processes_talk_in_the_same_conversations_and_both_settle_at_the_cap(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text("model: {default: demo}\n")
    names = ("one", "two")
    talkers = [
        subprocess.Popen(
            [sys.executable, str(TALKER), str(home), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        for name in names
    ]
    for talker in talkers:
        assert talker.stdout is not None
        assert talker.stdout.readline() == "ready\n"
    for talker in talkers:
        assert talker.stdin is not None
        talker.stdin.write("go\n")
        talker.stdin.flush()
    assert [talker.communicate(timeout=PATIENCE_S)[0] for talker in talkers] == ["16\n"] * 2
    async with open_store(home) as store:
        rows = await store.sessions.list(1000)
        assert len(rows) == 160
        for row in rows:
            entries = [one.entry for one in await store.journal.entries(row.id)]
            said = [one.message for one in entries if isinstance(one, MessageAdded)]
            asked = [message.text for message in said if isinstance(message, User)]
            assert sorted(text.splitlines()[-1] for text in asked) == ["from one", "from two"]
            assert [one.outcome for one in entries if isinstance(one, TurnEnded)] == ["completed"] * 2
