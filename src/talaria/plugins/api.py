"""What a plugin's `register(ctx)` is given. It collects; nothing takes effect before `register` has returned."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from talaria.context.engine import ContextEngine
from talaria.core.text import as_text
from talaria.memory.base import MemoryProvider
from talaria.plugins.discovery import PluginManifest
from talaria.plugins.registered import (
    PlatformEntry,
    PluginCli,
    PluginCommand,
    PluginSkill,
    PluginTool,
    Registered,
    find_flaw,
)
from talaria.tools.function import BadSchema, parse_schema

_SKILL_NAME = re.compile(r"[A-Za-z0-9_-]+")
_COMMAND_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_TASK_KEY = re.compile(r"[a-z][a-z0-9_]*")
NOT_YET = (
    "register_slack_action_handler",
    "register_image_gen_provider",
    "register_video_gen_provider",
    "register_web_search_provider",
    "register_browser_provider",
    "register_tts_provider",
    "register_transcription_provider",
    "register_secret_source",
    "register_dashboard_auth_provider",
    "register_middleware",
)
"""What plugins may ask for that has no effect here. It is a problem of the plugin; the rest of it works."""


class Services(Protocol):
    """What a plugin may ask of the running application."""

    @property
    def profile_name(self) -> str: ...
    def llm(self, plugin: str) -> Any: ...
    def dispatch(self, tool: str, arguments: dict[str, Any]) -> str: ...
    def inject(self, content: str, role: str) -> bool: ...
    def setting(self, plugin: str, key: str, default: Any) -> Any: ...


class PluginContext:
    def __init__(
        self, key: str, manifest: PluginManifest, services: Services, *, takes_any_engine: bool = False
    ) -> None:
        """`takes_any_engine`: also one that only has the methods of a `ContextEngine`."""
        self.manifest = manifest
        self.registered = Registered()
        self._key = key
        self._services = services
        self._takes_any_engine = takes_any_engine

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name in NOT_YET:
            return lambda *args, **keywords: self._refuse(f"{name} has no effect here yet")  # noqa: ARG005
        raise AttributeError(name)

    @property
    def llm(self) -> Any:
        return self._services.llm(self._key)

    @property
    def profile_name(self) -> str:
        return self._services.profile_name

    def get_config(self, key: str, default: Any = None) -> Any:
        """From its own settings, `plugins.entries.<key>`."""
        return self._services.setting(self._key, key, default)

    def dispatch_tool(self, tool_name: str, args: dict[str, Any] | None = None, **_: Any) -> str:
        return self._services.dispatch(tool_name, dict(args or {}))

    def inject_message(self, content: str, role: str = "user") -> bool:
        return self._services.inject(as_text(content), as_text(role))

    def register_tool(
        self,
        name: str,
        toolset: str = "",
        schema: Mapping[str, Any] | None = None,
        handler: Callable[..., Any] | None = None,
        check_fn: Callable[[], object] | None = None,
        requires_env: object = None,  # noqa: ARG002
        is_async: bool = False,  # noqa: ARG002  (what the handler returns decides)
        description: str = "",
        emoji: str = "",  # noqa: ARG002
        override: bool = False,
    ) -> None:
        if not callable(handler):
            self._refuse(f"tool {name} has no handler")
            return
        try:
            spec = parse_schema({"description": description, **(schema or {}), "name": name})
        except (BadSchema, TypeError) as problem:
            self._refuse(f"tool {name!r}: {problem}")
            return
        self.registered.tools.append(PluginTool(spec, handler, toolset, check_fn, override))

    def register_hook(self, hook_name: str, callback: Callable[..., Any]) -> None:
        if callable(callback):
            self.registered.hooks.append((as_text(hook_name), callback))
        else:
            self._refuse(f"hook {hook_name} is not callable")

    def register_command(
        self, name: str, handler: Callable[[str], Any], description: str = "", args_hint: str = ""
    ) -> None:
        if callable(handler):
            about, hint = as_text(description or ""), as_text(args_hint or "")
            self.registered.commands.append(PluginCommand(as_text(name), handler, about, hint))
        else:
            self._refuse(f"command {name} has no handler")

    def register_cli_command(
        self,
        name: str,
        help: str = "",  # noqa: A002
        setup_fn: Callable[[Any], object] | None = None,
        handler_fn: Callable[[Any], object] | None = None,
        description: str = "",
    ) -> None:
        if not isinstance(name, str) or not _COMMAND_NAME.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]
            self._refuse(f"{name!r} cannot be the name of a talaria command")
            return
        about = as_text(help or description or "")
        self.registered.cli.append(PluginCli(name, about, setup_fn or do_nothing, handler_fn))

    def register_skill(self, name: str, path: str | Path, description: str = "") -> None:
        file = Path(path)
        if file.is_dir():
            file = file / "SKILL.md"
        if not _SKILL_NAME.fullmatch(name) or not file.is_file():
            self._refuse(f"skill {name!r} has no usable name, or no file at {file}")
            return
        self.registered.skills.append(PluginSkill(f"{self.manifest.name}:{name}", file, as_text(description or "")))

    def register_context_engine(self, engine: object) -> None:
        if not isinstance(engine, ContextEngine) and not (self._takes_any_engine and is_engine(engine)):
            self._refuse("its context engine is not a ContextEngine")
        elif self.registered.engine is not None:
            self._refuse("it has more than one context engine; the first is used")
        else:
            self.registered.engine = cast("ContextEngine", engine)

    def register_memory_provider(self, provider: object) -> None:
        if not is_memory(provider):
            self._refuse("its memory provider is not a MemoryProvider")
        elif self.registered.memory is not None:
            self._refuse("it has more than one memory provider; the first is used")
        else:
            self.registered.memory = cast("MemoryProvider", provider)

    def register_platform(
        self,
        name: str,
        label: str,
        adapter_factory: Callable[[Any], Any],
        check_fn: Callable[[], object],
        validate_config: Callable[[Any], object] | None = None,
        required_env: Sequence[str] | None = None,
        install_hint: str = "",
        **entry_kwargs: Any,
    ) -> None:
        """Raises `TypeError` for a keyword that `PlatformEntry` does not have."""
        entry = PlatformEntry(
            name=name.strip().lower() if isinstance(name, str) else name,  # pyright: ignore[reportUnnecessaryIsInstance]
            label=label,
            adapter_factory=adapter_factory,
            check_fn=check_fn,
            validate_config=validate_config,
            required_env=[as_text(need) for need in required_env or ()],
            install_hint=install_hint or "",
            **cast("dict[str, Any]", {"plugin_name": self.manifest.name, **entry_kwargs}),
        )
        problem = find_flaw(entry)
        if problem:
            self._refuse(problem)
        else:
            self.registered.platforms.append(entry)

    def register_auxiliary_task(
        self, key: str, *, display_name: str = "", description: str = "", defaults: Mapping[str, Any] | None = None
    ) -> None:
        if not _TASK_KEY.fullmatch(key) or key in self.registered.tasks or key in ("title", "summary", "judge"):
            raise ValueError(f"{key!r} cannot be the key of an auxiliary task")
        self.registered.tasks[key] = {
            "display_name": display_name,
            "description": description,
            "defaults": dict(defaults or {}),
        }

    def _refuse(self, problem: str) -> None:
        problem = as_text(problem)
        if problem not in self.registered.problems:
            self.registered.problems.append(problem)


def is_memory(provider: object) -> bool:
    """Also one without a base class, as some are."""
    return _has(provider, "name", "is_available", "initialize", "get_tool_schemas")


def is_engine(engine: object) -> bool:
    return _has(engine, "name", "update_from_response", "should_compress", "compress")


def _has(one: object, *names: str) -> bool:
    return all(getattr(one, name, None) is not None for name in names)


def do_nothing(_: Any) -> None:
    """Stands in for optional functions."""
