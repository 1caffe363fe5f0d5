"""What `checkpoints` in config.yaml may say."""

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1)]


class CheckpointSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    enabled: bool = True
    """False: only files that tools write are kept, not what commands change."""
    keep_days: Count = 30
    """How long they are kept."""
    max_mb: Count = 4096
    """All of them together; the oldest go first."""
    max_file_mb: Count = 256
    """Larger files are not recorded."""
    max_files: Count = 200_000
    """In one project. A larger one is not recorded."""
    max_project_mb: Count = 4096
    """Of all files in one project together. A larger one is not recorded."""
