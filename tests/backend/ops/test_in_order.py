"""Many writes by index as a loop: results equal the CPU's, in one kernel and little memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
import torch

import conformance.backend as backend
from conformance.backend.ops import in_order
from conformance.backend.runtime import allocations
from conformance.backend.runtime.memory import device_name
from tests.backend.ops.test_indexing import check, on_both
from tests.backend.ops.test_pages import CALLS

Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
COUNT, WRITES = 97, 61
REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")
DTYPES = (torch.int8, torch.uint8, torch.int64, torch.bool, torch.float32, torch.float64)
REFUSED = {("index_add", torch.bool), ("scatter mean", torch.bool), ("mean", torch.bool)}  # by torch CPU
WHOLE = {name: call for name, call in CALLS.items() if name not in ("rows", "columns", "index_fill", "masked_scatter")}


@pytest.fixture
def looped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run few writes as a loop too."""
    monkeypatch.setattr(in_order, "MANY", 4)


def drawn(dtype: torch.dtype, count: int) -> torch.Tensor:
    """Small integers in a dtype; the sums of int8 wrap around."""
    torch.manual_seed(count)
    low = 0 if dtype in (torch.uint8, torch.bool) else -100
    return torch.randint(low, 2 if dtype is torch.bool else 127, (count,)).to(dtype)


@pytest.mark.usefixtures("looped")
class TestValues:
    @pytest.mark.parametrize(
        ("name", "dtype"), [(n, d) for n in WHOLE for d in DTYPES if (n, d) not in REFUSED], ids=str
    )
    def test_writes(self, name: str, dtype: torch.dtype) -> None:
        """Each operator gives the CPU's values at repeated and at other places, for each kind of dtype."""
        index = torch.randint(COUNT, (WRITES,), generator=torch.Generator().manual_seed(1))
        index = index.unique() if name == "index_copy" else index
        check(WHOLE[name], drawn(dtype, COUNT), index, drawn(dtype, len(index)))

    @pytest.mark.parametrize("include_self", [True, False])
    @pytest.mark.parametrize(
        ("reduce", "dtype"),
        [(r, d) for r in REDUCTIONS for d in (*DTYPES, torch.float16) if (r, d) not in REFUSED],
        ids=str,
    )
    def test_reductions(self, reduce: str, include_self: bool, dtype: torch.dtype) -> None:
        """Each reduction gives the CPU's values, with and without the old elements."""
        index = torch.tensor([5, 0, 5, 96, 5, 7, 0])
        call = lambda x, i, v: x.scatter_reduce(0, i, v, reduce, include_self=include_self)  # noqa: E731
        values = torch.tensor([3, 1, 2, 1, 0, 2, 1]).to(dtype)
        check(call, drawn(dtype, COUNT) % 4 if dtype is not torch.bool else drawn(dtype, COUNT), index, values)

    def test_last_write_wins(self) -> None:
        """The last of several writes to one place remains."""
        index = torch.tensor([3, 1, 3, 3, 1, 96])
        check(lambda x, i, v: x.index_put((i,), v), torch.zeros(COUNT), index, torch.arange(6.0) + 1)

    def test_rows_and_two_indices(self) -> None:
        """Whole rows are written, by one index and by two with negative elements."""
        i, j = torch.tensor([1, -1, 0, 1, 1]), torch.tensor([2, -3, 0, 2, 1])
        base, rows = torch.arange(24.0).reshape(2, 3, 4), torch.arange(20.0).reshape(5, 4)
        check(lambda x, a, b, v: x.index_put((a, b), v, accumulate=True), base, i, j, rows)
        check(lambda x, a, v: x.index_put((a,), v, accumulate=True), base, i, rows[:, None].expand(5, 3, 4))
        check(lambda x, a, v: torch.ops.aten.index_put(x, [None, a], v, True), base, j, torch.tensor(2.0))

    def test_nan_and_signed_zeros(self) -> None:
        """Sums and extremes keep nan; an unwritten -0.0 and a written -0.0 keep their sign."""
        x, v = torch.tensor([-0.0, 1.0, float("nan"), -0.0]), torch.tensor([float("nan"), 1.0, 2.0, -0.0, -0.0])
        i = torch.tensor([1, 2, 2, 3, 3])
        for call in (
            lambda x, i, v: x.index_add(0, i, v),
            lambda x, i, v: x.scatter_reduce(0, i, v, "amax"),
            lambda x, i, v: x.index_put((i,), v),
        ):
            expected, actual = on_both(call, x, i, v)
            assert str(actual.tolist()) == str(expected.tolist())

    def test_embedding(self) -> None:
        """The gradient of an embedding, a call that may be queued, equals the CPU's."""
        tokens, grad = torch.tensor([3, 0, 3, 5, 3, 1]), torch.arange(24.0).reshape(6, 4)
        call = lambda g, t: torch.ops.aten.embedding_dense_backward(g, t, 7, 0, False)  # noqa: E731
        for _ in range(3):
            check(call, grad, tokens)

    def test_out_of_range(self) -> None:
        """An index out of range raises, and nothing is written."""
        x, i = torch.zeros(8, device="tiny"), torch.tensor([0, 1, 2, 8], device="tiny")
        with pytest.raises(IndexError):
            x.index_put_((i,), torch.ones(4, device="tiny"), accumulate=True)
        assert x.cpu().eq(0).all()


class TestCost:
    @pytest.mark.parametrize("name", ["index_put accumulate", "scatter_add", "index_put"])
    def test_memory_is_below_three_times_what_is_held(self, name: str) -> None:
        """Buffers and NumPy's arrays together stay below three times the bytes of inputs and result.

        Formerly an accumulating index_put of 2^27 bytes took more than 6 GiB.
        """
        writes, call = 2 * in_order.MANY, CALLS[name]
        x = torch.ones(writes, dtype=torch.int8, device="tiny")
        i = torch.arange(writes).flip(0).contiguous().to("tiny")
        v = torch.full((writes,), 3, dtype=torch.int8).to("tiny")
        x.cpu()
        call(x, i, v).cpu()  # compiles
        used = allocations.usage(device_name()).in_use
        before = used.peak = used.current
        tracemalloc.start()
        call(x, i, v).cpu()
        host = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert 0 < used.peak - before + host < 3 * (i.nbytes + x.nbytes + v.nbytes)

    @pytest.mark.usefixtures("looped")
    def test_kernels(self) -> None:
        """The writes are one kernel, for another index and another number of repetitions too."""
        x = torch.arange(50.0).to("tiny")
        for index in ([1, 2, 3, 4, 5], [7, 7, 7, 7, 7]):
            i, v = torch.tensor(index).to("tiny"), torch.arange(5.0).to("tiny")
            x.cpu()
            before = backend.stats()["kernels"]
            x.index_add_(0, i, v).cpu()
            assert backend.stats()["kernels"] == before + 1
