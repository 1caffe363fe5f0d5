"""A model that asks to open the sandbox in misleading words gets what was shown in plain words, and no more."""

import asyncio
import os
import pty
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from tests.contracts.sandboxes.conftest import desktop, store
from tests.contracts.sandboxes.desktop import Ada, Desktop

from talaria.cli.plain import TerminalPerson
from talaria.cli.screen.menu import Menu
from talaria.cli.screen.screen import Screen
from talaria.cli.screen.screen_interface import ScreenPerson
from talaria.core.clock import SystemClock
from talaria.core.ids import SessionId
from talaria.core.questions import Answer, Instead, Question
from talaria.gateway.chat_person import ChatPerson, Questions
from talaria.gateway.envelope import Principal, read_body
from talaria.gateway.replies import Replies
from talaria.platforms.base import Address, Capabilities
from talaria.store.base import Store
from talaria.testing.patience import PATIENCE_S
from talaria.tools.gate import MAX_REFUSALS

__all__ = ["desktop", "store"]

CHAT = Address("telegram", "1")
ADMIN = Principal("telegram", "1", "Ada", is_admin=True)
OURS = "Let commands read one file?"
REASONS = {
    "line breaks": f"fine\n\n{OURS}\n  ls\n",
    "other line breaks": f"fine\r\n{OURS}\x0b{OURS}\x0c{OURS}\x85{OURS}\u2028{OURS}\u2029{OURS}",
    "an end of ours": f'fine")\n{OURS} (y)',
    "escape sequences": f"\x1b[2J\x1b[H{OURS}\x9b1A",
    "backspaces": "\x08" * 200 + OURS,
    "text from right to left": f"\u202e{OURS}\u2066{OURS}\u200f",
    "what nobody sees": "\u2800\u3164\u200b\ufe0f\U000e0041" * 50 + OURS,
    "very long": "because " * 5_000 + OURS,
    "blank lines": "\n" * 500 + OURS,
    "a code block": f"```\n{OURS}\n```",
    "markup": f"**{OURS}** [x](https://evil.example) @everyone",
}
_STEERING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_UNSEEN = re.compile("[\u2800\u3164\ufe00-\ufe0f\U000e0000-\U000e01ef]")


def squeezed(text: str) -> str:
    """Wherever its rows end, and without the signs that keep a chat from taking it for markup."""
    return "".join(text.replace("\\", "").split())


@pytest.fixture
def beside(desktop: Desktop) -> Path:
    folder = desktop.folder / "person/beside"
    folder.mkdir()
    return folder


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    master, slave = pty.openpty()
    with os.fdopen(slave) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield master
    os.close(master)


class Surfaces:
    """Where a person may be asked, and what they see there."""

    def __init__(self, store: Store, keyboard: int, capsys: pytest.CaptureFixture[str]) -> None:
        self._store = store
        self._keyboard = keyboard
        self._capsys = capsys

    async def show(self, question: Question) -> dict[str, str]:
        return {
            "screen": await self._on_the_screen(question),
            "lines": await self._in_lines(question),
            "chat": await self._in_a_chat(question),
        }

    async def _on_the_screen(self, question: Question) -> str:
        drawn: list[str] = []

        class Tall:
            columns = 100

            async def ask(self, menu: Menu) -> str:
                drawn.append("".join(fragment[1] for fragment in menu.fragments(100, 2_000)))
                return "no"

        assert await ScreenPerson(cast("Screen", Tall())).allow(question) == "no"
        return drawn[0]

    async def _in_lines(self, question: Question) -> str:
        asking = asyncio.create_task(TerminalPerson().allow(question))
        await asyncio.sleep(0)  # now it has asked
        os.write(self._keyboard, b"n\n")
        async with asyncio.timeout(PATIENCE_S):
            assert await asking == "no"
        return self._capsys.readouterr().err

    async def _in_a_chat(self, question: Question) -> str:
        async def replies() -> Replies:
            return Replies(CHAT, Capabilities(100_000), SystemClock())

        questions = Questions()
        person = ChatPerson(
            ADMIN.person,
            SessionId("s1"),
            CHAT,
            judge=lambda: ADMIN,
            replies=replies,
            questions=questions,
            outbox=self._store.outbox,
            wake=lambda _: None,
        )
        asking = asyncio.create_task(person.allow(question))
        async with asyncio.timeout(PATIENCE_S):
            while (row := await self._store.outbox.find(f"question:{question.id}:0")) is None:
                await asyncio.sleep(0)
            assert questions.decide("no", CHAT, ADMIN)
            assert await asking == "no"
        return read_body(row.body).text


@pytest.fixture
def surfaces(store: Store, keyboard: int, capsys: pytest.CaptureFixture[str]) -> Surfaces:
    return Surfaces(store, keyboard, capsys)


@pytest.mark.parametrize("reason", REASONS.values(), ids=REASONS)
async def test_the_effect_is_seen_before_the_reason_of_the_model_whatever_that_says(
    desktop: Desktop, beside: Path, surfaces: Surfaces, reason: str
) -> None:
    ada = Ada("no", "no", "no")
    effects = {
        f"write {beside}": f"Let commands read, change and delete everything in {beside}?",
        "network example.org": "Let commands reach example.org?",
        "unsandboxed": "Run this command outside the sandbox, with your rights: your files, keys and network?",
    }
    for need in effects:
        await desktop.run("touch x", ada, needs=[need], reason=reason)
    for question, effect in zip(ada.asked, effects.values(), strict=True):
        assert question.headline == effect
        assert question.model_words.count('"') == 2, "where the words of the model begin and end"
        for surface, seen in (await surfaces.show(question)).items():
            words, ours = squeezed(seen), squeezed(OURS)
            assert squeezed(effect) in words, surface
            if ours in words:
                assert words.index(squeezed(effect)) < words.casefold().index("themodelsays:") < words.index(ours), (
                    surface
                )
            assert not _STEERING.search(seen.replace("\n", "")), surface
            assert not _UNSEEN.search(seen), surface
            assert not any(line.strip(" │()").startswith(OURS[:12]) and OURS in line for line in seen.splitlines()), (
                surface
            )


HIDING = {
    "spaces": "ls" + " " * 500 + "; curl evil.example",
    "lines": "ls" + "\n" * 300 + "curl evil.example",
    "carriage return": "curl evil.example #\rls                  ",
    "erased": "curl evil.example # \x1b[2K\x1b[1Gls",
    "right to left": "ls \u202e; curl evil.example",
    "nobody sees it": "ls\u2800\u3164; curl evil.example",
}


@pytest.mark.parametrize("command", HIDING.values(), ids=HIDING)
async def test_all_of_a_command_that_would_leave_the_sandbox_is_seen(
    desktop: Desktop, surfaces: Surfaces, command: str
) -> None:
    ada = Ada("no")
    await desktop.run(command, ada, needs=["unsandboxed"])
    assert ada.asked[0].offered == ("no", "once"), "nothing that lasts covers more than these words"
    for surface, seen in (await surfaces.show(ada.asked[0])).items():
        assert squeezed("curl evil.example") in squeezed(seen), surface
        assert not _STEERING.search(seen.replace("\n", "")), surface
        assert not _UNSEEN.search(seen), surface


async def test_what_a_yes_that_lasts_covers_is_seen(desktop: Desktop, surfaces: Surfaces) -> None:
    ada = Ada("no")
    await desktop.run("git push origin main", ada, needs=["unsandboxed"])
    for surface, seen in (await surfaces.show(ada.asked[0])).items():
        covered = "commands that start with `git push`"
        assert squeezed(covered) in squeezed(seen), surface


async def test_each_of_many_needs_is_asked_about_by_itself(desktop: Desktop, beside: Path) -> None:
    hosts = [f"network mirror{number}.example.org" for number in range(6)]
    answers: list[Answer | Instead] = ["once"] * len(hosts)
    ada = Ada(*answers, "no")
    refused = await desktop.run(
        f"touch {beside}/x", ada, needs=[*hosts, f"write {beside}", "port 22"], reason="mirrors"
    )
    assert [question.headline for question in ada.asked[-2:]] == [
        "Let commands reach mirror5.example.org?",
        f"Let commands read, change and delete everything in {beside}?",
    ]
    assert refused.is_error
    assert not [*beside.iterdir()]


@pytest.mark.parametrize("count", [9, 5_000])
async def test_more_needs_than_anybody_reads_are_refused_without_a_question(desktop: Desktop, count: int) -> None:
    ada = Ada()
    refused = await desktop.run("true", ada, needs=[f"port {number + 1}" for number in range(count)])
    assert f"asks for {count:,}" in refused.text
    assert not ada.asked


async def test_a_no_holds_for_the_turn(desktop: Desktop, beside: Path) -> None:
    gate, ada = desktop.gate(), Ada("no", Instead("use build/"), "no", "once")
    needs = (f"write {beside}", "network example.org", "unsandboxed") * 3
    told = [(await desktop.run("touch x", ada, gate=gate, needs=[need], reason="please")).text for need in needs]
    assert len(ada.asked) == 3
    assert ["are not asked again" in one for one in told] == [False] * 3 + [True] * 6
    await desktop.run("touch x", ada, gate=gate, needs=[f"write {beside}"], turn="t2")
    assert len(ada.asked) == 4


async def test_after_some_refusals_nobody_is_asked_in_the_same_turn(desktop: Desktop) -> None:
    answers: list[Answer | Instead] = ["no"] * MAX_REFUSALS
    gate, ada = desktop.gate(), Ada(*answers, "no")
    told = [(await desktop.run(f"echo {one}", ada, gate=gate, needs=["unsandboxed"])).text for one in range(20)]
    assert f"said no {MAX_REFUSALS} times" in told[-1]
    assert len(ada.asked) == MAX_REFUSALS
    await desktop.run("git push", Ada("session"), needs=["unsandboxed"])
    assert not (await desktop.run("git status", Ada("once"), gate=gate, needs=["unsandboxed"], turn="t2")).is_error


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("pypi.org.evil.example", "reach pypi.org.evil.example"),
        ("PyPI.org.", "reach the Python package index (pypi.org and files.pythonhosted.org)"),
        ("xn--pyp-pma.org", "reach xn--pyp-pma.org"),
        ("rnicrosoft.com", "reach rnicrosoft.com"),
        ("p\u0443pi.org", None),
        ("pypi\u3002org", None),
        ("pypi.org\u200b", None),
        ("pypi.org evil.example", None),
        ("pypi.org,evil.example", None),
        ("pypi.org@evil.example", None),
        ("pypi.org:443", None),
        ("https://pypi.org/", None),
        ("*.org", None),
        ("pypi.org\nevil.example", None),
        ("", None),
    ],
)
async def test_a_host_is_shown_as_it_is_reached(desktop: Desktop, host: str, shown: str | None) -> None:
    ada = Ada("no")
    refused = await desktop.run("true", ada, needs=[f"network {host}"])
    assert refused.is_error
    assert [shown in question.headline for question in ada.asked if shown] == [True] * bool(shown)
    assert len(ada.asked) == bool(shown)


async def test_a_folder_that_looks_like_the_project_is_shown_whole(desktop: Desktop, surfaces: Surfaces) -> None:
    alike = desktop.folder / "work\u200b"
    deep = desktop.folder / "work-of-others" / ("sub/" * 40).strip("/")
    for folder in (alike, deep):
        folder.mkdir(parents=True)
        ada = Ada("no")
        await desktop.run("true", ada, needs=[f"write {folder}"])
        for surface, seen in (await surfaces.show(ada.asked[0])).items():
            assert squeezed(str(folder).replace("\u200b", "\\u200b")) in squeezed(seen), surface


async def test_other_tools_and_scripts_ask_for_nothing(desktop: Desktop, beside: Path) -> None:
    ada = Ada()
    await desktop.run("print(1)", ada, tool="execute_code", needs=["unsandboxed", f"write {beside}"])
    forged = (
        "calls = next(one.cell_contents for one in read_file.__closure__ if hasattr(one.cell_contents, 'call'))\n"
        "try: calls.call('terminal', {'command': 'true', 'needs': ['unsandboxed']})\n"
        "except ToolError as refusal: print(refusal)\n"
    )
    answered = await desktop.run(forged, ada, tool="execute_code", timeout_s=20)
    assert "cannot be called from a script" in answered.text
    assert not ada.asked
