"""Few writes into many places: results equal the CPU's, and the cost depends on the number of writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import conformance.backend as backend
from conformance.backend.dispatch import transfer
from conformance.backend.ops import pages
from tests.backend.ops.test_indexing import check

COUNT = 1003
CALLS: dict[str, Callable[..., torch.Tensor]] = {
    "index_put": lambda x, i, v: x.index_put_((i,), v),
    "index_put accumulate": lambda x, i, v: x.index_put_((i,), v, accumulate=True),
    "index_add": lambda x, i, v: x.index_add_(0, i, v, alpha=2),
    "index_copy": lambda x, i, v: x.index_copy_(0, i, v),
    "index_fill": lambda x, i, v: x.index_fill_(0, i, 9),
    "scatter_add": lambda x, i, v: x.scatter_add_(0, i, v),
    "scatter mean": lambda x, i, v: x.scatter_reduce_(0, i, v, "mean"),
    "scatter amax": lambda x, i, v: x.scatter_reduce_(0, i, v, "amax", include_self=False),
    "put": lambda x, i, v: x.put_(i, v, accumulate=True),
    "masked_scatter": lambda x, i, v: x.masked_scatter_(x.eq(COUNT - 2), v),
    "rows": lambda x, i, v: x[:1000].view(250, 4).index_put_((i.remainder(250),), v[:, None], accumulate=True),
    "columns": lambda x, i, v: x[:1000].view(4, 250).index_fill_(1, i.remainder(250), 3),
}
REPEATS = {"index_put accumulate", "index_add", "index_fill", "scatter_add", "scatter mean", "scatter amax", "put"}


@pytest.fixture
def paged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use pages for small tensors too."""
    monkeypatch.setattr(pages, "PAGED", 200)


class TestByPages:
    @pytest.mark.parametrize("name", CALLS)
    @pytest.mark.parametrize("index", [[COUNT - 1], [3, 900, 4], [COUNT - 1, 3, COUNT - 1, 64, 3, 63, 65]])
    def test_writes(self, paged: None, name: str, index: list[int]) -> None:
        """Written places and all others equal the CPU's, on the first page, on the incomplete last page, and at page
        ends."""
        index = index if name in REPEATS else list(dict.fromkeys(index))
        place = torch.tensor(index)
        check(CALLS[name], torch.arange(COUNT), place, torch.arange(len(index)) + 100)

    def test_booleans(self, paged: None) -> None:
        """Accumulated booleans combine by "or"."""
        values = torch.tensor([True, False])
        check(CALLS["index_put accumulate"], torch.zeros(COUNT).bool(), torch.tensor([7, COUNT - 1]), values)

    def test_many_writes_have_no_pages(self, paged: None) -> None:
        """Many writes use a table of all places, which is smaller than the pages."""
        check(CALLS["index_put accumulate"], torch.zeros(COUNT), torch.arange(COUNT) // 2, torch.ones(COUNT))

    def test_tables_are_small(self, paged: None, monkeypatch: pytest.MonkeyPatch) -> None:
        """No table has an entry for each place. Formerly a write into 2 GiB of int8 needed an int64 of host memory for
        each byte, and an accumulating index_put took 20 GiB."""
        sizes: list[int] = []
        full = np.full

        def noted(shape: Any, *rest: Any, **more: Any) -> Any:
            sizes.append(int(np.prod(shape)))
            return full(shape, *rest, **more)

        monkeypatch.setattr(np, "full", noted)
        x = torch.arange(1 << 16).to("tiny")
        x.index_put_((torch.tensor([5, 60_000]),), torch.tensor([1, 2], device="tiny"), accumulate=True)
        assert x[[4, 5, 60_000]].tolist() == [4, 6, 60_002]
        assert sizes and max(sizes) <= 1 << 10

    def test_kernels(self, paged: None) -> None:
        """Pages take at most two kernels more than a table: one reads the old content, one stores the new content."""
        x, index = torch.arange(COUNT).to("tiny"), torch.tensor([3, 7], device="tiny")
        x.cpu()
        before = backend.stats()["kernels"]
        x.index_fill_(0, index, 5).cpu()
        assert backend.stats()["kernels"] - before <= 3


class TestConstants:
    def test_a_part_is_read_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Reading a few elements of a constant tensor costs only these elements. Formerly each read created the whole
        tensor on the host, so that reading 2 GiB in pieces took minutes."""
        monkeypatch.setattr(transfer, "host_bytes", lambda *_: pytest.fail("the whole storage is made"))
        x = torch.full((1 << 31,), 7, dtype=torch.uint8, device="tiny")
        assert x[-3:].cpu().tolist() == [7, 7, 7]

    @pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float64, torch.complex64, torch.int8])
    def test_copies_are_tensors_of_their_own(self, dtype: torch.dtype) -> None:
        """A copy of a constant tensor is dense and writable, and other views of its bytes equal the CPU's."""
        for make in (torch.ones, torch.zeros):
            check(lambda x: x[1:], make(4, dtype=dtype))
            host = make(4, dtype=dtype, device="tiny")[::2].cpu()
            assert host.stride() == (1,) and host.zero_().equal(torch.zeros(2, dtype=dtype))
            seen = make(4, dtype=dtype, device="tiny").view(torch.uint8).cpu()
            assert seen.equal(make(4, dtype=dtype).view(torch.uint8))
