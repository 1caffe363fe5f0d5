"""What becomes of settings that commands have changed."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.tools import git_config
from talaria.tools.git_config import SettingChange, compare_settings, judge_all, judge_change

FILE = Path("/project/.git/config")
settings = st.dictionaries(st.text(min_size=1, max_size=3), st.lists(st.text(max_size=3), min_size=1).map(tuple))


@given(settings, settings)
def test_the_changes_lead_from_one_to_the_other(
    before: dict[str, tuple[str, ...]], after: dict[str, tuple[str, ...]]
) -> None:
    changes = compare_settings(before, after, FILE)
    result = before | {change.key: change.after for change in changes}
    assert {key: values for key, values in result.items() if values} == after
    assert all(change.before == before.get(change.key, ()) for change in changes)


@given(st.text(), st.text() | st.none())
def test_what_is_not_listed_is_never_saved(key: str, value: str | None) -> None:
    if git_config.judge_setting(f"core.x{key}", value) in ("save", "ask"):
        raise AssertionError(key)


@pytest.mark.parametrize(
    ("key", "value", "verdict"),
    [
        ("user.name", "Ada", "save"),
        ("branch.main.remote", "origin", "save"),
        ("branch.main.remote", "https://example.org/", "ask"),
        ("branch.main.remote", "../elsewhere", "ask"),
        ("remote.origin.url", "https://example.org/", "ask"),
        ("remote.origin.url", None, "save"),
        ("remote.origin.url", "ext::sh -c x", "it changes how git connects"),
        ("remote.origin.url", "https://a\x1b[2Jb/", "it changes how git connects"),
        ("core.hookspath", "x", "it can run a program"),
        ("core.hookspath", None, "it can run a program"),
        ("core.sshcommand", "x", "it can run a program"),
        ("alias.x", "!sh", "it can run a program"),
        ("include.path", "x", "it makes git read settings from elsewhere"),
        ("includeif.gitdir:/.path", "x", "it makes git read settings from elsewhere"),
        ("url.x.insteadof", "https://", "it changes how git connects"),
        ("extensions.worktreeconfig", "true", "it changes how the repository is stored"),
        ("what.ever", "x", "it is not known to be harmless"),
    ],
)
def test_a_setting_is_judged_by_its_name_and_value(key: str, value: str | None, verdict: str) -> None:
    assert git_config.judge_setting(key, value) == verdict


def change(key: str, before: tuple[str, ...], after: tuple[str, ...]) -> SettingChange:
    return SettingChange(FILE, key, before, after)


def test_another_order_of_addresses_is_asked_about() -> None:
    assert judge_change(change("remote.origin.url", ("a", "b"), ("b", "a"))) == "ask"


def test_a_remote_is_asked_about_as_a_whole_and_a_renamed_one_not_at_all() -> None:
    added = [change("remote.o.url", (), ("https://a/",)), change("remote.o.fetch", (), ("+x:y",))]
    assert [verdict for _, verdict in judge_all(added)] == ["ask", "ask"]
    removed = [change("remote.old.url", ("https://a/",), ()), change("remote.old.fetch", ("+x:y",), ())]
    assert {verdict for _, verdict in judge_all([*added, *removed])} == {"save"}
