"""Where Talaria keeps what belongs to one project and is not in it: package caches, a copy of git's settings."""

import hashlib
from pathlib import Path

from talaria.files import harmless


def project_folder(home: Path, root: Path) -> Path:
    """Below Talaria's home, named after the project's root; not made yet. A project that moves gets another one."""
    digest = hashlib.sha256(str(root).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return home / "projects" / f"{harmless(root.name)[:40]}-{digest}"
