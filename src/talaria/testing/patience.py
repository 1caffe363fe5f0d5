"""How long tests wait for what must happen. Only tests that fail wait so long; a busy machine may need much of it.

Deliberate mistakes keep it from happening: where they are tried out, `TEST_PATIENCE_S` is lower.
"""

import os

PATIENCE_S = float(os.environ.get("TEST_PATIENCE_S", "60"))
