"""How long tests wait for what must happen. Only failing tests wait that long; a busy machine may need much of it.

Mutants keep it from happening, so `TEST_PATIENCE_S` is lower when they are tried.
"""

import os

PATIENCE_S = float(os.environ.get("TEST_PATIENCE_S", "60"))
