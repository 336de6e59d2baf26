"""Kernels written as loops: order of stores, number of kernels, and separate results."""

from __future__ import annotations

import pytest
import torch
from tinygrad.dtype import dtypes
from tinygrad.helpers import Context
from tinygrad.uop.ops import UOp

from conformance.backend import kernels
from conformance.backend.runtime import memory, scheduler
from conformance.backend.runtime.loop_kernels import Array, LoopProgram, kernel
from conformance.backend.torch_api import compile as compiled


def run(write, shape, *inputs):
    """Return the only output of a program over float32 inputs as a list."""
    values = [memory.from_host(memoryview(torch.tensor(x).numpy()), dtypes.float32, "CPU") for x in inputs]
    (out,) = kernel(write, [(shape, dtypes.float32)], values, "CPU")
    (done,), _ = scheduler.realize([out], "CPU")
    return torch.frombuffer(bytearray(memory.to_host(done)), dtype=torch.float32).tolist()


def halves(p: LoopProgram, total: Array, x: Array) -> None:
    """Store a running sum in float16, where each sum is rounded."""
    sum_ = p.local(dtypes.float16, 0.0)
    for i in p.loop(len(x)):
        sum_[0] = sum_[0] + x[i]
        total[i] = sum_[0]


def running_sum(p: LoopProgram, total: Array, x: Array) -> None:
    """Store a running sum: each iteration reads the value that the previous one stored."""
    sum_ = p.local(dtypes.float32, 0.0)
    for i in p.loop(len(x)):
        sum_[0] = sum_[0] + x[i]
        total[i] = sum_[0]


def reverse(p: LoopProgram, out: Array, x: Array) -> None:
    """Swap elements in place, so that each store overwrites the next operand."""
    n = len(x)
    for i in p.loop(n):
        out[i] = x[i]
    for i in p.loop(n // 2):
        kept = p.keep(out[i])
        out[i] = out[n - 1 - i]
        out[n - 1 - i] = kept


def count(p: LoopProgram, out: Array, x: Array) -> None:
    """Count with constant conditions, and with a condition that depends on an element."""
    out[0] = 0.0
    out.set(0, 100.0, where=UOp.const(False, dtypes.bool))
    for i in p.loop(len(x)):
        out.set(0, out[0] + 1.0, where=x[i] > 2)


class TestPrograms:
    """Results of loop programs."""

    @pytest.mark.parametrize("n", [1, 2, 5])
    def test_running_sum(self, n):
        """A running sum is right for one element, which needs no loop. Regression test: tinygrad dropped all stores
        before a store that changes nothing."""
        x = [float(i + 1) for i in range(n)]
        assert run(running_sum, (n,), x) == torch.tensor(x).cumsum(0).tolist()

    @pytest.mark.parametrize("emulated", ["", "half"])
    def test_emulated_floats(self, emulated: str) -> None:
        """Arrays and values of the program may have a dtype that the device does not have. Regression test: tinygrad
        refused the kernel of `grid_sample` in float16 on OpenCL."""
        x = torch.tensor([1.0, 2.0**-11, 3 * 2.0**-11, 0.5, 2.0**-12]).half()
        with Context(EMULATED_DTYPES=emulated):
            value = memory.from_host(memoryview(x.numpy()), dtypes.float16, "CPU")
            (out,) = kernel(halves, [((5,), dtypes.float16)], [value], "CPU")
            (done,), _ = scheduler.realize([out], "CPU")
            sums = torch.frombuffer(bytearray(memory.to_host(done)), dtype=torch.float16)
        rounded = [1.0]
        for element in x[1:]:
            rounded.append((torch.tensor(rounded[-1]).half() + element).item())
        assert sums.tolist() == rounded
        assert rounded[-1] != x.double().sum().item()

    @pytest.mark.parametrize("n", [1, 2, 7])
    def test_swaps(self, n):
        """A kept value survives a store to its source."""
        x = [float(i + 1) for i in range(n)]
        assert run(reverse, (n,), x) == x[::-1]

    @pytest.mark.parametrize("n", [1, 4])
    def test_conditions(self, n):
        """A store with a false condition changes neither the element nor the order of earlier stores."""
        x = [float(i + 1) for i in range(n)]
        assert run(count, (1,), x) == [sum(y > 2 for y in x)]

    def test_stale_value_is_refused(self):
        """A stale load is refused. tinygrad cannot order a load before a store, so the load may return the new
        value."""

        def stale(p: LoopProgram, out: Array, x: Array) -> None:
            old = out[0]
            out[0] = x[0]
            out[1] = old

        with pytest.raises(RuntimeError, match="keep it"):
            run(stale, (2,), [1.0])


def matrix(k=0):
    """Return a batch of matrices that need pivots."""
    torch.manual_seed(k)
    return torch.randn(2, 4, 4)


class TestScheduling:
    """Loop kernels among other kernels."""

    def test_outputs_come_from_one_run(self):
        """One run of the kernel writes all outputs, whichever is read first. Formerly each read ran it again."""
        x = matrix().to("tiny")
        with kernels.count() as k:
            lu, pivots, info = torch.linalg.lu_factor_ex(x)
            seen = [t.cpu() for t in (pivots, info)]
            assert k.kernels == 1
            lu.cpu()
        assert k.kernels == 2  # the cast to float32
        for mine, expected in zip(seen, torch.linalg.lu_factor_ex(matrix())[1:], strict=True):
            assert torch.equal(mine, expected)

    def test_repeated_runs_have_results_of_their_own(self):
        """Results of repeated runs stay separate when a cached schedule runs again, whether already read or not."""
        factors = [torch.linalg.lu_factor(matrix(k).to("tiny")) for k in range(5)]
        read_now = [lu.cpu() for lu, _ in factors]
        for k, (lu, pivots) in enumerate(factors):
            expected = torch.linalg.lu_factor(matrix(k))
            torch.testing.assert_close((read_now[k], lu.cpu(), pivots.cpu()), (expected[0], expected[0], expected[1]))

    def test_what_is_computed_on_the_way_stays_as_it_is(self):
        """Intermediate values of a cached schedule share one buffer, and no result may read from it later."""
        results = []
        for k in range(5):
            x, lu, pivots, _ = torch.ops.aten._linalg_solve_ex(matrix(k).to("tiny"), torch.ones(2, 4, 1).to("tiny"))
            results.append((x.cpu(), lu, pivots))
        for k, (x, lu, pivots) in enumerate(results):
            expected = torch.ops.aten._linalg_solve_ex(matrix(k), torch.ones(2, 4, 1))[:3]
            torch.testing.assert_close((x, lu.cpu(), pivots.cpu()), expected)

    def test_compiled_runs_have_results_of_their_own(self):
        """A recorded graph gives each run separate output buffers. Formerly the second run overwrote the first
        one's."""
        torch._dynamo.reset()
        factor = torch.compile(lambda a: torch.linalg.lu_factor_ex(a)[:2], backend=compiled.tiny)
        results = [factor(matrix(k).to("tiny")) for k in range(3)]
        for k, result in enumerate(results):
            torch.testing.assert_close(tuple(t.cpu() for t in result), tuple(torch.linalg.lu_factor_ex(matrix(k))[:2]))
