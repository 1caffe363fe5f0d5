"""Ours, wired up as in the product but with its home in a temporary folder and a model on loopback."""

import tempfile
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from talaria.app.build import Application, open_application
from talaria.app.settings import Settings
from talaria.config.schema import Config, ModelConfig
from talaria.runtime.session import LiveSession
from talaria.store.base import Session
from talaria.tools.base import Tool


@contextmanager
def temporary_home() -> Generator[Path]:
    """With a project beside it."""
    with tempfile.TemporaryDirectory(prefix="talaria-bench-") as folder:
        for name in ("home", "project"):
            Path(folder, name).mkdir(mode=0o700)
        yield Path(folder, "home")


@asynccontextmanager
async def application(home: Path, model_url: str, tools: Iterable[Tool] | None = None) -> AsyncGenerator[Application]:
    config = Config(model=ModelConfig(provider="custom", default="test", base_url=model_url))
    async with open_application(Settings(home, config, {}), tools=tools, kind="benchmark") as app:
        yield app


def session(app: Application, row: Session | None = None) -> LiveSession:
    return app.session(row, cwd=app.settings.home.parent / "project", origin="library")
