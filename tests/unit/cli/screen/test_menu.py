"""A question in place of the line."""

import pytest

from talaria.cli.screen.menu import InputMode, Menu, MenuItem

YES_OR_NO = (MenuItem("no", "No", key="n"), MenuItem("once", "Yes", key="y"), MenuItem("session", "Often", key="s"))


def shown(menu: Menu, columns: int = 40, rows: int = 20) -> str:
    return "".join(fragment[1] for fragment in menu.fragments(columns, rows))


def typed(menu: Menu, text: str) -> str | None:
    for sign in text:
        menu.type(sign)
    menu.accept()
    return menu.answer.result()


async def test_without_a_choice_the_first_is_meant() -> None:
    assert typed(Menu("May it?", YES_OR_NO), "") == "no"


@pytest.mark.parametrize(("text", "answer"), [("y", "once"), ("Y", "once"), ("s", "session"), ("yn", "no")])
async def test_a_letter_chooses(text: str, answer: str) -> None:
    assert typed(Menu("May it?", YES_OR_NO), text) == answer


@pytest.mark.parametrize("text", ["yes", "yes please", "sure, yes", "ok s", " y"])
async def test_a_sentence_is_no_answer(text: str) -> None:
    assert typed(Menu("May it?", YES_OR_NO), text) == "no"


async def test_keys_that_move_choose_also_behind_a_sentence() -> None:
    menu = Menu("May it?", YES_OR_NO)
    menu.type("x")
    menu.move(1)
    menu.accept()
    assert menu.answer.result() == "once"


async def test_who_leaves_gives_no_answer_and_who_answers_twice_gives_one() -> None:
    menu = Menu("May it?", YES_OR_NO)
    menu.cancel()
    menu.accept()
    assert menu.answer.result() is None


async def test_typing_searches_labels_and_what_stands_behind_them() -> None:
    choices = [
        MenuItem("1", "Garden", searched="roses"),
        MenuItem("2", "Kitchen", searched="soup"),
        MenuItem("3", "Soup"),
    ]
    assert typed(Menu("Which?", choices, mode="search"), "soup kit") == "2"
    menu = Menu("Which?", choices, mode="search")
    menu.type("nothing like it")
    assert "no matches" in shown(menu)
    menu.accept()
    assert not menu.answer.done()
    for _ in "nothing like it":
        menu.erase()
    menu.accept()
    assert menu.answer.result() == "1"


@pytest.mark.parametrize(
    ("mode", "text", "answer"), [("words", "my own", "my own"), ("words", "", "red"), ("words", "   ", "red")]
)
async def test_own_words_go_before_the_choices(mode: InputMode, text: str, answer: str) -> None:
    assert typed(Menu("Which?", [MenuItem("red", "Red")], mode=mode), text) == answer


async def test_all_of_a_long_text_can_be_read() -> None:
    menu = Menu("May it?", YES_OR_NO, body="\n".join(f"line {number}" for number in range(40)))
    assert "line 0" in shown(menu)
    assert "line 39" not in shown(menu)
    for _ in range(20):
        menu.scroll(5)
        shown(menu)
    assert "line 39" in shown(menu)
    assert shown(menu).count("\n") < 20


async def test_the_facts_are_on_every_page_as_long_as_the_screen_allows() -> None:
    facts = ("The command has 21,089 bytes, its digest is 0123456789abcdef", "0123456789abcdef")
    menu = Menu("May it?", YES_OR_NO, body="\n".join(map(str, range(100))), facts=facts)
    for _ in range(3):
        assert f"\n{facts[0]}\n" in shown(menu, columns=80)
        assert f"\n{facts[1]}\n" in shown(menu, columns=20, rows=9)
        menu.scroll(1)


@pytest.mark.parametrize("rows", [9, 20])
@pytest.mark.parametrize(
    "reason", ["it is outside: /" + "x" * 70 + "/end", "/".join("y" * 40 for _ in range(40)) + "/end"]
)
async def test_nothing_of_the_reason_is_cut_off(reason: str, rows: int) -> None:
    menu = Menu("May it?", YES_OR_NO, body="\n".join(map(str, range(30))), footer=reason)
    seen = ""
    for _ in range(200):
        page = shown(menu, rows=rows)
        assert "▸ No" in page
        assert page.count("\n") < rows + 1
        seen += "".join(line.strip() for line in page.split("\n"))
        menu.scroll(1)
    assert "/end" in seen


async def test_control_signs_are_shown() -> None:
    menu = Menu("May it?", [MenuItem("no", "N\x1bo\no")], body="rm\x1b[2J x", footer="why\x07")
    assert "\x1b" not in shown(menu)
    assert "rm\\x1b[2J x" in shown(menu)
    assert "N\\x1bo o" in shown(menu)


async def test_a_painted_body_is_shown_in_place_of_the_text_and_paged() -> None:
    rows = [f"\x1b[38;5;22m{number} +line\x1b[0m" for number in range(30)]
    menu = Menu("May it?", YES_OR_NO, body="the same as text", render_body=lambda _: rows)
    assert "  0 +line\n  1 +line\n" in shown(menu)
    assert "more lines: PageDown" in shown(menu)
    assert "as text" not in shown(menu)
    menu.scroll(9)
    assert "  29 +line\n" in shown(menu)
    styles = {fragment[0] for fragment in menu.fragments(40, 20) if "line" in fragment[1] or fragment[1] == "+"}
    assert any("#005f00" in style for style in styles)
