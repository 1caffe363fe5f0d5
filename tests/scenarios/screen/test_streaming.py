"""Answers, as they come in."""

import re
from pathlib import Path

import pytest
from tests.scenarios.screen.conftest import Held, OpenScreen, between, see_quiet
from tests.scenarios.screen.emulator import DETAILS, Terminal

from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Faults, Reply, ReplyUsage, call

ANSWER = """# Wings

They are **light** and `strong`, and they *bend*:

- a feather
- another one
  1. with a part
  2. and a second

  and words behind an empty line

```python
def flap(times: int) -> str:
    return "up, down " * times
```

| bird | wings |
|------|-------|
| wren | two   |
| none | 0     |

> Never too close to the sun.

The end."""
PAINTED = """Wings

They are light and strong, and they bend:

 • a feather
 • another one
    1 with a part
    2 and a second
   and words behind an empty line

  def flap(times: int) -> str:
      return "up, down " * times

 bird  wings
 ───────────
 wren  two
 none  0

▌ Never too close to the sun.

The end."""


def answered(screen: Terminal, server: ModelServer, question: str, reply: Reply) -> list[str]:
    """What has been printed between the question and the next one."""
    server.say(reply, f"Enough of {question}.")
    screen.say(question)
    screen.say(f"after {question}")
    screen.see(f"Enough of {question}.")
    return list(between(screen.scrollback, f"› {question}", f"› after {question}"))


def test_markdown_looks_the_same_however_it_was_cut(open_screen: OpenScreen, server: ModelServer) -> None:
    screen = open_screen()
    at_once = answered(screen, server, "whole", Reply(ANSWER, chunk_chars=10_000))
    assert "\n".join(line.rstrip() for line in at_once).strip("\n").split("\n") == PAINTED.split("\n")
    for chars, delay_s in ((1, 0.0), (7, 0.004), (40, 0.02)):
        reply = Reply(ANSWER, chunk_chars=chars, faults=Faults(chunk_delay_s=delay_s))
        assert answered(screen, server, f"in pieces of {chars}", reply) == at_once


def test_weight_and_colour_are_those_of_the_words(open_screen: OpenScreen, server: ModelServer) -> None:
    server.say("A **heavy** word.\n\n```python\nreturn 'x'\n```\n")
    screen = open_screen()
    screen.say("x")
    screen.see("  return 'x'")
    see_quiet(screen)
    cells = {"".join(cell.data for cell in row).rstrip(): row for row in screen.cells}
    heavy = cells["A heavy word."]
    assert [cell.bold for cell in heavy[:13]] == [False] * 2 + [True] * 5 + [False] * 6
    assert len({cell.fg for cell in cells["  return 'x'"]}) > 1


def test_code_in_a_sentence_has_no_background_of_its_own(open_screen: OpenScreen, server: ModelServer) -> None:
    server.say("Call `flap()` twice.")
    screen = open_screen()
    screen.say("x")
    screen.see("Call flap() twice.")
    see_quiet(screen)
    row = next(row for row in screen.cells if "".join(cell.data for cell in row).startswith("Call"))
    assert {cell.bg for cell in row} == {"default"}
    assert {cell.fg for cell in row[5:11]} == {"cyan"}


def test_long_answer_is_in_the_scrollback_once(open_screen: OpenScreen, server: ModelServer) -> None:
    paragraphs = [f"Paragraph {number} has some words, {'and more ' * 12}and an end." for number in range(30)]
    code = "\n".join(f"line_{number} = {number}" for number in range(50))
    listed = "\n".join(f"- item {number}" for number in range(40))
    server.say(
        Reply(
            "\n\n".join([*paragraphs, f"```python\n{code}\n```", listed, "Done."]),
            chunk_chars=60,
            faults=Faults(chunk_delay_s=0.003),
        )
    )
    screen = open_screen(rows=16)
    screen.say("tell me")
    screen.see("Done.")
    see_quiet(screen)
    lines = screen.scrollback
    assert [line.split()[1] for line in lines if line.startswith("Paragraph")] == [str(n) for n in range(30)]
    assert [line.strip() for line in lines if "line_" in line] == code.split("\n")
    assert [line.strip() for line in lines if "item" in line] == [f"• item {number}" for number in range(40)]
    told = " ".join(" ".join(lines).split())
    assert all(" ".join(paragraph.split()) in told for paragraph in paragraphs)
    assert not any("Ctrl-C" in line or line.startswith("⠋") for line in lines)
    code_lines = [place for place, line in enumerate(lines) if "line_" in line]
    assert code_lines == list(range(code_lines[0], code_lines[0] + 50)), "pieces of code follow without a gap"


def test_thoughts_are_folded_and_shown_on_demand(open_screen: OpenScreen, server: ModelServer) -> None:
    server.say(Reply("Forty-two.", thinking="First I wonder.\nThen I count."))
    screen = open_screen()
    screen.say("what is it")
    screen.see("Forty-two.")
    see_quiet(screen)
    assert "wonder" not in "\n".join(screen.scrollback)
    screen.type(DETAILS)
    screen.see("✻ Thinking:", "First I wonder.", "Then I count.")


def test_what_is_being_thought_stands_beside_the_spinner(open_screen: OpenScreen, server: ModelServer) -> None:
    server.say(Reply("Never.", thinking="hm, " * 40, faults=Faults(stall_at=2_000)))
    screen = open_screen()
    screen.say("go")
    screen.see("Thinking … ", "Ctrl-C stops · ", "hm, hm")


def test_every_tool_call_is_one_line_with_its_outcome_and_time(
    open_screen: OpenScreen, server: ModelServer, work: Path, held: Held
) -> None:
    (work / "wings.py").write_text("FEATHERS = 11\nCOLOUR = 'white'\n")
    server.say(
        Reply("Looking.", calls=(call("terminal", command="echo out of it; echo more"),)),
        Reply(calls=(call("read_file", path="nowhere.txt"),)),
        Reply(calls=(call("read_file", path="wings.py"),)),
        Reply(calls=(call("patch", path="wings.py", old="FEATHERS = 11", new="FEATHERS = 12"),)),
        held.reply,
        "All done.",
    )
    screen = open_screen(rows=40)
    screen.say("go")
    screen.see("Working … 1 s · Ctrl-C stops", " terminal  until [ -e go ]")
    held.let_go()
    screen.see("All done.")
    see_quiet(screen)
    lines = screen.lines
    (first,) = [line for line in lines if "echo out of it" in line]
    assert first.startswith("  ✓ terminal  echo out of it; echo more  ")
    assert first.endswith(" s")
    assert lines[lines.index(first) + 1 :][:2] == ["    out of it", "    more"]
    failed = next(place for place, line in enumerate(lines) if "✗ read_file  nowhere.txt" in line)
    assert re.search(r"  failed · \d\.\d s$", lines[failed])
    assert lines[failed + 1].startswith("    Cannot read")
    patched = next(place for place, line in enumerate(lines) if "✓ patch  wings.py" in line)
    changes = [line.strip() for line in lines[patched + 1 : patched + 5]]
    assert changes[0] == "wings.py  +1 \N{MINUS SIGN}1"
    assert [line.split(maxsplit=2)[-1] for line in changes[1:3]] == ["= 11", "= 12"]
    assert changes[3].split() == ["2", "2", "COLOUR", "=", "'white'"]
    painted = [(place, line) for place, line in enumerate(lines) if "FEATHERS =" in line]
    signs = {line.strip(): screen.cells[place][line.index("FEATHERS") - 1].fg for place, line in painted}
    assert (signs[changes[1]], signs[changes[2]]) == ("red", "green")
    screen.type(DETAILS)
    screen.see("● terminal", "    out of it", "    more")


PRICED = """model: {{default: test-model, base_url: '{url}', context_length: 1000}}
providers: {{custom: {{models: {{test-model: {{prices: {{input: 1000, output: 1000}}}}}}}}}}
"""


def test_status_tells_model_context_cost_title_and_sandbox(
    open_screen: OpenScreen, server: ModelServer, home: Path
) -> None:
    (home / "config.yaml").write_text(PRICED.format(url=server.base_url))
    server.say(Reply("Hello.", usage=ReplyUsage(input=240, output=10)))
    screen = open_screen(columns=100)
    screen.say("hi")
    screen.wait(lambda: "$0.25" in screen.status, "the cost")
    assert screen.status.startswith("custom:test-model · 25% context · $0.2500 · 20")
    assert " · sandbox " in screen.status
    screen.say("/title on hello")
    screen.wait(lambda: " · on hello · sandbox " in screen.status, "the title")


def test_failure_of_the_provider_is_one_sentence_and_the_talk_goes_on(
    open_screen: OpenScreen, server: ModelServer, home: Path
) -> None:
    with (home / "config.yaml").open("a") as config:
        config.write("agent: {api_max_retries: 1}\n")
    screen = open_screen()
    screen.say("hi")
    screen.see("custom:test-model is having problems (500: ")
    see_quiet(screen)
    server.say("Here I am.")
    screen.say("again")
    screen.see("Here I am.")


@pytest.mark.parametrize("is_streaming", ["true", "false"])
def test_answer_is_shown_once_whether_it_comes_in_pieces_or_whole(
    open_screen: OpenScreen, server: ModelServer, home: Path, is_streaming: str
) -> None:
    (home / "config.yaml").write_text(
        f"model: {{default: test-model, base_url: '{server.base_url}', streaming: {is_streaming}}}"
    )
    server.say(Reply("Looking.", calls=(call("terminal", command="true"),)), "All at once.")
    screen = open_screen()
    screen.say("go")
    screen.see("All at once.")
    see_quiet(screen)
    assert [line for line in screen.scrollback if line in ("Looking.", "All at once.")] == ["Looking.", "All at once."]
