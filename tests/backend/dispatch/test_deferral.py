"""Calls of known geometry: one look-up finds them, the device queues them, and their results equal those of direct
calls."""

from __future__ import annotations

import sys

import pytest
import torch

import conformance.backend as backend
from conformance.backend.lazy import calls, flush

pytestmark = pytest.mark.usefixtures("queue")


def twice(function):  # type: ignore[no-untyped-def]
    """Return the result of a repeated call, which is in the queue."""
    function()
    calls.settle()
    return function()


class TestDeferred:
    def test_a_known_geometry_is_not_looked_up_again(self) -> None:
        """The second call runs no meta kernel and builds no value."""
        x = torch.arange(6.0).to("tiny").reshape(2, 3)
        _ = x + x
        calls.settle()
        backend.reset_stats()
        y = x + x
        assert backend.stats()["prepared"] == 0
        assert len(calls.pending()) == 1
        assert y.cpu().tolist() == [[0, 2, 4], [6, 8, 10]]
        assert not calls.pending()

    @pytest.mark.parametrize(("name", "operands"), [("neg", 1), ("relu", 1), ("add", 2), ("sum", 1)])
    def test_python_calls(self, name: str, operands: int) -> None:
        """A known call runs at most 17 functions of the package, and 18 with two operands. Python calls are most of the
        time of a queued call, and their number does not depend on the machine's load."""
        x = torch.arange(6.0).to("tiny") + 1
        method, others = getattr(x, name), [x] * (operands - 1)
        twice(lambda: method(*others))
        names: list[str] = []

        def count(frame, event, _):  # type: ignore[no-untyped-def]
            if event == "call" and frame.f_globals["__name__"].startswith("conformance.backend"):
                names.append(frame.f_code.co_name)

        sys.setprofile(count)
        try:
            result = method(*others)
        finally:
            sys.setprofile(None)
        assert len(calls.pending()) == 2
        assert result.shape == x.shape or name == "sum"
        assert "call" in names  # the counter sees the kernel
        assert len(names) <= 16 + operands, names

    def test_a_result_that_is_dropped_is_not_built(self) -> None:
        """A call whose result is unreachable leaves the queue."""
        x = torch.arange(4.0).to("tiny")
        y = twice(lambda: x * 3)
        del y
        kept = twice(lambda: x * 4)
        assert calls.needed(calls.pending())[0].written[0].owner() is kept.untyped_storage()
        assert kept.cpu().tolist() == [0, 4, 8, 12]

    def test_in_place_and_out(self) -> None:
        """In-place and out= writes are queued in order."""
        x, out = torch.arange(4.0).to("tiny"), torch.zeros(4, device="tiny")
        for _ in range(3):
            x.add_(1)
            torch.mul(x, 2, out=out)
            x.mul_(out)
        expected, other = torch.arange(4.0), torch.zeros(4)
        for _ in range(3):
            expected.add_(1)
            torch.mul(expected, 2, out=other)
            expected.mul_(other)
        assert torch.equal(x.cpu(), expected)
        assert torch.equal(out.cpu(), other)

    def test_the_default_dtype_is_that_of_the_call(self) -> None:
        """A queued comparison uses the default dtype of the call. It once used the default dtype at build time."""
        x = torch.tensor([16777217]).to("tiny")
        torch.set_default_dtype(torch.float64)
        try:
            equal = twice(lambda: x == 16777216.0)
            assert calls.pending()
        finally:
            torch.set_default_dtype(torch.float32)
        assert equal.tolist() == [False]
        assert (x == 16777216.0).tolist() == [True]
        assert (x / 3).dtype is torch.float32

    def test_an_index_out_of_range_raises_at_the_call(self) -> None:
        """An index out of range raises at the call, because a queued call checks its elements first."""
        rows = torch.arange(6.0).to("tiny").reshape(3, 2)
        assert twice(lambda: rows.index_select(0, torch.tensor([2, 0]).to("tiny"))).tolist() == [[4, 5], [0, 1]]
        with pytest.raises(IndexError):
            rows.index_select(0, torch.tensor([3, 0]).to("tiny"))

    def test_a_call_that_warns(self) -> None:
        """A call that warns does so each time, and other calls of its operator are queued. Formerly an operator that
        had warned was never queued."""
        x, small, right = (torch.ones(n, device="tiny") for n in (3, 2, 3))
        for _ in range(3):
            with pytest.warns(UserWarning, match="resized"):
                torch.add(x, x, out=small.resize_(2))
        twice(lambda: torch.add(x, x, out=right))
        assert len(calls.pending()) == 1
        assert right.tolist() == [2.0, 2.0, 2.0]

    def test_a_value_function_that_warns(self) -> None:
        """A call whose value function warns is not queued, even if an equal call came before."""
        x = torch.ones(1, device="tiny") + 1
        for _ in range(3):
            with pytest.warns(UserWarning, match="degrees of freedom"):
                x.var()
        assert not calls.pending()

    def test_a_view_copied_to_itself(self) -> None:
        """`x[i] += 1` ends with a copy of the view to itself. That copy formerly flushed the queue in each
        iteration."""
        x = torch.ones(5, device="tiny")
        for _ in range(2):  # once to learn the geometries
            calls.settle()
            for i in range(5):
                x[i] += 1
        assert len(calls.pending()) == 5
        assert x.tolist() == [3.0] * 5

    def test_operands_in_hand(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Reading an operand must not change an operand that was read before. Formerly the second read stored a queued
        write into the first operand's buffer."""
        monkeypatch.setattr(flush, "IN_PLACE_BYTES", 1)
        monkeypatch.setattr(flush, "IN_PLACE_SHARE", 1)

        def program(device: str, unseen: int) -> torch.Tensor:
            a = torch.arange(8.0).to(device)
            v = a[:2] * 2
            calls.settle()
            a[1:2] += 5
            return torch.add(v, a[1:3], alpha=unseen)

        program("tiny", 2)
        assert torch.equal(program("tiny", 3).cpu(), program("cpu", 3))

    def test_the_queue_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A program that reads nothing does not keep its operands forever."""
        monkeypatch.setattr(calls, "LONGEST", 8)
        monkeypatch.setattr(calls, "_checked_at", 8)
        x = torch.ones(2, device="tiny")
        for _ in range(40):
            x = x + 1
            assert len(calls.pending()) < 8
        assert x.tolist() == [41, 41]

    def test_results_that_are_gone_keep_nothing(self) -> None:
        """A loop that reads nothing discards dead calls at intervals, and their operands are freed."""
        twice(lambda: torch.ones(1000).to("tiny") + 1)
        before = torch.tiny.memory_allocated()
        for _ in range(calls.CHECKED + 1):
            torch.ones(1000).to("tiny") + 1
        assert len(calls.pending()) < calls.CHECKED
        assert torch.tiny.memory_allocated() < before + 2 * 4000

    def test_a_limit_of_memory_lets_the_queue_go(self) -> None:
        """Memory held only by calls with dead results is freed before an allocation is refused."""
        twice(lambda: torch.ones(1000).to("tiny") + 1)
        torch.tiny.empty_cache()
        before = torch.tiny.memory_reserved()
        torch.tiny.set_memory_limit(before + 3 * 4000)
        try:
            for _ in range(9):
                torch.ones(1000).to("tiny") + 1
        finally:
            torch.tiny.set_memory_limit(None)

    def test_numbers_keep_their_sign_and_kind(self) -> None:
        """-0.0 equals 0.0 and 1 equals True as a key, but each number has a separate queued call."""
        x = torch.tensor([1.0, -1.0]).to("tiny")
        numbers = (0.0, -0.0, 0.0, -0.0, float("nan"), float("inf"))
        products = [(x * n).cpu() for n in numbers]
        for n, value in zip(numbers, products, strict=True):
            expected = torch.tensor([1.0, -1.0]) * n
            assert torch.equal(value.isnan(), expected.isnan())
            assert torch.equal(value.signbit() & ~value.isnan(), expected.signbit() & ~expected.isnan())


def test_copies_wait_with_what_they_copy() -> None:
    """A copy of a queued result does not flush the queue."""
    x = torch.arange(6.0).to("tiny").reshape(2, 3)
    y = twice(lambda: x * 2)
    copy = y.t().clone()
    part = torch.zeros(4, device="tiny")
    part[1:3] = y[0, :2]
    assert len(calls.pending()) >= 3
    y.add_(1)
    assert copy.tolist() == [[0, 6], [2, 8], [4, 10]]
    assert part.tolist() == [0, 0, 2, 0]


def test_batch_norm_updates_its_statistics_once() -> None:
    """batch_norm is queued as a whole, and updates its running statistics once."""
    x, mean, var = torch.arange(12.0).reshape(3, 4), torch.zeros(4), torch.ones(4)
    here = [t.to("tiny") for t in (x, mean, var)]
    for _ in range(3):
        expected = torch.nn.functional.batch_norm(x, mean, var, training=True)
        normalized = torch.nn.functional.batch_norm(*here, training=True)
    assert len(calls.pending()) >= 1
    assert torch.allclose(normalized.cpu(), expected, atol=1e-5)
    assert torch.allclose(here[1].cpu(), mean)
    assert torch.allclose(here[2].cpu(), var)
