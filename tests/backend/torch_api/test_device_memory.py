"""Memory functions of torch.tiny and torch.accelerator. Formerly they did not exist, or failed with assertions of
torch's C++."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch

import conformance.backend as backend

SIZE = 1 << 20  # bytes of the tensors below, a size that no other tensor has


@pytest.fixture(autouse=True)
def unlimited() -> Iterator[None]:
    block()  # the device's allocations at its first use, whichever test is first
    gc.collect()  # frees tensors kept by the traceback of an earlier test
    torch.tiny.empty_cache()
    yield
    torch.tiny.set_memory_limit(None)


def block() -> torch.Tensor:
    """Return a computed tensor of SIZE bytes."""
    tensor = torch.arange(SIZE // 4, dtype=torch.int32).to("tiny")
    backend.realize([tensor])
    return tensor


class TestFigures:
    """Bytes in use and reserved, with their peaks and totals."""

    def test_a_buffer_counts_until_it_dies(self) -> None:
        before = torch.tiny.memory_allocated()
        held = block()
        assert torch.tiny.memory_allocated() == before + SIZE
        del held
        assert torch.tiny.memory_allocated() == before

    def test_a_lazy_value_occupies_nothing(self) -> None:
        held = block()
        before = torch.tiny.memory_allocated()
        doubled = held * 2
        assert torch.tiny.memory_allocated() == before
        backend.realize([doubled])
        assert torch.tiny.memory_allocated() == before + SIZE

    def test_memory_is_kept_for_reuse_until_the_cache_is_emptied(self) -> None:
        reserved = torch.tiny.memory_reserved()
        held = block()
        assert torch.tiny.memory_reserved() == reserved + SIZE
        del held
        assert torch.tiny.memory_reserved() == reserved + SIZE
        again = block()
        assert torch.tiny.memory_reserved() == reserved + SIZE, "the block that was kept is used again"
        del again
        torch.tiny.empty_cache()
        assert torch.tiny.memory_reserved() == torch.tiny.memory_allocated()

    def test_the_peak_is_that_since_its_reset(self) -> None:
        torch.tiny.reset_peak_memory_stats()
        before = torch.tiny.memory_allocated()
        held = [block(), block()]
        del held
        assert torch.tiny.max_memory_allocated() == before + 2 * SIZE
        torch.tiny.reset_peak_memory_stats()
        assert torch.tiny.max_memory_allocated() == torch.tiny.memory_allocated()

    def test_totals_of_what_was_allocated_and_freed(self) -> None:
        torch.tiny.reset_accumulated_memory_stats()
        held = block()
        del held
        stats = torch.tiny.memory_stats()
        assert stats["allocated_bytes.all.allocated"] == stats["allocated_bytes.all.freed"] == SIZE

    @pytest.mark.parametrize(
        "name", ["memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_stats"]
    )
    def test_torch_accelerator_says_the_same(self, name: str) -> None:
        held = block()
        assert getattr(torch.accelerator, name)() == getattr(torch.tiny, name)()
        del held

    def test_an_empty_host_cache(self) -> None:
        """empty_host_cache works. It formerly ended the process."""
        torch.accelerator.empty_host_cache()

    def test_nested_names(self) -> None:
        nested = torch.tiny.memory_stats_as_nested_dict()
        assert nested["allocated_bytes"]["all"]["current"] == torch.tiny.memory_allocated()

    def test_older_names(self) -> None:
        assert torch.tiny.memory_cached() == torch.tiny.memory_reserved()
        assert torch.tiny.max_memory_cached() == torch.tiny.max_memory_reserved()
        torch.tiny.reset_max_memory_cached()
        torch.tiny.reset_max_memory_allocated()
        assert torch.tiny.max_memory_allocated() == torch.tiny.memory_allocated()

    def test_free_and_total_memory(self) -> None:
        free, total = torch.accelerator.get_memory_info()
        assert total == torch.tiny.get_device_properties().total_memory
        assert free == total - torch.tiny.memory_allocated()

    def test_summary(self) -> None:
        assert "in use" in torch.tiny.memory_summary()


class TestLimit:
    """Beyond a limit the device raises torch's OutOfMemoryError and continues to work."""

    @pytest.mark.parametrize(
        "limit",
        [
            torch.tiny.set_memory_limit,
            lambda nbytes: torch.tiny.set_per_process_memory_fraction(
                (nbytes + 0.5) / torch.tiny.get_device_properties().total_memory
            ),
        ],
    )
    def test_a_buffer_past_it(self, limit: Callable[[int], None]) -> None:
        limit(torch.tiny.memory_reserved() + SIZE + SIZE // 2)
        first = block()
        with pytest.raises(torch.OutOfMemoryError, match=r"tried to allocate 1 MiB"):
            block()
        assert torch.tiny.memory_stats()["num_ooms"] >= 1
        del first
        assert block().sum().item() == sum(range(SIZE // 4))

    def test_what_was_lazy_is_computed_once_there_is_room(self) -> None:
        held = block()
        torch.tiny.set_memory_limit(torch.tiny.memory_reserved())
        doubled = held * 2
        with pytest.raises(torch.OutOfMemoryError):
            doubled.cpu()
        torch.tiny.set_memory_limit(None)
        assert doubled[3].item() == 6

    def test_kept_memory_is_given_back_before_it_raises(self) -> None:
        held = block()
        torch.tiny.set_memory_limit(torch.tiny.memory_reserved())
        del held
        other = torch.arange(SIZE // 8, dtype=torch.int32).to("tiny")
        assert other[5].item() == 5

    def test_a_fraction_is_read_back(self) -> None:
        assert torch.tiny.get_per_process_memory_fraction() == 1
        torch.tiny.set_per_process_memory_fraction(0.5)
        assert torch.tiny.get_per_process_memory_fraction() == pytest.approx(0.5, abs=1e-6)

    def test_a_storage_larger_than_the_device(self) -> None:
        """A storage larger than the device raises immediately. Formerly it was a tensor of zeros that raised
        MemoryError, or ended the process, at its first use."""
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(torch.tiny.get_device_properties().total_memory + 1, dtype=torch.uint8, device="tiny")

    @pytest.mark.parametrize("fraction", [-0.1, 1.5])
    def test_a_fraction_that_is_none(self, fraction: float) -> None:
        with pytest.raises(ValueError, match="0 to 1"):
            torch.tiny.set_per_process_memory_fraction(fraction)
