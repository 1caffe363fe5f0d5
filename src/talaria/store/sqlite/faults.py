"""What SQLite says, told to a person: which file, what is wrong, what to do."""

from pathlib import Path

import apsw
import msgspec

from talaria.core.errors import OperatorError, StoreDamaged, StoreUnavailable
from talaria.store.base import BrokenRuleError

_UNAVAILABLE: tuple[tuple[type[apsw.Error], str], ...] = (
    (apsw.FullError, "the disk is full; nothing is lost, and it goes on once there is space"),
    (apsw.BusyError, "another program holds it locked; it goes on once the lock is gone"),
    (apsw.LockedError, "another program holds it locked; it goes on once the lock is gone"),
    (apsw.ReadOnlyError, "it cannot be written (read-only file or disk); make it writable and it goes on"),
    (apsw.IOError, "the disk reports an error; nothing acknowledged is lost, and it goes on once the disk works"),
    (apsw.CantOpenError, "it cannot be opened; check that the folder exists and is writable"),
    (apsw.PermissionsError, "access was refused; check the permissions of the file and its folder"),
    (apsw.NoMemError, "there is not enough memory"),
)
_DAMAGED = (apsw.CorruptError, apsw.NotADBError, msgspec.DecodeError, UnicodeDecodeError)

FAULTS = (apsw.Error, msgspec.DecodeError, UnicodeDecodeError)
"""What reading and writing may raise beside errors of ours; a row that cannot be decoded is damage too."""


def explain(fault: Exception, path: Path) -> Exception:
    """The same fault as one of our errors; the fault itself if it is one already, or a bug (bad SQL)."""
    known = _known(fault, path)
    if known is None:
        return fault
    known.__cause__ = fault
    return known


def _known(fault: Exception, path: Path) -> Exception | None:
    if isinstance(fault, apsw.ConstraintError):
        return BrokenRuleError(str(fault))
    if isinstance(fault, _DAMAGED):
        return StoreDamaged(
            f"{path} is damaged ({fault}). It was left as it is: put a backup in its place, or move it away "
            "to start afresh."
        )
    for kind, meaning in _UNAVAILABLE:
        if isinstance(fault, kind):
            return StoreUnavailable(f"Cannot use {path}: {meaning}.")
    return None


def unusable_folder(folder: Path, fault: OSError) -> OperatorError:
    return OperatorError(
        f"Cannot create files in {folder} ({fault.strerror}). Make it writable, or set TALARIA_HOME to another folder."
    )
