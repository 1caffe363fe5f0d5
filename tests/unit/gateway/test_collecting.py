"""The garbage collector, while a gateway runs and afterwards."""

import gc

from talaria.gateway.service import GC_THRESHOLDS, infrequent_collection


def test_the_collector_is_as_it_was_afterwards() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with infrequent_collection():
        assert gc.get_threshold() == GC_THRESHOLDS
        assert gc.get_freeze_count() > frozen
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() <= frozen
