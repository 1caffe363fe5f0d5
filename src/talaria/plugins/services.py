"""What plugins may ask of the running application."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from talaria.core import dialect
from talaria.core.ids import SessionId
from talaria.core.usage import NO_USAGE
from talaria.plugins.bridge import Bridge
from talaria.plugins.dispatching import dispatch
from talaria.plugins.llm import LlmAnswer, LlmQuestion, PluginLlm
from talaria.runtime import current
from talaria.runtime.auxiliary import Auxiliary


@dataclass(slots=True)
class PluginServices:
    """What plugins may ask for; the application stands behind it once it is open."""

    bridge: Bridge
    entries: Mapping[str, Mapping[str, Any]]
    """Settings of plugins, by name, as the person has written them: they say what plugins may do."""
    own_entries: Callable[[], object] | None = None
    """The same, with what plugins have set themselves."""
    profile_name: str = "default"
    auxiliary: Callable[[str, str | None], Auxiliary] | None = None
    """For a purpose, and with a model that the plugin has chosen; there once the application is open."""
    inject_into: Callable[[str, str], bool] | None = None
    """The terminal's chat, while there is one: takes a text, and whose it is (its role)."""

    def llm(self, plugin: str) -> PluginLlm:
        may_choose = found_in(self.entries, plugin, "llm", "allow_model_override") is True
        return PluginLlm(plugin, self.bridge, self.ask, may_choose=may_choose)

    async def ask(self, question: LlmQuestion) -> LlmAnswer:
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
        return LlmAnswer(said.text, where.provider, where.model, said.usage or NO_USAGE)

    def dispatch(self, tool: str, arguments: dict[str, Any]) -> str:
        return dispatch(self.bridge, tool, arguments)

    def inject(self, content: str, role: str) -> bool:
        return self.inject_into is not None and self.inject_into(content, role)

    def setting(self, plugin: str, key: str, default: Any) -> Any:
        entries = self.own_entries() if self.own_entries else self.entries
        return found_in(entries, plugin, *key.split("."), default=default)


def found_in(settings: object, *keys: str, default: Any = None) -> Any:
    """What stands at the end of these keys, also if that is None; `default` if they lead nowhere."""
    for key in keys:
        if not isinstance(settings, Mapping) or key not in settings:
            return default
        settings = cast("Mapping[str, Any]", settings)[key]
    return settings
