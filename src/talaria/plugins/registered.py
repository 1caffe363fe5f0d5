"""What one plugin has registered. Whether there is room for it beside the others is decided later (`host.py`)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from talaria.context.engine import ContextEngine
from talaria.core.tool_spec import ToolSpec
from talaria.memory.base import MemoryProvider
from talaria.plugin_calls import PluginError, as_text, contained
from talaria.plugins.platform_plugins import PlatformEntry


@dataclass(frozen=True, slots=True)
class PluginTool:
    spec: ToolSpec
    handler: Callable[..., Any]
    toolset: str = ""
    check: Callable[[], object] | None = None
    """Whether it can be used here at all."""
    is_override: bool = False
    """It wants to stand in place of a tool that is there."""


@dataclass(frozen=True, slots=True)
class PluginCommand:
    name: str
    handler: Callable[[str], Any]
    description: str = ""
    args_hint: str = ""


@dataclass(frozen=True, slots=True)
class PluginCli:
    """A command of `talaria` itself; `setup` is given an argparse parser."""

    name: str
    help: str
    setup: Callable[[Any], object]
    handler: Callable[[Any], object] | None = None


@dataclass(frozen=True, slots=True)
class PluginSkill:
    name: str
    """`plugin:name`."""
    path: Path
    description: str = ""


@dataclass(slots=True)
class Registered:
    tools: list[PluginTool] = field(default_factory=list[PluginTool])
    hooks: list[tuple[str, Callable[..., Any]]] = field(default_factory=list[tuple[str, Callable[..., Any]]])
    commands: list[PluginCommand] = field(default_factory=list[PluginCommand])
    cli: list[PluginCli] = field(default_factory=list[PluginCli])
    skills: list[PluginSkill] = field(default_factory=list[PluginSkill])
    platforms: list[PlatformEntry] = field(default_factory=list[PlatformEntry])
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Kinds of small model calls of its own."""
    engine: ContextEngine | None = None
    memory: MemoryProvider | None = None
    problems: list[str] = field(default_factory=list[str])
    """What it asked for in vain."""


def engine_name(engine: ContextEngine | None) -> str:
    """By which it is chosen; empty if there is none."""
    return "" if engine is None else _own_name(engine)


def memory_name(memory: MemoryProvider | None) -> str:
    return "" if memory is None else _own_name(memory)


def _own_name(part: ContextEngine | MemoryProvider) -> str:
    try:
        return contained(lambda: as_text(part.name))
    except PluginError:  # somebody's property
        return "?"
