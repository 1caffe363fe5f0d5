"""A context engine as others write it: for the interface of Hermes, knowing nothing of the host that runs it here."""

import os

from .engine import LedgerEngine


def register(ctx):
    engine = LedgerEngine()
    ctx.register_context_engine(engine)
    if os.environ.get("LEDGER_SLASH") == "1":
        ctx.register_command("ledger", lambda args: f"ledger: {args or 'nothing asked'}", description="Ask the ledger.")
