"""Every error of ours, grouped by who must act. Anything outside this tree is a bug and propagates.

TalariaError
├── UserFacing          say it to the person       UnknownSession, SessionBusy, LimitReached, BadInput
├── OperatorError       someone must change setup  BadConfig, MissingCredential, StoreDamaged, StoreTooNew, NameTaken
├── ModelCorrectable    becomes a tool result      BadArguments, ToolFailed, Denied
├── Transient           try again                  StoreUnavailable, RateLimited, Overloaded, Disconnected
└── Fenced              stop quietly: another owner runs this session now

`ProviderFailure` marks, across those groups, what a model endpoint did: RateLimited, Overloaded,
Disconnected, KeyRejected, RequestRejected, CertificateRefused. Its `kind` says what happened; what
may be done about each kind is in `providers/provider_failures.py`.
"""

from typing import ClassVar, Literal

FailureKind = Literal[
    "auth",
    "forbidden",
    "billing",
    "rate_limit",
    "upstream_rate_limit",
    "long_context_tier",
    "overloaded",
    "server_error",
    "timeout",
    "transport",
    "not_listening",
    "invalid_answer",
    "context_overflow",
    "suspected_overflow",
    "payload_too_large",
    "model_not_found",
    "policy_blocked",
    "format_error",
    "content_policy_blocked",
    "ssl_cert_verification",
    "unknown",
]
Repair = Literal["drop_images", "drop_thinking", "drop_effort", "drop_extras", "rename_limit", "plain_schemas"]
"""How a request that an endpoint refuses may be changed."""


class TalariaError(Exception):
    """`str()` gives one clear sentence."""


class UserFacing(TalariaError):
    pass


class OperatorError(TalariaError):
    pass


class ModelCorrectable(TalariaError):
    pass


class Transient(TalariaError):
    def __init__(self, sentence: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(sentence)
        self.retry_after_s = retry_after_s


class Fenced(TalariaError):
    pass


class BadInput(UserFacing):
    pass


class TitleTaken(BadInput):
    """Another conversation has this title, which may be somebody else's."""

    def __init__(self, title: str, taken_by: str) -> None:
        super().__init__(f"The title {title!r} is already used by session {taken_by}; choose another.")
        self.title = title


class UnknownSession(UserFacing):
    pass


class SessionBusy(UserFacing):
    pass


LimitName = Literal["", "turn", "session", "day", "person"]


class LimitReached(UserFacing):
    """A budget of the turn is spent."""

    def __init__(self, sentence: str, limit: LimitName = "") -> None:
        """`limit`: which cap it was; empty: the answer itself did not end."""
        super().__init__(sentence)
        self.limit: LimitName = limit


class BadConfig(OperatorError):
    pass


class MissingCredential(OperatorError):
    pass


class StoreDamaged(OperatorError):
    pass


class StoreTooNew(OperatorError):
    pass


class StoreUnavailable(Transient):
    """The disk cannot be written or read (full, locked, read-only, failing). Nothing acknowledged is lost, and it may
    recover."""


class BadArguments(ModelCorrectable):
    pass


class ToolFailed(ModelCorrectable):
    pass


class Denied(ModelCorrectable):
    """The gate refused the call, which did not run."""

    def __init__(self, sentence: str, *, by: Literal["policy", "person", "nobody"] = "policy", why: str = "") -> None:
        """`by`: who refused; `nobody`: a person should have been asked, but none was there. `why`: the reason in a few
        words, for people."""
        super().__init__(sentence)
        self.by: Literal["policy", "person", "nobody"] = by
        self.why = why


class ProviderFailure(TalariaError):
    usual_kind: ClassVar[FailureKind] = "unknown"

    def __init__(
        self,
        sentence: str,
        *,
        kind: FailureKind | None = None,
        retry_after_s: float | None = None,
        repair: Repair | None = None,
    ) -> None:
        super().__init__(sentence)
        self.kind: FailureKind = kind or self.usual_kind
        self.retry_after_s = retry_after_s
        self.repair: Repair | None = repair
        """With this change, the same request may be accepted."""


class RateLimited(ProviderFailure, Transient):
    usual_kind = "rate_limit"


class Overloaded(ProviderFailure, Transient):
    usual_kind = "overloaded"


class Disconnected(ProviderFailure, Transient):
    """No complete answer came: the connection failed, fell silent, or delivered something else."""

    usual_kind = "transport"


class KeyRejected(ProviderFailure, OperatorError):
    usual_kind = "auth"


class RequestRejected(ProviderFailure, OperatorError):
    """The endpoint does not accept this request; sending it again would not help."""

    usual_kind = "format_error"


class CertificateRefused(ProviderFailure, OperatorError):
    usual_kind = "ssl_cert_verification"
