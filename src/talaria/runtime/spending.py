"""A turn's access to the ledger: it waits out a store that is not well, as its recorder does."""

from collections.abc import Callable, Sequence

import msgspec

from talaria.core.ids import HoldId, OwnerId, SessionId
from talaria.runtime.recorder import Recorder
from talaria.store.base import Amount, Released, Spending, Spent, Totals, UsageKey, UsageRow


class PatientSpending(msgspec.Struct, frozen=True):
    spending: Spending
    recorder: Recorder

    async def hold(self, session: SessionId, person: str, owner: OwnerId, decide: Callable[[Totals], Amount]) -> HoldId:
        return await self.recorder.patiently(lambda: self.spending.hold(session, person, owner, decide))

    async def add(self, session: SessionId, writes: Sequence[Spent | Released]) -> None:
        await self.recorder.patiently(lambda: self.spending.add(session, writes))

    async def usage(self, by: UsageKey, since: float = 0.0) -> Sequence[UsageRow]:
        return await self.spending.usage(by, since)
