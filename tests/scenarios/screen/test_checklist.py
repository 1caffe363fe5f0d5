"""The model's list of steps, as a person sees it."""

from tests.scenarios.screen.conftest import OpenScreen, Run

from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply, call

STEPS = [
    {"id": "a", "content": "Read the code", "status": "completed"},
    {"id": "b", "content": "Write a \x1b[31mtest", "status": "in_progress"},
    {"id": "c", "content": "Run it"},
    {"id": "d", "content": "Dance", "status": "cancelled"},
]


def test_steps_are_a_checklist_on_the_screen(open_screen: OpenScreen, server: ModelServer) -> None:
    server.say(Reply(calls=(call("todo", todos=STEPS),)), "Planned.")
    screen = open_screen()
    screen.say("plan it")
    shown = screen.see("Planned.")
    assert "  ✓ todo  1 of 3 steps done  " in shown
    assert "    ☑ Read the code\n    ▸ Write a \\x1b[31mtest\n    ☐ Run it\n    ☒ Dance\n" in shown
    assert "{'" not in shown


def test_steps_are_a_checklist_without_a_screen(talaria: Run, server: ModelServer) -> None:
    server.say(Reply(calls=(call("todo", todos=STEPS),)), "Planned.")
    told = talaria("-q", "plan it").stderr
    assert "● todo\n  ☑ Read the code\n  ▸ Write a [31mtest\n  ☐ Run it\n  ☒ Dance (cancelled)\n  done in " in told
