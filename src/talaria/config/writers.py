"""Who else can change the settings: whoever can decides what runs here, so nobody may."""

import grp
import os
import pwd
import stat
from pathlib import Path

from talaria.core.errors import BadConfig


def check_writers(home: Path, file: Path) -> None:
    """Raises `BadConfig` where others can change the settings, or the folder that they are in."""
    for path in (home, file):
        try:
            found = path.stat()
        except OSError:  # whoever reads it says what is wrong
            continue
        if can_others_write(found):
            raise BadConfig(f"Other users can change {path}, and so what Talaria does; run: chmod go-w {path}")
        is_shared = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_IWOTH
        if is_shared and file.exists() and file.stat().st_uid not in (0, os.geteuid()):
            raise BadConfig(f"{file} belongs to another user; set TALARIA_HOME to a folder of your own.")


def can_others_write(found: os.stat_result) -> bool:
    """In a folder such as /tmp others can make files, but not change those that are there."""
    if found.st_mode & stat.S_IWOTH:
        return not (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX)
    return bool(found.st_mode & stat.S_IWGRP) and not _is_own_group(found.st_gid)


def _is_own_group(gid: int) -> bool:
    """Many systems give each person a group of the same name, and let it write by default."""
    try:
        name, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
    except KeyError:  # in a container they often have no names
        return gid == os.getegid()
    return group.gr_name == name and not set(group.gr_mem) - {name}
