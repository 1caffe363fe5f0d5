"""A turn that is printed into a pipe, by its end."""

from pathlib import Path

import pytest

from talaria.cli import exits
from talaria.cli.attach import print_turn
from talaria.testing import Failure, Harness


@pytest.mark.parametrize(
    ("reply", "code", "printed"), [("All told.", exits.DONE, "All told."), (Failure(400), exits.PROVIDER_FAILED, "")]
)
async def test_its_end_is_in_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reply: str | Failure, code: int, printed: str
) -> None:
    async with Harness(tmp_path) as talaria:
        talaria.model.say(reply)
        report = await talaria.ask()
        assert await print_turn(talaria.store, tmp_path, report.session, report.turn, "text") == code
    shown = capsys.readouterr()
    assert shown.out.strip() == printed
    assert str(report.error or "") in shown.err
