"""What is said at a start, and to whom."""

import os

import pytest

from talaria.cli import context
from talaria.tools.sandbox.bubblewrap import Bubblewrap
from talaria.tools.sandbox.landlocked import Landlocked
from talaria.tools.sandbox.local import Local
from talaria.tools.sandbox.sandbox_settings import TerminalSettings


@pytest.mark.parametrize(("user", "is_warned"), [(0, True), (1000, False)])
def test_only_root_is_warned(monkeypatch: pytest.MonkeyPatch, user: int, is_warned: bool) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert context.user_warning().startswith("Warning: Talaria is running as root.") is is_warned


def test_a_weaker_sandbox_is_told_unless_it_was_asked_for() -> None:
    weaker, none = Landlocked("because of that"), Local("no sandbox")
    told = context.sandbox_warning(TerminalSettings(), weaker)
    assert told.startswith("Warning: commands run in a weaker sandbox, level landlock (because of that).")
    assert "They have no network, cannot reach services on this machine, and cannot use multiprocessing." in told
    assert "without a sandbox (no sandbox)" in context.sandbox_warning(TerminalSettings(), none)
    assert context.sandbox_warning(TerminalSettings(backend="landlock"), weaker) == ""
    assert context.sandbox_warning(TerminalSettings(backend="local"), none) == ""
    assert context.sandbox_warning(TerminalSettings(), Bubblewrap()) == ""
