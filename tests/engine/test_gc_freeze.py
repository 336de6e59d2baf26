"""Imports that the garbage collector does not scan."""

from __future__ import annotations

import gc

import pytest

from conformance.engine.gc_freeze import gc_freeze


class Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.mark.parametrize("enabled", [True, False])
def test_no_collection_in_the_block_nor_of_it_later(enabled: bool) -> None:
    """The block runs no collection, whatever it allocates; afterwards the collector is restored, and objects of the
    block stay frozen."""
    (gc.enable if enabled else gc.disable)()
    try:
        before, frozen = [generation["collections"] for generation in gc.get_stats()], gc.get_freeze_count()
        with gc_freeze():
            cycles = [Cycle() for _ in range(5_000)]
            assert [generation["collections"] for generation in gc.get_stats()] == before
        assert gc.isenabled() is enabled
        assert gc.get_freeze_count() >= frozen + 5_000
        number = id(cycles[0])
        assert all(id(each) != number for each in gc.get_objects())
    finally:
        gc.enable()
