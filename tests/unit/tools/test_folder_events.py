"""Events about new files, as the kernel brings them."""

import shutil
import sys
from pathlib import Path

import pytest

from talaria.core.trees import Root
from talaria.tools.folder_events import FolderEvents

LIMIT = Path("/proc/sys/fs/inotify/max_queued_events")


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is for Linux")
def test_nobody_is_forgotten_when_events_are_lost(tmp_path: Path) -> None:
    """Neither who was told before, and whose folder has gone, nor who missed something."""
    events = FolderEvents()
    subscriptions = [events.subscribe(lambda _, __: True, lambda: None) for _ in range(2)]
    for subscription, name in zip(subscriptions, ("gone", "busy"), strict=True):
        (tmp_path / name).mkdir()
        with Root.open(tmp_path / name) as folder:
            subscription.watch(folder, name)
    (tmp_path / "gone/file").touch()
    shutil.rmtree(tmp_path / "gone")
    here, there = tmp_path / "busy/one", tmp_path / "busy/two"
    here.touch()
    for _ in range(int(LIMIT.read_text())):
        here.rename(there)
        here, there = there, here
    assert events.read() == {*subscriptions}
    assert [one.is_complete for one in subscriptions] == [True, False]
    assert "gone/file" in subscriptions[0].take_names()
    events.close()
