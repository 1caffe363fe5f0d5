"""Every error of ours, grouped by who must act. Anything outside this tree is a bug and propagates.

TalariaError
├── UserFacing          say it to the person       UnknownSession, SessionBusy, LimitReached, BadInput
├── OperatorError       someone must change setup  BadConfig, MissingCredential, StoreDamaged, StoreTooNew
├── ModelCorrectable    becomes a tool result      BadArguments, ToolFailed, Denied
├── Transient           try again                  StoreUnavailable, RateLimited, Overloaded, Disconnected
└── Fenced              stop quietly: another owner runs this session now

`ProviderFailure` marks, across those groups, what a model endpoint did: RateLimited, Overloaded, Disconnected,
KeyRejected, RequestRejected.
"""


class TalariaError(Exception):
    """`str()` of it is one clear sentence."""


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


class UnknownSession(UserFacing):
    pass


class SessionBusy(UserFacing):
    pass


class LimitReached(UserFacing):
    """A budget of the turn is spent."""


class BadConfig(OperatorError):
    pass


class MissingCredential(OperatorError):
    pass


class StoreDamaged(OperatorError):
    pass


class StoreTooNew(OperatorError):
    pass


class StoreUnavailable(Transient):
    """The disk said no (full, locked, read-only, failing); nothing acknowledged is lost, and it may heal."""


class BadArguments(ModelCorrectable):
    pass


class ToolFailed(ModelCorrectable):
    pass


class Denied(ModelCorrectable):
    """The gate said no: the call did not run."""


class ProviderFailure(TalariaError):
    pass


class RateLimited(ProviderFailure, Transient):
    pass


class Overloaded(ProviderFailure, Transient):
    pass


class Disconnected(ProviderFailure, Transient):
    pass


class KeyRejected(ProviderFailure, OperatorError):
    pass


class RequestRejected(ProviderFailure, OperatorError):
    """The endpoint will not take this request as it is; asking again would not help."""
