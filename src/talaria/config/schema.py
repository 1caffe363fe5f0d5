"""Every setting of config.yaml, its type and its default. Unknown keys are errors."""

from typing import Annotated, Any, Literal

import msgspec

from talaria.api.api_settings import ApiSettings
from talaria.core.entries import Effort
from talaria.core.secret import NO_SECRET, Secret
from talaria.gateway.gateway_settings import GatewaySettings
from talaria.net.web_settings import Timeouts, WebSettings
from talaria.providers.base import COMPACTION_SHARE, Caching, Prices, Rotation, WireName
from talaria.tools.mcp.server_entries import ServerEntry
from talaria.tools.policy import ApprovalSettings
from talaria.tools.registry import ToolSwitches
from talaria.tools.sandbox.sandbox_settings import TerminalSettings
from talaria.tools.undo.scan import CheckpointSettings

BUILTIN_ENGINE = "compressor"

Count = Annotated[int, msgspec.Meta(ge=1)]
Amount = Annotated[float, msgspec.Meta(gt=0)]
Price = Annotated[float, msgspec.Meta(ge=0)]


class TimeoutsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Each has a default, which is longer for a server on this machine."""

    connect_s: Amount | None = None
    first_byte_s: Amount | None = None
    chunk_s: Amount | None = None
    total_s: Amount | None = None

    def over(self, usual: Timeouts) -> Timeouts:
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return msgspec.structs.replace(usual, **given)


class PricesConfig(Prices, frozen=True, forbid_unknown_fields=True):
    input: Price
    output: Price
    cache_read: Price | None = None
    cache_write: Price | None = None


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    default: str | None = None
    """A model, or `provider:model`."""
    provider: str | None = None
    base_url: str | None = None
    api_key: Secret = NO_SECRET
    wire: WireName | None = None
    context_length: Count | None = None
    max_tokens: Count | None = None
    reasoning_effort: Effort | None = None
    streaming: bool = True
    """Whether answers arrive word by word, or whole."""


class ModelEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Facts about one model; each replaces the catalog's."""

    context_length: Count | None = None
    max_tokens: Count | None = None
    prices: PricesConfig | None = None


class ProviderConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A provider of your own, or changes to one in the catalog."""

    base_url: str | None = None
    api_key: Secret = NO_SECRET
    api_keys: tuple[Secret, ...] = ()
    """More keys: when one is exhausted or rate-limited, another takes over."""
    key_command: str | None = None
    """A command that prints the key; it runs again when that key is no longer accepted."""
    rotation: Rotation = "fill_first"
    wire: WireName | None = None
    prompt_caching: Caching | None = None
    headers: dict[str, Secret] = {}
    """Secret, because some endpoints expect their key in one."""
    timeouts: TimeoutsConfig | None = None
    default_model: str | None = None
    models: dict[str, ModelEntry] = {}
    streaming: bool | None = None
    """Overrides `model.streaming`."""


class Fallback(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model that is used when the one before it does not answer."""

    provider: str
    model: str | None = None
    base_url: str | None = None
    api_key: Secret = NO_SECRET


Fallbacks = str | Fallback | tuple[str | Fallback, ...]


class AgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    max_turns: Count = 60
    """Rounds of tool calls per turn."""
    api_max_retries: Count = 3
    """How often one model is tried before it counts as failed."""
    max_wait_s: Amount = 900.0
    """How long one turn waits, in total, for failures to pass."""


class CapConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    tokens: Count | None = None
    cost_usd: Amount | None = None


class TurnCapConfig(CapConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    seconds: Amount | None = None


class LimitsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may be spent. A day ends at midnight, local time."""

    turn: TurnCapConfig = TurnCapConfig()
    session: CapConfig = CapConfig()
    day: CapConfig = CapConfig()
    person: CapConfig = CapConfig()
    """Per person and day."""

    @property
    def are_in_money(self) -> bool:
        return any(cap.cost_usd is not None for cap in (self.turn, self.session, self.day, self.person))


class CompressionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a long conversation is made shorter for the model."""

    enabled: bool = True
    threshold: Annotated[float, msgspec.Meta(gt=0, le=0.95)] = COMPACTION_SHARE
    """Share of the window from which on; at least 0.75 where that is below 512,000 tokens."""


class AuxiliaryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Models for small tasks, each as `provider:model`; the default is the conversation's own."""

    default: str | None = None
    title: str | None = None
    summary: str | None = None
    judge: str | None = None
    tasks: dict[str, str] = {}
    """Of plugins, by task."""


class ContextConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a conversation is kept within its model's window. An engine may have its own settings here."""

    engine: str = BUILTIN_ENGINE
    """`compressor` is built in; plugins bring others."""


class MemoryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered across conversations. A provider may have its own settings here."""

    provider: str | None = None
    """From a plugin."""


class PluginsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    enabled: tuple[str, ...] = ()
    """By name. Nothing else is loaded."""
    disabled: tuple[str, ...] = ()
    """Not loaded even if enabled."""
    project: bool = False
    """Whether those in `.talaria/plugins` of the working directory may be enabled, too."""
    entries: dict[str, dict[str, Any]] = {}
    """Settings of plugins, by name."""


class McpConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    servers: dict[str, ServerEntry] = {}


class DisplayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    busy_mode: Literal["queue", "steer", "interrupt"] = "queue"
    """What Enter does while a turn runs."""
    steer_key: str = "c-s"
    """The key that sends the model a note while it works."""
    theme: Literal["auto", "light", "dark"] = "auto"
    """Which background the colours are for; `auto` asks the terminal."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    model: ModelConfig = ModelConfig()
    fallback_providers: Fallbacks = ()
    """One or several, in order: `provider:model`, or its parts."""
    fallback_model: Fallbacks = ()
    """Hermes' name for the same; those under `fallback_providers` come first."""
    providers: dict[str, ProviderConfig] = {}
    agent: AgentConfig = AgentConfig()
    limits: LimitsConfig = LimitsConfig()
    compression: CompressionConfig = CompressionConfig()
    auxiliary: AuxiliaryConfig = AuxiliaryConfig()
    context: ContextConfig = ContextConfig()
    memory: MemoryConfig = MemoryConfig()
    plugins: PluginsConfig = PluginsConfig()
    tools: ToolSwitches = ToolSwitches()
    """Which ones the model may use; all by default."""
    web: WebSettings = WebSettings()
    terminal: TerminalSettings = TerminalSettings()
    approvals: ApprovalSettings = ApprovalSettings()
    checkpoints: CheckpointSettings = CheckpointSettings()
    """What can be undone, and for how long."""
    display: DisplayConfig = DisplayConfig()
    """The screen of the terminal."""
    gateway: GatewaySettings = GatewaySettings()
    """Chats on platforms."""
    api: ApiSettings = ApiSettings()
    mcp_servers: dict[str, ServerEntry] = {}
    """MCP servers by name; also under `mcp.servers` and `mcpServers`, where other programs keep them."""
    mcp: McpConfig = McpConfig()
    mcpServers: dict[str, ServerEntry] = {}  # noqa: N815

    def __post_init__(self) -> None:
        twice = {*self.mcp_servers} & {*self.mcp.servers} | {*self.mcpServers} & {*self.mcp_servers, *self.mcp.servers}
        if twice:
            raise ValueError(f"the MCP server {min(twice)!r} is named twice")

    @property
    def fallbacks(self) -> tuple[str | Fallback, ...]:
        """From both settings, in the order in which they are tried."""
        given = (self.fallback_providers, self.fallback_model)
        return tuple(entry for one in given for entry in (one if isinstance(one, tuple) else (one,)))

    @property
    def all_mcp_servers(self) -> dict[str, ServerEntry]:
        """From all three places."""
        return {**self.mcp_servers, **self.mcp.servers, **self.mcpServers}

    @property
    def wants_plugins(self) -> bool:
        return bool(self.plugins.enabled or self.memory.provider or self.context.engine != BUILTIN_ENGINE)
