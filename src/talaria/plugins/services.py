"""What plugins may ask of the running application."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from talaria.model import dialect
from talaria.model.ids import SessionId
from talaria.model.usage import NO_USAGE
from talaria.plugins.bridge import Bridge
from talaria.plugins.dispatching import dispatch
from talaria.plugins.llm import Answer, PluginLlm, Question
from talaria.runtime import current
from talaria.runtime.auxiliary import Auxiliary


class Inject(Protocol):
    def __call__(self, content: str, role: str) -> bool: ...


@dataclass(slots=True)
class PluginServices:
    """What plugins may ask for; the application stands behind it once it is open."""

    bridge: Bridge
    entries: Mapping[str, Mapping[str, Any]]
    """Settings of plugins, by name."""
    profile_name: str = "default"
    auxiliary: Callable[[str, str | None], Auxiliary] | None = None
    """For a purpose, and with a model that the plugin has chosen; there once the application is open."""
    inject_into: Inject | None = None
    """The terminal's chat, while there is one."""

    def llm(self, plugin: str) -> PluginLlm:
        return PluginLlm(plugin, self.bridge, self.ask, may_choose=self._allows(plugin, "allow_model_override"))

    async def ask(self, question: Question) -> Answer:
        serving = current.serving.get()
        if self.auxiliary is None:
            raise RuntimeError("Talaria has no model open yet: ask when a conversation runs.")
        system, messages = dialect.question(question.messages)
        auxiliary = self.auxiliary(question.purpose, question.model or None)
        said = await auxiliary.ask(
            messages,
            system=system,
            session=serving.session if serving else SessionId("plugins"),
            person=serving.person if serving else "local",
            max_output=question.max_tokens,
            seconds=question.seconds,
        )
        where = next((one for one in auxiliary.route.endpoints if one.origin == said.origin), auxiliary.route.primary)
        return Answer(said.text, where.provider, where.model, said.usage or NO_USAGE)

    def dispatch(self, tool: str, arguments: dict[str, Any]) -> str:
        return dispatch(self.bridge, tool, arguments)

    def inject(self, content: str, role: str) -> bool:
        return self.inject_into is not None and self.inject_into(content, role)

    def setting(self, plugin: str, key: str, default: Any) -> Any:
        value: Any = self.entries.get(plugin, {})
        for name in key.split("."):
            if not isinstance(value, Mapping) or name not in value:
                return default
            value = value[name]  # pyright: ignore[reportUnknownVariableType]
        return value  # pyright: ignore[reportUnknownVariableType]

    def _allows(self, plugin: str, what: str) -> bool:
        return self.setting(plugin, f"llm.{what}", default=False) is True
