"""Writes through views and in place, loops of writes, and reads between them. Each case failed on a real system."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conformance import backend
from conformance.backend import kernels
from conformance.backend.lazy import flush
from conformance.backend.lazy.storage import LAZY
from tests.backend.agreement import DEVICES, both


def graph_size() -> int:
    """Return the number of distinct tinygrad nodes in lazy values. A loop that reads a value at each step keeps it
    constant."""
    seen = set()
    for storage in list(LAZY.values()):
        flush.apply_pending(storage)
        seen.update(storage.base_value().toposort())
    return len(seen)


class TestWritesThroughViews:
    """A write through one view is visible through every other view of the storage."""

    def test_two_views_of_one_base(self) -> None:
        """A write through one view is read through the other view and through the base."""

        def program(device: str) -> list[torch.Tensor]:
            base = torch.arange(12.0, device=device)
            a, b = base.view(3, 4), base.view(4, 3)
            a[1, 2] = -1
            b.t()[0].add_(100)
            return [base, a, b]

        both(program)

    def test_three_views_chained(self) -> None:
        """A write at the end of a chain of views is visible through every view."""

        def program(device: str) -> list[torch.Tensor]:
            base = torch.arange(24.0, device=device)
            a = base.view(2, 3, 4)
            b = a.transpose(0, 2)
            c = b[1:3, ::2]
            c.mul_(10)
            return [base, a, b, c]

        both(program)

    def test_views_before_between_and_after(self) -> None:
        """A view sees the same writes at whatever time it was created."""

        def program(device: str) -> list[torch.Tensor]:
            base = torch.zeros(4, 4, device=device)
            before = base[1]
            base[1:3, 1] = 5
            between = base.diagonal()
            before[0] = 7
            between.add_(1)
            after = base.t()
            return [base, before, between, after]

        both(program)

    def test_view_of_permuted_slice_in_place(self) -> None:
        """An in-place write to a view of a permuted slice changes only its own elements."""

        def program(device: str) -> list[torch.Tensor]:
            base = torch.arange(60.0, device=device).view(3, 4, 5)
            part = base[1:, ::2].permute(2, 0, 1)[1:4]
            part.sub_(1000)
            return [base, part]

        both(program)

    def test_zero_through_slice_seen_by_earlier_view(self) -> None:
        """`b = a.view(2, 2); a[1:].zero_(); b` shows the zeros."""

        def program(device: str) -> list[torch.Tensor]:
            a = torch.ones(4, device=device)
            b = a.view(2, 2)
            a[1:].zero_()
            return [b]

        both(program)

    def test_copy_through_permute(self) -> None:
        """After `A.permute(1, 0).copy_(B)`, A equals B.T."""

        def program(device: str) -> list[torch.Tensor]:
            a = torch.zeros(3, 4, device=device)
            a.permute(1, 0).copy_(torch.arange(12.0, device=device).view(4, 3))
            return [a]

        both(program)

    def test_diagonal_fill(self) -> None:
        """diagonal().fill_ writes the diagonal."""

        def program(device: str) -> list[torch.Tensor]:
            a = torch.zeros(3, 5, device=device)
            a.diagonal(1).fill_(3)
            a.diagonal(-1).copy_(torch.arange(2.0, device=device))
            return [a]

        both(program)

    def test_write_through_unfold(self) -> None:
        """A write through windows that do not overlap changes the right elements."""

        def program(device: str) -> list[torch.Tensor]:
            a = torch.zeros(10, device=device)
            a.unfold(0, 2, 4).copy_(torch.arange(1.0, 7, device=device).view(3, 2))
            return [a]

        both(program)

    def test_nothing_of_an_expanded_tensor_is_written(self) -> None:
        """A write to no elements of an expanded tensor is allowed. It formerly raised, as a write through overlapping
        memory."""

        def program(device: str) -> torch.Tensor:
            wide = torch.arange(3.0, device=device).expand(4, 3)
            wide[:0] = 0
            wide[:0] = torch.zeros(3, device=device)
            return wide[:0].copy_(torch.zeros(0, 3, device=device))

        both(program)

    @pytest.mark.parametrize(("size", "stride"), [((2, 3), (3, 2)), ((2, 4), (3, 2))])
    def test_writes_through_interleaved_rows_are_one_kernel(self, size: tuple[int, ...], stride: tuple[int, ...]):
        """Interleaved rows are read and written in one kernel. Formerly each write took two kernels and a copy in."""

        def program(device: str) -> torch.Tensor:
            base = torch.arange(30.0).to(device)
            view = base.as_strided(size, stride, 1)
            view.add_(1)
            view.mul_(view)
            view.masked_fill_(view > 9, 0)
            return base

        with kernels.count() as counted:
            both(program)
        assert (counted.kernels, counted.copies_in) == (1, 1)

    def test_set_and_resize_share_storage(self) -> None:
        """A grown storage stays shared with earlier views."""

        def program(device: str) -> list[torch.Tensor]:
            a = torch.arange(4.0, device=device)
            view = a[1:3]
            a.resize_(2, 4)
            a[1] = 9
            view.mul_(2)
            other = torch.empty(0, device=device).set_(a.untyped_storage(), 2, (2, 2), (3, 1))
            other.add_(1)
            return [a, view, other]

        both(program)


class TestReadsBeforeWrites:
    """A value read before a write keeps the old content, in either order of observation."""

    @pytest.mark.parametrize("read", [lambda x: x * 3, torch.clone, lambda x: x + 0, lambda x: x.flip(0)])
    @pytest.mark.parametrize("observe_first", ["written", "read"])
    def test_old_value_kept(self, read: Callable[[torch.Tensor], torch.Tensor], observe_first: str) -> None:
        """t = f(x); x[1:] = 9: t is computed from the old x."""
        x = torch.arange(4.0).to("tiny")
        old = x.cpu()
        t = read(x)
        x[1:] = 9
        if observe_first == "written":
            assert x.tolist() == [0, 9, 9, 9]
        assert torch.equal(t.cpu(), read(old))
        assert x.tolist() == [0, 9, 9, 9]

    @pytest.mark.parametrize("first", [lambda a: a[0].clone(), lambda a: a[0] + a[1]])
    def test_swap_rows(self, first: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """t = a[0]; a[0] = a[1]; a[1] = t, three times. With a[0] + a[1] it computes Fibonacci numbers on rows, without
        a cycle."""

        def program(device: str) -> list[torch.Tensor]:
            a = torch.arange(1.0, 7, device=device).view(2, 3)
            for _ in range(3):
                t = first(a)
                a[0] = a[1]
                a[1] = t
            return [a]

        both(program)

    def test_reshape_that_copies_does_not_alias(self) -> None:
        """`a[:, 1:3].reshape(-1).zero_()` does not change `a`, and neither do contiguous() and flatten of a
        permutation."""

        def program(device: str) -> list[torch.Tensor]:
            a = torch.ones(3, 4, device=device)
            a[:, 1:3].reshape(-1).zero_()
            a.t().contiguous().zero_()
            a.view(3, 2, 2).permute(0, 2, 1).flatten(1).zero_()
            return [a]

        both(program)

    def test_random_writes_and_reads(self) -> None:
        """Older values, read in any order after later writes, equal the CPU's."""
        generator = torch.Generator().manual_seed(3)
        for _ in range(5):
            moves = torch.randint(0, 4, (8, 3), generator=generator).tolist()

            def program(device: str, moves: list[list[int]] = moves) -> list[torch.Tensor]:
                a = torch.arange(16.0, device=device).view(4, 4)
                kept = []
                for kind, i, j in moves:
                    if kind == 0:
                        a[i] = a[j] * 2
                    elif kind == 1:
                        a[:, j] = float(i)
                    elif kind == 2:
                        kept.append(a[i] + a[:, j])
                    else:
                        a.t()[j].add_(a[i].clone())
                return [*kept[::-1], a]

            both(program)


class TestOverlap:
    """Copies between views that share some of their memory."""

    @pytest.mark.parametrize(
        "write", [lambda a: a.mT.copy_(a), lambda a: a[1:].copy_(a[:-1]), lambda a: a.view(-1)[:1].copy_(a.view(-1)[0])]
    )
    def test_partial_overlap_raises(self, write: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """The device refuses a copy between partially overlapping views, as torch does."""
        for device in DEVICES:
            with pytest.raises(RuntimeError, match="refer to a single memory location"):
                write(torch.arange(9.0).view(3, 3).to(device))

    def test_bool_fill_through_an_indexed_layout(self) -> None:
        """zero_ of a bool tensor whose strides do not nest is right."""

        def program(device: str) -> list[torch.Tensor]:
            memory = torch.tensor([False, True] * 4).to(device)
            memory.as_strided((2, 3), (3, 2)).zero_()
            return [memory]

        both(program)


class TestLoops:
    """A loop of setitem needs neither a kernel nor a graph node for each iteration."""

    @pytest.mark.parametrize("n", [10, 1000])
    def test_setitem_loop(self, n: int) -> None:
        """`for i in range(N): a[i] = i` with a live view is right, with at most 3 kernels for any N."""
        a = torch.zeros(n, device="tiny")
        view = a.view(2, n // 2)
        backend.reset_stats()
        for i in range(n):
            a[i] = i
        assert a.tolist() == list(range(n))
        assert torch.equal(view.cpu(), torch.arange(float(n)).view(2, -1))
        assert backend.stats()["kernels"] <= 3

    def test_writes_of_one_element_and_of_many(self) -> None:
        """The last of several numbers written to one place remains, whatever the sizes of the writes between."""

        def written(device: str) -> torch.Tensor:
            a = torch.full((12,), -0.0, device=device)
            for i in (3, 4, 3, -1, 3):
                a[i] = i + 0.5
            a[2:6] = 7
            for i in (5, 11, 5):
                a[i] = i - 0.5
            a[::5] = -0.0
            a[10] = 2
            return a.view(torch.int32).cpu()

        assert torch.equal(written("tiny"), written("cpu"))

    def test_dependent_loop(self) -> None:
        """A loop `a[i] = a[i-1] + 1` is right."""
        a = torch.zeros(100, device="tiny")
        for i in range(1, 100):
            a[i] = a[i - 1] + 1
        assert a.tolist() == list(range(100))

    def test_increment_loop(self) -> None:
        """A loop `a[i] += i` is right."""
        a = torch.ones(40, device="tiny")
        for i in range(40):
            a[i] += i
        assert a.tolist() == [1 + i for i in range(40)]

    def test_observed_loop_stays_flat(self) -> None:
        """1,000 steps of `x += y; loss = x.sum(); loss.item()` have a constant graph size and a constant number of
        kernels."""
        x, y = torch.zeros(8, device="tiny"), torch.ones(8, device="tiny")
        sizes, kernels = [], []
        for _ in range(1000):
            before = backend.stats()["kernels"]
            x += y
            loss = x.sum()
            loss.item()
            kernels.append(backend.stats()["kernels"] - before)
            sizes.append(graph_size())
        assert x.tolist() == [1000.0] * 8
        assert max(sizes[2:]) == min(sizes[2:])
        assert max(kernels[2:]) == min(kernels[2:])

    def test_chain_without_observation_is_cut(self) -> None:
        """2,000 functional updates without a read do not build a graph of 2,000 operations."""
        x = torch.zeros(4, device="tiny")
        largest = 0
        for i in range(2000):
            x = x + 1
            if i % 50 == 0:
                largest = max(largest, graph_size())
        assert x.tolist() == [2000.0] * 4
        assert largest < 3 * flush.MAX_DEPTH


class TestStoredInPlace:
    """Small writes into large buffers go to the buffer's memory, and earlier readers keep the old content."""

    @pytest.fixture(autouse=True)
    def _every_buffer_is_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(flush, "IN_PLACE_BYTES", 1)
        monkeypatch.setattr(flush, "IN_PLACE_SHARE", 1)

    @settings(max_examples=25)
    @example([(0, 1, 0), (0, 0, 0), (0, 1, 0)])
    @given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=8))
    def test_any_order_of_reads_and_writes(self, moves: list[tuple[int, int, int]]) -> None:
        """Reads, copies and writes of rows and columns in any order equal the CPU's at the end."""

        def program(device: str) -> list[torch.Tensor]:
            a = torch.arange(16.0).to(device).view(4, 4)
            kept: list[torch.Tensor] = []
            for kind, i, j in moves:
                if kind == 0:
                    a[i] = a[j].clone() * 2
                elif kind == 1:
                    a[:, j] = float(i)
                elif kind == 2:
                    kept.append(a[i] + a[:, j])
                elif kind == 3:
                    kept.append(a.clone())
                elif kind == 4:
                    a[i, 1:3].add_(kept[-1].flatten()[:2] if kept else 1)
                else:
                    kept.append(a.t() * 1)
            return [*kept, a]

        both(program)

    @settings(max_examples=40)
    @given(
        st.lists(st.tuples(st.sampled_from("cipvsdwm"), *[st.integers(0, 5)] * 2, st.integers(1, 3)), max_size=10),
        st.booleans(),
    )
    def test_operands_in_hand(self, moves: list[tuple[str, int, int, int]], derived: bool) -> None:
        """An operand read before a write keeps its value. `v = a[:4] * 2; a[0] = 5; v + a[1:5]` formerly read v after
        the write to a's buffer, and gave 10 + a[1]."""

        def program(device: str) -> list[torch.Tensor]:
            a = torch.arange(8.0).to(device)
            b = a * 3 if derived else torch.arange(8.0).add(50).to(device)
            lazy, kept = [a[:1] * 2], []
            for kind, i, j, n in moves:
                if kind == "c":
                    a[i] = float(j)
                elif kind == "i":
                    a[i : i + n] += j
                elif kind == "p":
                    b[i] += a[j]
                elif kind == "v":
                    lazy.append((a if n > 1 else b)[i : i + 2] * 2)
                elif kind == "s":
                    kept.append(lazy[-1] + a[i] + b[j])
                elif kind == "d":
                    kept.append(torch.stack([a[j], b[i], a[i]]))
                elif kind == "w":
                    a[i : i + 1] = lazy[-1][:1]
                else:
                    torch.add(lazy[-1][:1], b[i], out=a[j : j + 1])
            return [*kept, *lazy, a, b]

        both(program)

    def test_it_happens(self) -> None:
        """A write to a row of a realized buffer runs no kernel over the other rows."""
        a = torch.arange(64.0).to("tiny").view(8, 8)
        b = a.clone()
        backend.reset_stats()
        a[3] = 5
        a[4, 2:4] = 6
        assert a.cpu()[3:5, 2:4].tolist() == [[5, 5], [6, 6]]
        assert b.cpu().tolist() == torch.arange(64.0).view(8, 8).tolist()
        assert backend.stats()["stored"] >= 1
        assert backend.stats()["kernels"] <= 1


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8, torch.int16, torch.float16, torch.int64])
@pytest.mark.parametrize("target", [torch.float32, torch.float64, torch.int32])
def test_a_narrower_value_written_into_a_few_elements_leaves_the_others(dtype, target):
    """A write of a narrower dtype keeps all other elements. tinygrad formerly cast every element to the narrower dtype:
    one bool turned all others into 0 and 1."""
    whole = (torch.arange(9) * 100 + 0.5).to(target)

    def program(device):
        x = whole.clone().to(device)
        x[:1] = x[1:2].to(dtype)
        x[4:6] = torch.tensor([1, 0]).to(dtype).to(device)
        return x

    both(program)


def test_a_constant_is_written_through_stride_0() -> None:
    """fill_ through stride 0 is allowed, because every element gets one value. A tensor of the same shape is refused,
    as in torch."""
    for device in ("cpu", "tiny"):
        a = torch.zeros(1).to(device).expand(2)
        a.fill_(2.0)
        assert a.tolist() == [2.0, 2.0]
        with pytest.raises(RuntimeError, match="more than one element"):
            a.add_(torch.ones(2).to(device))
