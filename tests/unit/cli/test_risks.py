"""What is said at a start, and to whom."""

import os

import pytest

from talaria.cli import risks
from talaria.tools.sandbox.bubblewrap import Bubblewrap
from talaria.tools.sandbox.landlocked import Landlocked
from talaria.tools.sandbox.local import Local
from talaria.tools.sandbox.sandbox_settings import TerminalSettings


@pytest.mark.parametrize(("user", "is_warned"), [(0, True), (1000, False)])
def test_only_root_is_warned(monkeypatch: pytest.MonkeyPatch, user: int, is_warned: bool) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert risks.user_warning().startswith("Warning: Talaria is running as root.") is is_warned


def test_a_weaker_sandbox_is_told_unless_it_was_asked_for() -> None:
    weaker, none = Landlocked("because of that"), Local("no sandbox")
    told = risks.sandbox_warning(TerminalSettings(), weaker)
    assert told.startswith("Warning: commands run in a weaker sandbox, level landlock (because of that).")
    assert "They have no network, reach no service of this machine, and cannot use multiprocessing;" in told
    assert "without a sandbox (no sandbox)" in risks.sandbox_warning(TerminalSettings(), none)
    assert risks.sandbox_warning(TerminalSettings(backend="landlock"), weaker) == ""
    assert risks.sandbox_warning(TerminalSettings(backend="local"), none) == ""
    assert risks.sandbox_warning(TerminalSettings(), Bubblewrap()) == ""
