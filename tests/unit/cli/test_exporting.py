"""What an exported conversation looks like to whoever opens it in a terminal."""

import json

import pytest

from talaria.cli.sessions.export import ExportFormat, exported
from talaria.model.entries import MessageAdded, Recorded
from talaria.model.ids import SessionId
from talaria.model.messages import user
from talaria.store.base import Session

ACTING = "\x9b\u202e\u200b"


@pytest.mark.parametrize("format", ["lines", "markdown", "html"])
def test_nothing_in_an_export_acts_on_a_terminal(format: ExportFormat) -> None:
    said = f"a{ACTING}b"
    row = Session(SessionId("talk"), "cli", "demo:demo", "/", "", "[]", "t", None, 1.0, 1.0, None, 1)
    written = exported(row, [Recorded(1, 1.0, MessageAdded(user(said)))], format).decode()
    assert not set(ACTING) & set(written)
    assert "u202e" in written
    if format == "lines":
        assert json.loads(written.splitlines()[1])["entry"]["message"]["parts"][0]["text"] == said
