"""Views and writes on the device, each case one that failed on a real system."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conformance import backend
from conformance.backend import storage

DEVICES = ("cpu", "tiny")


def both(program: Callable[[str], torch.Tensor | list[torch.Tensor]]) -> None:
    """Run a program on the CPU and on tiny; values and geometry must be the same."""
    expected, actual = ([*r] if isinstance(r := program(d), (list, tuple)) else [r] for d in DEVICES)
    for e, a in zip(expected, actual, strict=True):
        assert a.device.type == "tiny"
        assert (a.dtype, a.size(), a.stride(), a.storage_offset()) == (
            e.dtype,
            e.size(),
            e.stride(),
            e.storage_offset(),
        )
        assert torch.equal(a.cpu(), e), f"{a.cpu()} is not {e}"


class TestWritesThroughViews:
    """A write through one view is seen by every other view of the storage."""

    def test_two_views_of_one_base(self) -> None:
        """Write through one, read through the other and through the base."""

        def program(device: str) -> list[torch.Tensor]:
            base = torch.arange(12.0, device=device)
            a, b = base.view(3, 4), base.view(4, 3)
            a[1, 2] = -1
            b.t()[0].add_(100)
            return [base, a, b]

        both(program)

    def test_three_views_chained(self) -> None:
        """Views of views of views, written at the end of the chain."""

        def program(device: str) -> list[torch.Tensor]:
            base = torch.arange(24.0, device=device)
            a = base.view(2, 3, 4)
            b = a.transpose(0, 2)
            c = b[1:3, ::2]
            c.mul_(10)
            return [base, a, b, c]

        both(program)

    def test_views_before_between_and_after(self) -> None:
        """When a view was taken makes no difference to what it sees."""

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
        """A view of a permuted slice, written in place, writes its own elements only."""

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
        """`A.permute(1, 0).copy_(B)`: reading A gives B.T."""

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
        """A write through windows that do not overlap lands where they lie."""

        def program(device: str) -> list[torch.Tensor]:
            a = torch.zeros(10, device=device)
            a.unfold(0, 2, 4).copy_(torch.arange(1.0, 7, device=device).view(3, 2))
            return [a]

        both(program)

    def test_set_and_resize_share_storage(self) -> None:
        """A grown storage stays shared with the views taken before it grew."""

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
    """A value read before a write keeps what it read, whichever is observed first."""

    @pytest.mark.parametrize("read", [lambda x: x * 3, torch.clone, lambda x: x + 0, lambda x: x.flip(0)])
    @pytest.mark.parametrize("observe_first", ["written", "read"])
    def test_old_value_kept(self, read: Callable[[torch.Tensor], torch.Tensor], observe_first: str) -> None:
        """t = f(x); x[1:] = 9: t is of the old x."""
        x = torch.arange(4.0).to("tiny")
        old = x.cpu()
        t = read(x)
        x[1:] = 9
        if observe_first == "written":
            assert x.tolist() == [0, 9, 9, 9]
        assert torch.equal(t.cpu(), read(old))
        assert x.tolist() == [0, 9, 9, 9]

    def test_swap_rows(self) -> None:
        """t = a[0].clone(); a[0] = a[1]; a[1] = t, three times."""

        def program(device: str) -> list[torch.Tensor]:
            a = torch.arange(6.0, device=device).view(2, 3)
            for _ in range(3):
                t = a[0].clone()
                a[0] = a[1]
                a[1] = t
            return [a]

        both(program)

    def test_sum_and_swap_three_times(self) -> None:
        """b = a[0] + a[1]; a[0] = a[1]; a[1] = b: Fibonacci on rows, no cycle."""

        def program(device: str) -> list[torch.Tensor]:
            a = torch.arange(1.0, 7, device=device).view(2, 3)
            for _ in range(3):
                b = a[0] + a[1]
                a[0] = a[1]
                a[1] = b
            return [a]

        both(program)

    def test_reshape_that_copies_does_not_alias(self) -> None:
        """`a[:, 1:3].reshape(-1).zero_()` leaves `a` alone, so do contiguous() and flatten of a permutation."""

        def program(device: str) -> list[torch.Tensor]:
            a = torch.ones(3, 4, device=device)
            a[:, 1:3].reshape(-1).zero_()
            a.t().contiguous().zero_()
            a.view(3, 2, 2).permute(0, 2, 1).flatten(1).zero_()
            return [a]

        both(program)

    def test_random_writes_and_reads(self) -> None:
        """Older values read in any order after later writes, against the CPU."""
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


class TestTinygrad:
    """Where tinygrad 0.14 itself goes wrong, and the device must not."""

    def test_sum_of_a_tensor_joined_with_itself(self) -> None:
        """A reduction over a stack of one value with itself counted elements several times."""
        both(lambda d: torch.cat([x := torch.arange(6.0, device=d).view(2, 3), x]).sum())
        both(lambda d: torch.stack([x := torch.arange(6.0, device=d).view(2, 3), x], 1).sum(0))

    def test_bits_of_a_computed_value(self) -> None:
        """A change of element size inside a kernel was merged with the change back."""
        both(lambda d: (torch.arange(6.0, device=d) * 2).view(torch.uint8).clone().view(torch.float32).mul_(1))

    def test_rounding_to_half_survives_fusion(self) -> None:
        """A cast to half that is cast back within one kernel was dropped, and with it the rounding."""
        special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 65504, 65520, 6e-8, 3e-8, 1.0001, -2.3457])
        both(lambda d: (special.to(d) * 1).half().float())
        both(lambda d: (special.half().to(d) + 1) * 3)

    def test_nan_among_constants(self) -> None:
        """tinygrad counts two nan constants as equal, so that a search for nan found none."""
        both(lambda d: torch.where(torch.tensor([True, False], device=d), torch.ones(2, device=d), torch.nan).isnan())
        both(lambda d: torch.full((2,), torch.nan, device=d).ne(torch.full((2,), torch.nan, device=d)))

    def test_constants_keep_their_width(self) -> None:
        """x + 0 became a number without a width: -1 for 255, and an int where the bits of a uint64 were read."""
        both(lambda d: (lambda a: (a - (a + 1)).to(torch.int32))(torch.arange(5, dtype=torch.uint8).to(d)))
        both(lambda d: (lambda a: a - (a + 1) > 3)(torch.arange(5, dtype=torch.uint8).to(d)))
        both(lambda d: torch.zeros(0, dtype=torch.float64).to(d).sum().amax(0))

    def test_zero_times_infinity(self) -> None:
        """x * 0 became 0 where the zero appeared while a kernel was simplified."""

        def program(d: str) -> list[torch.Tensor]:
            x = torch.tensor([[torch.inf, 2.0], [1.0, 1.0]]).to(d)
            w = torch.ones(2, 2).to(d).requires_grad_()
            y = x @ w
            y[0] = 0
            y.sum().backward()
            assert w.grad is not None
            return [w.grad.isnan()]

        both(program)

    def test_bits_beside_a_bfloat16_write(self) -> None:
        """clang sent bfloat16 elements through float32: denormals became 0, and nans other nans."""

        def program(d: str) -> list[torch.Tensor]:
            bits = torch.tensor([1, 2, 3, 0x7FC1, -5, 0x7F81], dtype=torch.int16).to(d)
            bits.view(torch.bfloat16)[:2].add_(torch.ones(2).to(d))
            bits.view(torch.bfloat16)[1:2] = torch.nan
            return [bits]

        both(program)


class TestOverlap:
    """Copies between views that share some of their memory."""

    @pytest.mark.parametrize(
        "write",
        [lambda a: a.mT.copy_(a), lambda a: a[1:].copy_(a[:-1]), lambda a: a.view(-1)[:1].copy_(a.view(-1)[0])],
    )
    def test_partial_overlap_raises(self, write: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """torch refuses a copy between views that overlap in part, and so does the device."""
        for device in DEVICES:
            with pytest.raises(RuntimeError, match="refer to a single memory location"):
                write(torch.arange(9.0).view(3, 3).to(device))

    def test_bool_fill_through_an_indexed_layout(self) -> None:
        """zero_ of a bool tensor whose strides do not nest."""

        def program(device: str) -> list[torch.Tensor]:
            memory = torch.tensor([False, True] * 4).to(device)
            memory.as_strided((2, 3), (3, 2)).zero_()
            return [memory]

        both(program)


class TestCrossDevice:
    """CPU tensors written into device views."""

    def test_cpu_tensor_into_row(self) -> None:
        """`b[1] = torch.arange(4.)` and `b[1] = torch.tensor(3.)` are not lost."""
        b = torch.zeros(3, 4, device="tiny")
        b[1] = torch.arange(4.0)
        assert b[1].tolist() == [0, 1, 2, 3]
        b[1] = torch.tensor(3.0)
        assert b.cpu().tolist() == [[0] * 4, [3] * 4, [0] * 4]

    def test_copy_between_layouts(self) -> None:
        """Copies between all pairs of a dozen layouts, on the device and across, are exact."""
        layouts = [
            ((3, 4), (4, 1), 0), ((3, 4), (1, 3), 0), ((3, 4), (4, 1), 5), ((3, 4), (10, 2), 1), ((3, 4), (2, 7), 3),
            ((3, 4), (5, 1), 0), ((3, 4), (1, 5), 2), ((3, 4), (13, 3), 0), ((3, 4), (8, 2), 0), ((3, 4), (3, 11), 1),
            ((3, 4), (3, 2), 0), ((3, 4), (2, 3), 1),
        ]  # fmt: skip
        memory = torch.arange(64.0)
        tiny_from = [memory.to("tiny").as_strided(*g) for g in layouts]
        targets, expected = [], []
        for i, g in enumerate(layouts):
            if len(set(torch.arange(64).as_strided(*g).reshape(-1).tolist())) < 12:
                continue
            for j, s in enumerate(layouts):
                base, reference = torch.zeros(64, device="tiny"), torch.zeros(64)
                base.as_strided(*g).copy_(tiny_from[j])
                reference.as_strided(*g).copy_(memory.as_strided(*s))
                targets.append(base)
                expected.append((i, j, reference))
        backend.realize(targets)
        for target, (i, j, reference) in zip(targets, expected, strict=True):
            assert torch.equal(target.cpu(), reference), (layouts[i], layouts[j])


class TestStrides:
    """Geometry is torch's own."""

    def test_empty_strided_has_its_strides(self) -> None:
        """`empty_strided((4, 4), (1, 4))` is not contiguous."""
        t = torch.empty_strided((4, 4), (1, 4), device="tiny")
        assert t.stride() == (1, 4)
        assert not t.is_contiguous()

    def test_view_of_transpose_raises(self) -> None:
        """`a.t().view(6)` raises torch's error."""
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            torch.zeros(2, 3, device="tiny").t().view(6)

    @pytest.mark.parametrize("write", [lambda t: t.add_(1), lambda t: t.mul_(2), lambda t: t.copy_(torch.ones(3))])
    def test_write_to_expanded_raises(self, write: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """A write to an expanded tensor raises torch's own error."""
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            write(torch.zeros(1, 3, device="tiny").expand(2, 3))

    def test_flip_and_windows(self) -> None:
        """flip copies; unfold windows overlap and read right."""
        both(lambda d: [torch.arange(6.0, device=d).view(2, 3).flip(1), torch.arange(7.0, device=d).unfold(0, 3, 2)])

    def test_diag_and_diag_embed(self) -> None:
        """torch.diag, and diag_embed with offset and dims."""
        both(lambda d: torch.diag(torch.tensor([1, 2, 3], device=d)))
        both(lambda d: torch.diag_embed(torch.arange(6.0, device=d).view(2, 3), offset=1, dim1=0, dim2=2))

    def test_circular_pad_with_backward(self) -> None:
        """Circular padding, forward and backward."""

        def program(device: str) -> list[torch.Tensor]:
            x = torch.arange(12.0, device=device).view(1, 3, 4).requires_grad_()
            y = torch.nn.functional.pad(x, (1, 2), mode="circular")
            (y * torch.arange(21.0, device=device).view(1, 3, 7)).sum().backward()
            assert x.grad is not None
            return [y.detach(), x.grad]

        both(program)

    def test_unique_data_pointers(self) -> None:
        """Storages have addresses of their own, and views point into them."""
        a, b = torch.zeros(4, device="tiny"), torch.zeros(4, device="tiny")
        assert a.data_ptr() != b.data_ptr()
        assert a[2:].data_ptr() == a.data_ptr() + 8
        assert a.view(2, 2).is_set_to(a.view(2, 2))


class TestLoops:
    """Loops of setitem cost neither a kernel nor a graph node for each turn."""

    @pytest.mark.parametrize("n", [10, 1000])
    def test_setitem_loop(self, n: int) -> None:
        """`for i in range(N): a[i] = i` with a view alive: right, and at most 3 kernels however large N is."""
        a = torch.zeros(n, device="tiny")
        view = a.view(2, n // 2)
        backend.reset_stats()
        for i in range(n):
            a[i] = i
        assert a.tolist() == list(range(n))
        assert torch.equal(view.cpu(), torch.arange(float(n)).view(2, -1))
        assert backend.stats()["kernels"] <= 3

    def test_writes_of_one_element_and_of_many(self) -> None:
        """Of numbers written to equal places the last stays, whatever the sizes of the writes in between."""

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
        """1,000 steps of `x += y; loss = x.sum(); loss.item()`: the graph and the kernels of a step stay the same."""
        x, y = torch.zeros(8, device="tiny"), torch.ones(8, device="tiny")
        sizes, kernels = [], []
        for _ in range(1000):
            before = backend.stats()["kernels"]
            x += y
            loss = x.sum()
            loss.item()
            kernels.append(backend.stats()["kernels"] - before)
            sizes.append(storage.graph_size())
        assert x.tolist() == [1000.0] * 8
        assert max(sizes[2:]) == min(sizes[2:])
        assert max(kernels[2:]) == min(kernels[2:])

    def test_chain_without_observation_is_cut(self) -> None:
        """2,000 functional updates that nobody looks at do not build a graph of 2,000 operations."""
        x = torch.zeros(4, device="tiny")
        largest = 0
        for i in range(2000):
            x = x + 1
            if i % 50 == 0:
                largest = max(largest, storage.graph_size())
        assert x.tolist() == [2000.0] * 4
        assert largest < 3 * storage.MAX_DEPTH


class TestStoredInPlace:
    """Small writes into large buffers go to the buffer's own memory, and nobody who read it before notices."""

    @pytest.fixture(autouse=True)
    def _every_buffer_is_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(storage, "IN_PLACE_BYTES", 1)
        monkeypatch.setattr(storage, "IN_PLACE_SHARE", 1)

    @settings(max_examples=25)
    @example([(0, 1, 0), (0, 0, 0), (0, 1, 0)])
    @given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=8))
    def test_any_order_of_reads_and_writes(self, moves: list[tuple[int, int, int]]) -> None:
        """Reads, copies and writes of rows and columns in any order, observed at the end, against the CPU."""

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
        """`v = a[:4] * 2; a[0] = 5; v + a[1:5]` read v after a's buffer had been written: it came out as 10 + a[1]."""

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
        """A write of a realized buffer's row runs no kernel over the rest."""
        a = torch.arange(64.0).to("tiny").view(8, 8)
        b = a.clone()
        backend.reset_stats()
        a[3] = 5
        a[4, 2:4] = 6
        assert a.cpu()[3:5, 2:4].tolist() == [[5, 5], [6, 6]]
        assert b.cpu().tolist() == torch.arange(64.0).view(8, 8).tolist()
        assert backend.stats()["stored"] >= 1
        assert backend.stats()["kernels"] <= 1


class TestCalls:
    """Calls that torch's meta kernels answer otherwise than the CPU."""

    def test_out_that_is_a_smaller_input(self) -> None:
        """`mul(x, y, out=x)` with a larger result raises instead of resizing what it reads."""
        for device in DEVICES:
            x = torch.ones(5, 1).to(device)
            with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
                torch.mul(x, torch.ones(5).to(device), out=x)

    def test_checks_of_a_call_on_nothing(self) -> None:
        """A call whose result has no elements still raises what the CPU raises."""
        for device in DEVICES:
            with pytest.raises(RuntimeError, match="dtypes match"):
                torch.empty(0, device=device).index_put_((), torch.empty(0, dtype=torch.int8, device=device))

    def test_strides_of_a_rolled_permuted_layout(self) -> None:
        """Where the meta kernel forgets a permuted layout the strides are the CPU's."""
        both(lambda d: torch.arange(20.0, device=d).as_strided((2, 2, 2, 2), (12, 1, 4, 2)).roll(1, 0))

    def test_shared_parameters_stay_shared(self) -> None:
        """A module's move keeps parameters that were used in two places one parameter."""
        words, head = torch.nn.Embedding(3, 3), torch.nn.Linear(3, 3, bias=False)
        head.weight = words.weight
        both_ = torch.nn.ModuleList([words, head]).to("tiny")
        assert both_[0].weight is both_[1].weight
        assert both_[0].weight.device.type == "tiny"
        assert both_.cpu()[0].weight is both_[1].weight


def test_a_cut_computes_what_lives_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value grown too deep was realized alone; live values which it is computed from were computed again later."""
    monkeypatch.setattr(storage, "MAX_DEPTH", 32)
    w, x = torch.eye(4).to("tiny"), torch.ones(2, 4).to("tiny")
    kept = []
    backend.reset_stats()
    for _ in range(20):
        x = (x @ w).relu()
        kept.append(x)
    assert sum(k.sum() for k in kept).item() == 160
    assert backend.stats()["kernels"] <= 24  # 20 values and their sum; 42 when each was computed twice


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8, torch.int16, torch.float16, torch.int64])
@pytest.mark.parametrize("target", [torch.float32, torch.float64, torch.int32])
def test_a_narrower_value_written_into_a_few_elements_leaves_the_others(dtype, target):
    """tinygrad sent every element through the narrower dtype: a bool in one element turned all others into 0 and 1."""
    whole = (torch.arange(9) * 100 + 0.5).to(target)

    def program(device):
        x = whole.clone().to(device)
        x[:1] = x[1:2].to(dtype)
        x[4:6] = torch.tensor([1, 0]).to(dtype).to(device)
        return x

    both(program)


def test_a_graph_that_tinygrads_vectorizer_breaks_is_computed():
    """Writes to a diagonal and through a mask of a slice ended in "bad reshape: () -> (6, 6)" inside tinygrad."""

    def program(device):
        b = torch.arange(36.0).to(device).view(3, 2, 2, 3)
        b.diagonal(-1, 3, 0).masked_fill_(torch.tensor(False, device=device), 0)
        rows = torch.tensor([[2.0, 3, 4], [5, 6, 7]], device=device)
        b[2][torch.tensor([True, True], device=device)] = rows
        return b

    both(program)


MIXED: dict[str, Callable[[str], torch.Tensor]] = {
    "neg out=": lambda d: torch.neg(torch.ones(2).to(d), out=torch.ones(2, dtype=torch.float64).to(d)),
    "sort out=": lambda d: torch.sort(
        torch.ones(2).to(d), out=(torch.ones(2, dtype=torch.float64).to(d), torch.ones(2, dtype=torch.int64).to(d))
    )[0],
    "any out=": lambda d: torch.any(torch.ones(2).to(d), out=torch.tensor(0).to(d)),
    "index_select out=": lambda d: torch.index_select(
        torch.arange(3).to(d), 0, torch.tensor([1]).to(d), out=torch.ones(1).to(d)
    ),
    "index_add_": lambda d: torch.ones(3).to(d).index_add_(0, torch.tensor([1]).to(d), torch.ones(1).half().to(d)),
}


class TestDtypesTogether:
    """Dtypes that only a CPU kernel refuses, and not torch's meta kernel."""

    @pytest.mark.parametrize("name", MIXED)
    def test_refused_as_on_the_cpu(self, name: str) -> None:
        """The CPU's error, and nothing written."""
        with pytest.raises(RuntimeError) as expected:
            MIXED[name]("cpu")
        with pytest.raises(RuntimeError) as actual:
            MIXED[name]("tiny")
        assert str(actual.value) == str(expected.value)

    def test_sum_is_taken_in_the_dtype_of_out(self) -> None:
        """A sum of float32 into float64 is rounded once, a cumulative sum into integers truncates what it adds."""
        both(lambda d: torch.sum(torch.full((7,), 0.1).to(d), 0, out=torch.tensor(0.0, dtype=torch.float64).to(d)))
        both(lambda d: torch.cumsum(torch.full((4,), 0.7).to(d), 0, out=torch.zeros(4, dtype=torch.int64).to(d)))

    def test_complex_out_of_real_arguments(self) -> None:
        """A real result is written into a complex tensor with imaginary parts of zero."""
        both(lambda d: torch.add(torch.ones(2).to(d), 1, out=torch.zeros(2, dtype=torch.complex64).to(d)))


def test_a_constant_is_written_through_stride_0() -> None:
    """Every element gets one value, so torch allows it; a tensor of the same shape it does not."""
    for device in ("cpu", "tiny"):
        a = torch.zeros(1).to(device).expand(2)
        a.fill_(2.0)
        assert a.tolist() == [2.0, 2.0]
        with pytest.raises(RuntimeError, match="more than one element"):
            a.add_(torch.ones(2).to(device))
