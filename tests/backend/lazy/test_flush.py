"""The time when lazy values are computed: a graph too deep for one schedule is cut."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

from conformance import backend
from conformance.backend.lazy import calls, flush
from conformance.backend.lazy.storage import LazyStorage


def test_a_cut_computes_what_lives_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut computes all live values of the graph once. Formerly it realized only the deepest value, and live values
    below it were computed again."""
    monkeypatch.setattr(flush, "MAX_DEPTH", 32)
    w, x = torch.eye(4).to("tiny"), torch.ones(2, 4).to("tiny")
    kept = []
    backend.reset_stats()
    for _ in range(20):
        x = (x @ w).relu()
        kept.append(x)
    assert sum(k.sum() for k in kept).item() == 160
    assert backend.stats()["kernels"] <= 24  # 20 values and their sum; 42 when each was computed twice


def test_temporary_results_do_not_change_the_kernels_of_a_cut() -> None:
    """The first call of a formula in C++ and its later calls take the same number of kernels. Only in the first call
    are the formula's temporary results alive when its graph is cut; formerly each was stored by a kernel."""
    counts = []
    for _ in range(2):
        x = torch.linspace(-3, 3, 37).to("tiny").requires_grad_()
        backend.reset_stats()
        y = torch.special.log_ndtr(x)
        (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
        gradient.cpu(), y.detach().cpu()
        counts.append(backend.stats()["kernels"])
    assert counts == [3, 3]


def test_cells_die_while_a_cut_looks_at_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A garbage collection during a cut is safe. It formerly raised "dictionary changed size during iteration"."""
    monkeypatch.setattr(flush, "MAX_DEPTH", 16)
    end_loop = flush.end_loop

    def collecting(lazy: LazyStorage) -> None:
        gc.collect()
        end_loop(lazy)

    monkeypatch.setattr(flush, "end_loop", collecting)
    x, looped = torch.ones(4).to("tiny"), torch.zeros(8).to("tiny")
    cycle = [x + 1]
    cycle.append(cycle)  # only the garbage collector frees it
    for i in range(4):
        looped[i] += 1
    del cycle
    gc.disable()
    try:
        for _ in range(20):
            x = x.sin() * 2
    finally:
        gc.enable()
    assert looped.sum().item() == 4


class TestReadsOfKnownContents:
    """A read of numbers that are in memory computes no other tensor, so that writes between such reads stay together.

    Formerly each turn of the first loop was a kernel: the read of `places[i]` also computed what the last turn wrote.
    """

    def count(self, write: Callable[[torch.Tensor, torch.Tensor, int], None]) -> tuple[int, list[float]]:
        """Return the number of kernels of a loop of 32 writes at places that tiny holds, and the result."""
        kernels = 0
        for _ in range(2):  # the first calls describe their geometries
            x, places = torch.zeros(32).to("tiny"), torch.arange(32).flip(0).to("tiny")
            before = backend.stats()["kernels"]
            for i in range(32):
                write(x, places, i)
            result = x.tolist()
            kernels = backend.stats()["kernels"] - before
        return kernels, result

    def test_numbers_at_places(self) -> None:
        def write(x: torch.Tensor, places: torch.Tensor, i: int) -> None:
            x[places[i]] = i

        assert self.count(write) == (0, [31.0 - i for i in range(32)])

    def test_the_read_sees_a_write(self) -> None:
        """A storage that was written is not known, however it was written."""
        for write in (
            lambda x: x.add_(1),
            lambda x: x[0].fill_(5),
            lambda x: x[1:].mul_(2),
            lambda x: x.copy_(x.flip(0)),
        ):
            seen = []
            for device in ("tiny", "cpu"):
                x, other = torch.arange(4).to(device), torch.arange(4).to(device)
                seen.append([])
                for _ in range(3):
                    other.add_(1)
                    write(x)
                    seen[-1] += [x[0].item(), x[2].item(), other[1].item()]
            assert seen[0] == seen[1]


class TestWaitingWrites:
    @pytest.mark.parametrize("call", [
        lambda x, i, v: x.index_add_(0, i, v),
        lambda x, i, v: x.scatter_(0, i, v),
        lambda x, i, v: x.index_fill_(0, i, 1.0),
        lambda x, i, v: x.index_copy_(0, i, v),
        lambda x, i, v: x.put_(i, v),
    ])  # fmt: skip
    def test_an_empty_index_writes_nothing(self, call) -> None:
        """From the second call on, the rehearsal of the write reshaped a buffer of one element to none."""
        index, values = torch.zeros(0, dtype=torch.int64, device="tiny"), torch.zeros(0, device="tiny")
        for _ in range(3):
            assert call(torch.ones(3, device="tiny"), index, values).tolist() == [1, 1, 1]

    def test_an_empty_index_has_a_gradient(self) -> None:
        """As the writes above: the backward pass of a selection adds by the same index."""
        index = torch.zeros(0, dtype=torch.int64, device="tiny")
        for _ in range(3):
            x = torch.ones(3, 2, device="tiny", requires_grad=True)
            (x.index_select(0, index).sum() + torch.nn.functional.embedding(index, x).sum()).backward()
            assert x.grad is not None and x.grad.tolist() == [[0, 0]] * 3

    def test_tables_of_positions_do_not_pile_up(self) -> None:
        """A write by an index waits with a table of all positions of its tensor, 4 MB here: 450 writes held 1.7 GB."""
        x, right = torch.zeros(1_000_000, device="tiny"), torch.zeros(1_000_000)
        held = []
        for number in range(60):
            index = torch.arange(number, number + 8)
            x.index_add_(0, index.to("tiny"), torch.ones(8, device="tiny"))
            right.index_add_(0, index, torch.ones(8))
            held.append(sum(array.nbytes for call in calls.pending() for array in call.arrays))
        assert 0 < max(held) <= calls.MOST_BYTES and torch.equal(x.cpu(), right)


def test_two_copies_of_one_large_buffer_are_both_written() -> None:
    """The first copy's write went to the old buffer, which the second copy's write had left to it."""
    x = torch.ones(1 << 19, device="tiny") * 2
    float(x[0])
    copy = x.clone()
    x[3], copy[4] = -1.0, -2.0
    assert x[:6].tolist() == [2, 2, 2, -1, 2, 2] and copy[:6].tolist() == [2, 2, 2, 2, -2, 2]


def test_reading_computed_elements_prepares_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """`all(x)` reads one element after the other. Formerly each read changed the garbage collector's threshold, as
    building a graph does, and a million of them took two minutes."""
    x = torch.arange(4).to("tiny") < 3
    x.cpu()
    elements = x.unbind()
    changes: list[int] = []
    monkeypatch.setattr(gc, "set_threshold", lambda *numbers: changes.extend(numbers))
    assert [bool(element) for element in elements] == [True, True, True, False] and not changes
