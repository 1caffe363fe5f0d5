"""Our own time per turn of a conversation that has outgrown its window many times, compactions included: beside bare
work, and beside a conversation that has just begun to."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.application import session, temporary_home
from benchmarks.floors.bare import Bare
from benchmarks.measuring import Lap, Plan
from benchmarks.model_server import model_server
from benchmarks.table import Row
from talaria.app.build import open_application
from talaria.app.settings import Settings
from talaria.config.schema import Config, ModelConfig
from talaria.core.messages import user
from talaria.runtime.session import LiveSession

_WINDOW = 3 * 32_000
"""As the model counts: a byte is a token to it, and three bytes are one to others."""
_BLOCK = 50
"""Turns that are measured together, so that their share of compactions is in it."""
_BLOCKS = 10
_EARLY = 200
"""Turns after which the window has been full twice or more."""
_QUESTION = "Some words as they stand in a conversation about a program and its many files. " * 12


def rows(plan: Plan) -> Iterator[Row]:
    messages = plan.of(5_000, 2_000)
    with model_server() as server:
        floor, early, late = asyncio.run(_measure(f"{server}/plain/0", messages // 2 - _BLOCKS * _BLOCK))
    what = f"turn at {messages:,} messages, 32k window /"
    yield Row(f"{what} bare", _per_turn_ms(floor), _per_turn_ms(late), "ms", _BLOCKS, times=5.0, limit=8.0)
    yield Row(f"{what} early", _per_turn_ms(early), _per_turn_ms(late), "ms", _BLOCKS, times=1.5)


def _per_turn_ms(blocks: Lap) -> float:
    return blocks.median_ms / _BLOCK


async def _measure(url: str, turns_before: int) -> tuple[Lap, Lap, Lap]:
    """Block by block in turn: what disturbs one disturbs the others."""
    floor, early, late = Lap(), Lap(), Lap()
    with temporary_home() as home:
        async with open_application(_settings(home, url), kind="benchmark") as app, Bare(home, url) as bare:
            young, old = session(app), session(app)
            await _turns(young, _EARLY)
            await _turns(old, turns_before)
            for _ in range(_BLOCKS):
                with early:
                    await _turns(young, _BLOCK)
                with late:
                    sent_bytes = await _turns(old, _BLOCK)
                with floor:
                    for size in sent_bytes:
                        await bare.post(bytes(size))
                        bare.commit()
    return floor, early, late


async def _turns(live: LiveSession, count: int) -> Sequence[int]:
    """How many bytes each of them sent."""
    return [await _turn(live) for _ in range(count)]


async def _turn(live: LiveSession) -> int:
    report = await live.ask(user(_QUESTION))
    if report.outcome != "completed":
        raise RuntimeError(f"the turn ended as {report.outcome}: {report.error}")
    return report.usage.prompt


def _settings(home: Path, url: str) -> Settings:
    model = ModelConfig(provider="custom", default="test", base_url=url, context_length=_WINDOW)
    return Settings(home, Config(model=model), {})
