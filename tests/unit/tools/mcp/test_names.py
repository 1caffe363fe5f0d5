import re

from hypothesis import given
from hypothesis import strategies as st

from talaria.tools.mcp.servers import MAX_CHARS, make_names

PAIRS = st.lists(st.tuples(st.text(max_size=70), st.text(max_size=70)), unique=True, max_size=8)


def test_plain_names_stay_as_they_are() -> None:
    assert make_names([("git", "status"), ("git", "get-sum")]) == ["mcp_git_status", "mcp_git_get-sum"]


def test_two_servers_may_run_into_the_same_name() -> None:
    first, second = make_names([("a", "b_c"), ("a_b", "c")])
    assert first == "mcp_a_b_c"
    assert re.fullmatch(r"mcp_a_b_c_[0-9a-f]{6}", second)


@given(PAIRS)
def test_names_are_distinct_and_taken_by_every_wire(pairs: list[tuple[str, str]]) -> None:
    names = make_names(pairs)
    assert len(set(names)) == len(pairs)
    assert all(re.fullmatch(rf"[A-Za-z0-9_-]{{1,{MAX_CHARS}}}", name) for name in names)


@given(st.tuples(st.text(min_size=40, max_size=70), st.text(min_size=40, max_size=70)))
def test_long_name_is_the_same_whoever_stands_beside_it(pair: tuple[str, str]) -> None:
    assert make_names([("x", "y"), pair])[1] == make_names([pair])[0]
