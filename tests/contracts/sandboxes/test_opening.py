"""A host that is not listed is asked about while the command waits; a yes holds as long as the person says."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.contracts.sandboxes.desktop import Ada, Desktop

from talaria.core.clock import SystemClock
from talaria.core.questions import Answer, Instead, Question
from talaria.store.base import Store
from talaria.tools.base import PRIVATE, Claim
from talaria.tools.sandbox.sandbox_settings import TerminalSettings
from talaria.tools.workspaces import Workspaces

FETCH = "curl -sS --noproxy '' --max-time 30 http://127.0.0.1:{port}/"
SCRIPT = """\
import os, urllib.request
proxy = urllib.request.ProxyHandler({{"http": os.environ["http_proxy"]}})
os.environ["no_proxy"] = ""
print(urllib.request.build_opener(proxy).open("http://127.0.0.1:{port}/").read().decode())
"""
WAITING = """\
import os, urllib.request
proxy = urllib.request.ProxyHandler({{"http": os.environ["http_proxy"]}})
try:
    urllib.request.build_opener(proxy).open("{url}", timeout=1)
except OSError as fault:
    print(fault)
"""


@pytest.mark.parametrize(("tool", "command"), [("terminal", FETCH), ("execute_code", SCRIPT)])
async def test_a_yes_lets_the_waiting_command_through(desktop: Desktop, port: int, tool: str, command: str) -> None:
    ada = Ada("once")
    result = await desktop.run(command.format(port=port), ada, tool=tool)
    assert "reached" in result.text
    (question,) = ada.asked
    assert question.headline == "Let commands reach 127.0.0.1?"
    assert question.content == command.format(port=port)
    assert question.offered == ("no", "once", "session", "project", "always")


async def test_a_no_is_not_asked_again_by_the_same_command_and_names_the_host(desktop: Desktop, port: int) -> None:
    ada = Ada("no")
    fetch = FETCH.format(port=port)
    result = await desktop.run(f"{fetch}; {fetch}", ada)
    assert "reached" not in result.text
    assert f"[sandbox: 127.0.0.1:{port} was blocked: The person does not want commands to reach" in result.text
    assert len(ada.asked) == 1


@pytest.mark.parametrize(("tool", "command"), [("terminal", "curl -sS -m 1 {url}"), ("execute_code", WAITING)])
async def test_a_command_that_does_not_wait_for_the_answer_is_told_what_was_blocked(
    desktop: Desktop, store: Store, monkeypatch: pytest.MonkeyPatch, tool: str, command: str
) -> None:
    class Slow(Ada):
        async def allow(self, question: Question) -> Answer | Instead:
            self.asked.append(question)
            return await asyncio.get_running_loop().create_future()

    decide = store.approvals.decide

    async def decide_slowly(*arguments: Any, **more: Any) -> bool:
        await asyncio.sleep(0.5)  # as on a disk that is busy
        return await decide(*arguments, **more)

    monkeypatch.setattr(store.approvals, "decide", decide_slowly)
    slow = Slow()
    result = await desktop.run(command.format(url="http://example.net/"), slow, tool=tool)
    assert "[sandbox: example.net:80 was blocked: The command ended before anybody answered" in result.text
    assert 'needs: ["network example.net"]' in result.text
    assert len(slow.asked) == 1
    assert "[sandbox" not in (await desktop.run("false", slow)).text, "it is told once, and with its own command"


async def test_once_is_for_one_command(desktop: Desktop, port: int) -> None:
    ada = Ada("once", "no")
    fetch = FETCH.format(port=port)
    assert (await desktop.run(f"{fetch}; {fetch}", ada)).text.count("reached") == 2
    assert "reached" not in (await desktop.run(fetch, ada)).text
    assert len(ada.asked) == 2


@pytest.mark.parametrize(
    ("answer", "reach"),
    [
        ("session", {("s1", "work"): True, ("s2", "work"): False, ("s2", "other"): False}),
        ("project", {("s1", "work"): True, ("s2", "work"): True, ("s2", "other"): False}),
        ("always", {("s1", "work"): True, ("s2", "work"): True, ("s2", "other"): True}),
    ],
)
async def test_a_lasting_yes_holds_where_the_person_said(
    desktop: Desktop, port: int, answer: Answer, reach: dict[tuple[str, str], bool]
) -> None:
    fetch = FETCH.format(port=port)
    await desktop.run(fetch, Ada(answer))
    for (session, project), is_reached in reach.items():
        result = await desktop.run(fetch, Ada("no"), session=session, project=project)
        assert ("reached" in result.text) == is_reached, (session, project)


async def test_what_was_revoked_is_asked_about_again(desktop: Desktop, store: Store, port: int) -> None:
    fetch = FETCH.format(port=port)
    await desktop.run(fetch, Ada("project"))
    (grant,) = await store.grants.list()
    assert await store.grants.revoke(grant.id)
    ada = Ada("no")
    assert "reached" not in (await desktop.run(fetch, ada)).text
    assert len(ada.asked) == 1


async def test_nobody_there_means_no(desktop: Desktop, port: int) -> None:
    assert "reached" not in (await desktop.run(FETCH.format(port=port), None)).text


async def test_without_asking_the_sandbox_stays_closed(desktop: Desktop, port: int) -> None:
    ada = Ada()
    assert "reached" not in (await desktop.run(FETCH.format(port=port), ada, is_asking=False)).text
    assert not ada.asked


async def test_after_strangers_had_a_word_only_once_is_offered(desktop: Desktop, port: int) -> None:
    ada = Ada("once")
    await desktop.run(FETCH.format(port=port), ada, heard=Claim(is_untrusted=True))
    assert ada.asked[0].offered == ("no", "once")


async def test_an_earlier_yes_does_not_let_private_data_out(desktop: Desktop, port: int) -> None:
    fetch = FETCH.format(port=port)
    await desktop.run(fetch, Ada("always"))
    ada = Ada("no")
    assert "reached" not in (await desktop.run(fetch, ada, heard=PRIVATE)).text
    assert ada.asked[0].offered == ("no", "once")


async def test_a_registry_is_one_question(desktop: Desktop) -> None:
    ada = Ada("no")
    await desktop.run("curl -s https://files.pythonhosted.org/; curl -s https://pypi.org/", ada)
    (question,) = ada.asked
    assert "the Python package index (pypi.org and files.pythonhosted.org)" in question.headline
    assert msgspec.structs.asdict(question)["opens_sandbox"] is True


async def test_a_host_with_a_private_address_says_why_it_is_blocked(desktop: Desktop, port: int) -> None:
    await desktop.close()
    settings = TerminalSettings(backend="bubblewrap")
    desktop.workspaces = Workspaces(settings, desktop.folder / "home", SystemClock())
    result = await desktop.run(FETCH.format(port=port), Ada("once"))
    assert "reached" not in result.text
    blocked = (
        f"127.0.0.1:{port} was blocked: its address is private. The person can list 127.0.0.1 in web.allow_private"
    )
    assert f"[sandbox: {blocked}" in result.text


async def test_a_host_that_is_allowed_and_not_there_is_told_as_such(desktop: Desktop) -> None:
    fetch = "curl -sS -m 30 --noproxy '' {0} https://127.0.0.1:9/"
    result = await desktop.run(fetch.format(""), Ada("session"))
    assert (
        "[sandbox: 127.0.0.1:9 is allowed, so the sandbox is not in the way: 127.0.0.1 cannot be reached: Conn"
        in result.text
    )
    assert "blocked" not in result.text
    assert "[sandbox" not in (await desktop.run(f"{fetch.format('')}; true", None)).text, (
        "nobody was kept from anything"
    )
    assert "[sandbox" not in (await desktop.run("false", None)).text
