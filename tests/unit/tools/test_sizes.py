"""Sizes as people write and read them."""

import msgspec
import pytest

from talaria.core.text import parse_size, show_size
from talaria.tools.sandbox.sandbox_settings import LimitSettings, TerminalSettings


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("4G", 4 << 30), ("1.5g", 3 << 29), ("512 MiB", 512 << 20), ("100kb", 100 << 10), (4096, 4096), ("75%", 750)],
)
def test_a_size_is_read_as_people_write_it(text: str | int, size_bytes: int) -> None:
    assert parse_size(text, 1000) == size_bytes


@pytest.mark.parametrize("text", ["", "much", "-1G", "0", "0%", "101%", "4 Q"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size; write it like 512M, 4G or 75%"):
        parse_size(text, 1000)


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [(4 << 30, "4 GiB"), (3 << 29, "1.5 GiB"), (96 << 20, "96 MiB"), (2048, "2 KiB"), (12, "12 bytes")],
)
def test_a_size_is_shown_in_the_largest_unit_that_fits(size_bytes: int, shown: str) -> None:
    assert show_size(size_bytes) == shown


def test_a_wrong_limit_in_the_settings_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="'lots' is not a size"):
        msgspec.convert({"limits": {"memory": "lots"}}, TerminalSettings)


def test_the_share_of_a_small_machine_is_at_least_one_gibibyte() -> None:
    assert LimitSettings(memory="1%").memory_bytes >= 1 << 30
    assert TerminalSettings().sandbox_limits.memory_bytes >= 1 << 30
    assert LimitSettings(memory="64M").memory_bytes == 64 << 20
