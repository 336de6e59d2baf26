"""Scans, sorts and distinct elements of large tensors: values equal the CPU's, in little memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
import torch

import conformance.backend as backend
from conformance.backend.dispatch import fallback
from conformance.backend.ops import dynamic, scan
from conformance.backend.runtime import allocations
from conformance.backend.runtime.memory import device_name
from tests.backend.ops.test_indexing import check, on_both

INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)


class TestScan:
    @pytest.fixture(autouse=True)
    def long(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Run short lines as loops too."""
        monkeypatch.setattr(scan, "LONG", 3)

    @pytest.mark.parametrize("name", ["cumsum", "cumprod"])
    @pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool, torch.float16, torch.float32, torch.float64], ids=str)
    def test_values(self, name: str, dtype: torch.dtype) -> None:
        """Each dtype and dimension has the CPU's values; integers wrap, and float32 is accumulated in float64."""
        x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1)) * 3
        x = x.ne(0) if dtype is torch.bool else (x.abs() if dtype is torch.uint8 else x).to(dtype)
        for dim in range(3):
            check(lambda t, d=dim: getattr(t, name)(d), x)
        check(lambda t: getattr(t.transpose(0, 2), name)(1), x)

    @pytest.mark.parametrize("out", [torch.int8, torch.int64, torch.float64], ids=str)
    def test_other_dtypes(self, out: torch.dtype) -> None:
        """The elements are converted before they are added."""
        check(lambda t: t.cumsum(0, dtype=out), torch.tensor([100.5, -0.25, 60.0, 3.75, 120.0]))

    def test_nan_and_signed_zeros(self) -> None:
        """nan and inf spread to all later elements, and zeros have the CPU's sign."""
        x = torch.tensor([-0.0, -0.0, 1.0, float("inf"), -float("inf"), 2.0])
        for name in ("cumsum", "cumprod"):
            expected, actual = on_both(lambda t, n=name: getattr(t, n)(0), x)
            assert str(actual.tolist()) == str(expected.tolist())

    def test_kernels(self) -> None:
        """A scan is one kernel, also when the call is queued."""
        for _ in range(3):
            x = torch.arange(7.0).to("tiny")
            x.cpu()
            before = backend.stats()["kernels"]
            assert x.cumsum(0).tolist() == [0, 1, 3, 6, 10, 15, 21]
            assert backend.stats()["kernels"] == before + 1


class TestUnique:
    @pytest.fixture(autouse=True)
    def chunks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Sort few elements in chunks too."""
        monkeypatch.setattr(dynamic, "CHUNK", 16)

    @pytest.mark.parametrize("dtype", INTEGERS, ids=str)
    @pytest.mark.parametrize("inverse", [False, True])
    @pytest.mark.parametrize("counts", [False, True])
    def test_values(self, dtype: torch.dtype, inverse: bool, counts: bool) -> None:
        """Elements, inverse and counts equal the CPU's, for any shape and strides, and for many distinct elements."""
        few = torch.randint(0, 7, (5, 11), generator=torch.Generator().manual_seed(1)).sub(3).to(dtype)
        for x in (few, few.t(), few[1:, ::2], torch.arange(60).to(dtype)):
            expected = torch.unique(x, return_inverse=inverse, return_counts=counts)
            actual = torch.unique(x.to("tiny"), return_inverse=inverse, return_counts=counts)
            assert len(actual) == len(expected)
            for a, e in zip(actual, expected, strict=True):
                assert a.device.type == "tiny" and a.dtype is e.dtype and a.cpu().equal(e)


class TestMemory:
    """Growth of buffers and of Python's memory at the peak, below three times the bytes of inputs and results."""

    def growth(self, call: Callable[[], torch.Tensor]) -> int:
        call()  # compiles
        used = allocations.usage(device_name()).in_use
        before = used.peak = used.current
        tracemalloc.start()
        result = call()
        host = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        del result
        return used.peak - before + host

    def test_scan(self) -> None:
        """A running sum of bytes holds no partial results: only its result is allocated."""
        x = torch.ones(scan.LONG, dtype=torch.int8).to("tiny")
        grown = self.growth(lambda: backend.realize([y := x.cumsum(0)]) or y)
        assert 8 * scan.LONG <= grown < 1.1 * 8 * scan.LONG

    @pytest.mark.parametrize("op", sorted(map(str, fallback.ONLY_READ)))
    def test_operators_that_read(self, op: str) -> None:
        """The CPU's kernels of these operators write none of their arguments, which share the device's memory."""
        name, _, overload = op.removeprefix("aten.").partition(".")
        kernel = getattr(getattr(torch.ops.aten, name), overload)
        assert not any(a.alias_info is not None and a.alias_info.is_write for a in kernel._schema.arguments)
        x = torch.tensor([5, 3, 9, 3, 1, 0, 7]).to("tiny")
        more = {"topk": (3,), "kthvalue": (2,), "unique_dim": (0,), "median": (0,) if overload == "dim" else ()}
        flags = {"stable": True} if overload == "stable" else {}
        fallback.run_on_cpu(kernel, (x, *more.get(name, ())), flags)
        assert x.tolist() == [5, 3, 9, 3, 1, 0, 7]

    def test_results_are_no_views_of_the_operand(self) -> None:
        """A result of such a call keeps its values when the operand is written."""
        x = torch.tensor([1, 2, 3]).to("tiny")
        values, _ = fallback.run_on_cpu(torch.ops.aten.sort.default, (x,), {})
        x.zero_()
        assert values.tolist() == [1, 2, 3]
