"""Replay of steps that equal an earlier one, without building their graphs.

The tests cover every way to observe a difference.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tinygrad.helpers import Context
from torch import nn

import conformance.backend as backend
from conformance.backend.lazy import calls, steps
from conformance.backend.lazy.storage import storage_of
from conformance.backend.runtime.counters import COUNTERS

Look = Callable[[int, nn.Module, torch.Tensor], object]


pytestmark = pytest.mark.usefixtures("queue")


def train(look: Look, turns: int = 9, sizes: tuple[int, ...] = (4,), zero: bool = True) -> list[object]:
    """Return the losses of a small training loop on tiny, and the result of `look` at each iteration."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 80), nn.ReLU(), nn.Linear(80, 3)).to("tiny")
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    data = torch.arange(48.0).sin().reshape(8, 6)
    seen: list[object] = []
    for turn in range(turns):
        x = data[: sizes[turn % len(sizes)]].to("tiny")
        if zero or turn % 2 == 0:
            optimizer.zero_grad()
        out = net(x)
        loss = nn.functional.cross_entropy(out, torch.zeros(len(x), dtype=torch.int64).to("tiny"))
        loss.backward()
        optimizer.step()
        seen += [loss.item(), look(turn, net, out)]
    return seen


def nothing(turn: int, net: nn.Module, out: torch.Tensor) -> object:
    """Return None without reading anything but the loss."""
    return None


def gradient(turn: int, net: nn.Module, out: torch.Tensor) -> object:
    """Read a gradient, which the step has left lazy, at some iterations."""
    return net[0].weight.grad.sum().item() if turn % 3 == 2 else None  # type: ignore[union-attr,operator]


def output(turn: int, net: nn.Module, out: torch.Tensor) -> object:
    """Read the output of the network from before its parameters changed."""
    return out.tolist() if turn > 5 else None


def parameter(turn: int, net: nn.Module, out: torch.Tensor) -> object:
    """Write to a parameter, as clipping weights does."""
    with torch.no_grad():
        net[2].weight.clamp_(-0.1, 0.1)  # type: ignore[union-attr,operator]
        if turn == 6:
            net[0].weight[1, 2] = 0.5  # type: ignore[index]
    return net[2].weight.abs().max().item() if turn % 2 else None  # type: ignore[union-attr,operator]


_kept: list[torch.Tensor] = []


def keeping(turn: int, net: nn.Module, out: torch.Tensor) -> object:
    """Keep results of earlier steps, and read them later."""
    _kept.append(out.detach())
    _kept.append(net[0].weight.detach().clone())  # type: ignore[union-attr,operator]
    if turn < 7:
        return None
    sums = [t.sum().item() for t in _kept]
    _kept.clear()
    return sums


LOOKS = [nothing, gradient, output, parameter, keeping]


class TestReplay:
    @pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.__name__)
    def test_what_is_seen_is_the_same(self, look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
        """Results are bit-identical with replay on and off, for any reads between the steps."""
        replayed = train(look)
        monkeypatch.setattr(steps, "ENABLED", False)
        assert train(look) == replayed

    @pytest.mark.parametrize("sizes", [(4, 3), (4, 4, 4, 2)])
    def test_steps_of_several_sizes(self, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        """Steps of several sizes have separate records."""
        replayed = train(nothing, 12, sizes)
        monkeypatch.setattr(steps, "ENABLED", False)
        assert train(nothing, 12, sizes) == replayed

    def test_gradients_are_added_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A gradient that an earlier step left lazy is an operand of the next one."""
        replayed = train(gradient, 10, zero=False)
        monkeypatch.setattr(steps, "ENABLED", False)
        assert train(gradient, 10, zero=False) == replayed

    def test_a_replayed_step_builds_nothing(self) -> None:
        """A replayed step builds no graph, looks up no schedule or metadata, and runs as many kernels as before."""
        kernels: list[tuple[int, ...]] = []

        def count(turn: int, net: nn.Module, out: torch.Tensor) -> object:
            stats = backend.stats()
            kernels.append((stats["kernels"], stats["replayed"], stats["prepared"]))
            return None

        backend.reset_stats()
        train(count, 12)
        each = [tuple(b - a for a, b in zip(x, y, strict=True)) for x, y in zip(kernels, kernels[1:], strict=False)]
        assert [replayed for _, replayed, _ in each[-4:]] == [1] * 4
        assert [prepared for _, _, prepared in each[-4:]] == [0] * 4
        assert len({k for k, _, _ in each[3:]}) == 1

    def test_dropout_and_computed_labels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Steps with a new dropout mask as operand, and steps that end at an index computed by the queue, are
        replayed."""

        def program() -> list[float]:
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)).to("tiny")
            labels = torch.tensor([0, 1, 2, 1]).to("tiny")
            data, losses = torch.arange(24.0).sin().reshape(4, 6).to("tiny"), []
            for _ in range(9):
                shifted = nn.functional.pad(labels, (0, 1), value=2)[1:]
                loss = nn.functional.cross_entropy(net(data), shifted)
                loss.backward()
                with torch.no_grad():
                    for parameter in net.parameters():
                        parameter.sub_(parameter.grad, alpha=0.1)
                        parameter.grad = None
                losses.append(loss.item())
            return losses

        before = COUNTERS.replayed
        replayed = program()
        assert COUNTERS.replayed - before > 9  # more than one per iteration
        monkeypatch.setattr(steps, "ENABLED", False)
        assert program() == replayed

    def test_a_buffer_that_somebody_else_holds(self) -> None:
        """A step that writes a parameter in place is not replayed if a copy shares the parameter's buffer."""
        w = torch.arange(8192.0).to("tiny")
        for turn in range(6):
            x = w.clone() if turn == 5 else None
            w.mul_(0.5).add_(1)
            total = w.sum().item()
        expected = torch.arange(8192.0)
        for _ in range(6):
            before = expected.clone()
            expected.mul_(0.5).add_(1)
        assert total == pytest.approx(expected.sum().item())
        assert x is not None
        assert torch.equal(x.cpu(), before)


class TestNumberOfReplays:
    """Steps that are replayed although something beside them changed. Each test counts the replays of the last turn."""

    TURNS = 12

    def test_beside_a_lazy_result(self) -> None:
        """A lazy result of an earlier step, which this step does not use, stays lazy."""
        x, w = torch.arange(4.0).to("tiny"), torch.arange(4.0).to("tiny")
        for turn in range(self.TURNS):
            before = COUNTERS.replayed
            lazy = x * 2
            w.add_(1)
            assert w.tolist() == [2.0 * turn + i + 1 for i in range(4)]
            w.add_(1)
            assert w.tolist() == [2.0 * turn + i + 2 for i in range(4)]
            assert lazy.tolist() == [0.0, 2.0, 4.0, 6.0]
        assert COUNTERS.replayed - before == 3

    def test_after_a_write_in_place(self) -> None:
        """A replayed step leaves no storage that the next step would have to compute."""
        w, other = torch.arange(4.0).to("tiny"), torch.arange(4.0).to("tiny")
        for turn in range(self.TURNS):
            before = COUNTERS.replayed
            w.add_(1)
            torch.nextafter(other, other)  # turns the queued write into a value
            w.add_(1)
            assert w.tolist() == [2.0 * turn + i + 2 for i in range(4)]
            other.add_(1)
            assert other.tolist() == [turn + i + 1.0 for i in range(4)]
        assert COUNTERS.replayed - before == 2

    def test_of_a_step_that_writes_into_its_own_buffer(self) -> None:
        w, expected = (torch.arange(8192.0).to(device) for device in ("tiny", "cpu"))
        for _ in range(self.TURNS):
            before = COUNTERS.replayed
            for t in (w, expected):
                t.mul_(0.5).add_(1)
            assert torch.equal(w.cpu(), expected)
        assert COUNTERS.replayed - before == 1

    def test_of_a_number_of_float64(self) -> None:
        """A number that changes is data in the dtype of the call."""
        x = torch.arange(4, dtype=torch.float64)
        on_tiny = x.to("tiny")
        for turn in range(self.TURNS):
            before = COUNTERS.replayed
            assert (on_tiny * (turn + 0.1)).tolist() == (x * (turn + 0.1)).tolist()
        assert COUNTERS.replayed - before == 1


class TestWhatTheKeyMustHave:
    """Queues with equal calls that are different steps. Each test fails if one part of the key is missing."""

    def test_a_result_that_is_held_only_once(self) -> None:
        """An intermediate result was dead when the step was recorded and is alive now."""
        w = torch.arange(4.0).to("tiny")
        held, on_cpu, expected = None, torch.arange(4.0), None
        for turn in range(8):
            doubled = w * 2
            w.copy_(doubled + 1)
            if turn == 6:
                held, expected = doubled, on_cpu * 2
            del doubled
            on_cpu = on_cpu * 2 + 1
            assert w.tolist() == on_cpu.tolist()
        assert held is not None and expected is not None
        assert held.tolist() == expected.tolist()

    def test_which_of_two_results_is_read(self) -> None:
        """The next call reads one or the other of two results with the same geometry."""
        x, y, w = (torch.tensor([start, start + 1]).to("tiny") for start in (1.0, 5.0, 0.0))
        total = [0.0, 1.0]
        for turn in range(9):
            a, b = x * 2, y * 2
            w.add_(b if turn > 6 else a)
            total = [t + 2 * (i + (5 if turn > 6 else 1)) for i, t in enumerate(total)]
            assert w.tolist() == total
            del a, b

    def test_what_becomes_a_number(self) -> None:
        """A step replaces a buffer by one number for every element of a storage."""
        ones, a, w = torch.ones(4, device="tiny"), torch.arange(4.0).to("tiny"), torch.arange(4.0).to("tiny")
        for turn in range(8):
            a.add_(1)
            w.copy_(ones)
            assert a.tolist() == [i + turn + 1 for i in range(4)]
            assert w.tolist() == [1.0] * 4
            w.fill_(7)
            w.add_(a)
            assert w.tolist() == [i + turn + 8 for i in range(4)]

    def test_an_index_that_a_replayed_step_writes(self) -> None:
        """The device caches the bounds of an index until a write to it. A replayed write counts."""
        index = torch.zeros(4096, dtype=torch.int64).to("tiny") + torch.arange(4096).to("tiny") % 2
        x = torch.arange(8.0).to("tiny")
        for turn in range(9):
            if turn > 6:
                with pytest.raises(IndexError):
                    x.index_select(0, index)
            else:
                assert x.index_select(0, index)[1].item() == turn + 1
            index.add_(1)
            assert index[0].item() == turn + 1

    def test_which_buffer_a_lazy_value_reads(self) -> None:
        """A lazy value from outside the queue reads a buffer that the step also reads, or another one."""
        y, z, w = (torch.tensor([start, start + 1]).to("tiny") for start in (1.0, 5.0, 0.0))
        total, before = [0.0, 1.0], COUNTERS.replayed
        for turn in range(9):
            read = z if turn > 6 else y
            lazy = torch.nextafter(read, read)  # returns the same number
            w.add_(y).add_(lazy)
            total = [t + i + 1 + i + (5 if turn > 6 else 1) for i, t in enumerate(total)]
            assert w.tolist() == total
        assert COUNTERS.replayed > before

    def test_which_buffers_restored_values_read(self) -> None:
        """Equal steps leave values of one kind lazy, each over its own buffer. A later step reads them all."""
        table, actual, expected = torch.arange(3.0).to("tiny"), [], []
        for turn in range(9):
            x, y = torch.tensor([turn, 2]), torch.tensor([1, turn + 3])
            which = (x, y, y) if turn > 6 else (x, y, x)
            on_tiny = {id(t): t.to("tiny") for t in (x, y)}
            masks = []
            for t in which:
                mask = on_tiny[id(t)] % 3
                table.index_select(0, mask % 2)  # computes the index and its operands, but not `mask`
                masks.append(mask)
            actual.append((masks[0] + masks[1] * 10 + masks[2] * 100).tolist())
            expected.append((which[0] % 3 + which[1] % 3 * 10 + which[2] % 3 * 100).tolist())
        assert actual == expected

    def test_the_device_of_a_copy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Copies of equal geometry on two devices, beside a call on the first one, are different steps."""
        monkeypatch.setenv("TINY_DEVICES", "2")
        a, before = torch.arange(4.0).to("tiny"), COUNTERS.replayed
        for turn in range(9):
            other = "tiny:1" if turn > 6 else "tiny:0"
            x, y = (torch.arange(start, start + 5).to(other) for start in (turn, 0))
            y = y.double()
            y.tolist()
            beside = a + 1
            y.copy_(x)
            assert y.tolist() == [turn + i for i in range(5)]
            assert storage_of(y).base_value().device == storage_of(x).base_value().device
            del beside
        assert COUNTERS.replayed > before

    def test_the_settings_of_tinygrad(self) -> None:
        """A step under another setting of tinygrad is scheduled under that setting."""
        w, replayed = torch.arange(4.0).to("tiny"), []
        for turn in range(7):
            with Context(NOOPT=int(turn == 6)):
                before = COUNTERS.replayed
                w.add_(1)
                assert w.tolist() == [i + turn + 1 for i in range(4)]
                replayed.append(COUNTERS.replayed - before)
        assert replayed[-2:] == [1, 0]


class TestValuesBesideAStep:
    """Lazy values that a program keeps while it reads other numbers. Formerly each one more made another step."""

    TURNS = 12

    def counts(self) -> tuple[int, ...]:
        """Return the numbers of kernels, of recorded and of replayed steps."""
        return COUNTERS.kernels, COUNTERS.recorded, COUNTERS.replayed

    def kept_outputs(self) -> tuple[list[float], list[tuple[int, ...]]]:
        """Keep an output at each turn and read another number. Return all numbers, and what each turn cost."""
        torch.manual_seed(0)
        net, kept, numbers, costs = nn.Linear(3, 2).to("tiny"), [], [], []
        for turn in range(self.TURNS):
            before = self.counts()
            out = net((torch.arange(6.0).reshape(2, 3) + turn).to("tiny"))
            kept.append(out.detach().sigmoid())
            numbers.append(out.square().sum().item())
            costs.append(tuple(b - a for a, b in zip(before, self.counts(), strict=True)))
        return numbers + [t.sum().item() for t in kept], costs

    def test_kept_results_do_not_make_a_new_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A step is replayed whatever number of lazy results the program has kept, and runs the same kernels."""
        numbers, costs = self.kept_outputs()
        assert costs[4:] == [(costs[0][0], 0, 1)] * (self.TURNS - 4)
        monkeypatch.setattr(steps, "ENABLED", False)
        without, costs_without = self.kept_outputs()
        assert numbers == without
        assert [kernels for kernels, *_ in costs] == [kernels for kernels, *_ in costs_without]

    def read_what_is_kept(self, settled: bool) -> tuple[list[list[float]], list[int], int]:
        """Keep a value, which an earlier step leaves lazy, and read an equal one. Return all elements, the kernels of
        each turn from then on, and the steps that the last turn replayed. If `settled`, the kept value is built."""
        values: list[list[float]] = []
        kernels, replayed = [], 0
        for turn in range(self.TURNS):
            x = (torch.arange(4.0) + turn).to("tiny")
            kept = x * 3
            x.sum().item()
            if settled:
                torch.nextafter(x, x)
            before, replayed_before = COUNTERS.kernels, COUNTERS.replayed
            values += [(x * 3).tolist(), kept.tolist()]
            kernels.append(COUNTERS.kernels - before)
            replayed = COUNTERS.replayed - replayed_before
        return values, kernels, replayed

    @pytest.mark.parametrize("settled", [False, True], ids=["restored", "built"])
    def test_a_kept_value_that_a_step_stores_is_not_computed_again(
        self, settled: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A value outside the step reads what the step has stored, also after a replay."""
        values, kernels, replayed = self.read_what_is_kept(settled)
        assert kernels == [1] * self.TURNS
        assert replayed == 1
        monkeypatch.setattr(steps, "ENABLED", False)
        assert self.read_what_is_kept(settled) == (values, kernels, 0)

    def test_a_kept_value_that_reads_other_memory_than_before(self) -> None:
        """A replayed step does not write into a buffer that a kept value reads only since the step before."""
        for turn in range(self.TURNS):
            x = (torch.arange(5000.0) + turn).to("tiny")
            y = x + 1
            kept = y * 3 if turn == self.TURNS - 1 else None
            torch.nextafter(x, x)  # a call that does not wait, so the kept value is built
            x.sum().item()  # looks at the kept value, which reads `x`
            assert y[1].item() == turn + 2.0  # stores `y`, which the kept value reads from now on
            y.mul_(2)
            assert y[1].item() == 2 * turn + 4.0
        assert kept is not None and kept[:2].tolist() == [3.0 * self.TURNS, 3.0 * self.TURNS + 3]

    def test_a_kept_value_of_another_graph_makes_another_step(self) -> None:
        """Beside a step, `x * 3` gets its result and `x - 3` over the same buffers does not."""
        for turn in range(self.TURNS):
            x = (torch.arange(4.0) + turn).to("tiny")
            kept = x - 3 if turn % 3 == 2 else x * 3
            x.sum().item()
            assert (x * 3).tolist() == [3.0 * (i + turn) for i in range(4)]
            assert kept.tolist() == [i + turn - 3.0 if turn % 3 == 2 else 3.0 * (i + turn) for i in range(4)]

    def test_equal_values_of_different_steps_are_the_same_operand(self) -> None:
        """A step that reads a value is replayed, whichever of two earlier steps has left that value lazy."""
        replayed = []
        for turn in range(self.TURNS):
            x = (torch.arange(4.0) + turn).to("tiny")
            kept = x * 3
            (x.sum() if turn % 2 else x.amax()).item()
            before = COUNTERS.replayed, COUNTERS.recorded
            assert (kept + 1).tolist() == [3.0 * (i + turn) + 1 for i in range(4)]
            replayed.append((COUNTERS.replayed - before[0], COUNTERS.recorded - before[1]))
        assert replayed[-4:] == [(1, 0)] * 4
        assert (
            sum(recorded for _, recorded in replayed) == 2
        )  # of the value while it was a graph, and since a step left it

    def test_many_different_steps_are_kept(self) -> None:
        """A cycle of more steps than an optimizer with a line search has is replayed as a whole."""
        x, lengths = torch.arange(4.0).to("tiny"), range(100)
        for _ in range(4):
            before = COUNTERS.replayed
            for length in lengths:
                kept = [x * 2 for _ in range(length)]
                assert (x + 1).tolist() == [1.0, 2.0, 3.0, 4.0]
                del kept
        assert COUNTERS.replayed - before == len(lengths)

    def test_old_steps_leave_a_full_cache(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The cache holds a limited number of keys, and keys of a limited length."""
        steps.reset_state()
        x = torch.arange(64.0).to("tiny")
        for name, limit in (("MOST_STEPS", 5), ("KEPT", 100)):
            monkeypatch.setattr(steps, name, limit)
            for length in range(20):
                kept = [x * 2 for _ in range(length)]
                (x + 1).tolist()
                del kept
            assert 0 < len(steps._known) <= 5
            assert steps._length == sum(map(len, steps._known))
        assert steps._length <= 100 or len(steps._known) == 1


def test_reading_a_known_number_computes_nothing_else() -> None:
    """Calls stay queued while the host reads a tensor that is in memory. Formerly every such read built their graph."""
    x, numbers, zeros = torch.arange(4.0).to("tiny"), torch.arange(3.0).to("tiny"), torch.zeros(2, device="tiny")
    assert zeros.tolist() == [0.0, 0.0]  # from now on no write is pending
    for _ in range(3):
        lazy = x * 2
    before = COUNTERS.schedules
    for _ in range(3):
        assert numbers[2].item() == 2.0
        assert zeros.tolist() == [0.0, 0.0]
    assert calls.pending()
    assert COUNTERS.schedules == before
    assert lazy.tolist() == [0.0, 2.0, 4.0, 6.0]


class TestComputedIndex:
    """An index computed by queued calls is evaluated separately from the other queued calls, without a visible
    difference."""

    TABLE, TURNS = torch.arange(12.0).reshape(4, 3), 6

    def both(self, program: Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]]) -> int:
        """Compare six iterations of a program on tiny and on the CPU, whose results are read at its end. Return the
        number of steps that the last iteration replayed."""
        before = 0
        for turn in range(self.TURNS):
            before = COUNTERS.replayed
            counts = torch.tensor([turn % 2, 1, 0])
            results = [
                [t.tolist() for t in program((self.TABLE + turn).to(device), counts.clone().to(device))]
                for device in ("cpu", "tiny")
            ]
            assert results[0] == results[1], f"turn {turn}"
        return COUNTERS.replayed - before

    def test_what_was_called_before_stays_queued(self) -> None:
        """Earlier calls stay queued. Formerly they became expressions and no later step was replayed, which cost half
        of the time of a language model's step."""

        def program(table: torch.Tensor, counts: torch.Tensor) -> list[torch.Tensor]:
            before = (table * 2).square()
            before.add_(1)
            return [before + table.index_select(0, nn.functional.pad(counts, (0, 1)).contiguous())]

        assert self.both(program) == 2  # one step for the index, one for the other calls

    def test_what_reads_the_old_content_comes_first(self) -> None:
        def program(table: torch.Tensor, counts: torch.Tensor) -> list[torch.Tensor]:
            old = counts * 10
            counts.add_(1)
            return [old, table.index_select(0, counts)]

        self.both(program)

    def test_another_result_of_the_same_call_that_only_the_queue_holds(self) -> None:
        def program(table: torch.Tensor, counts: torch.Tensor) -> list[torch.Tensor]:
            most, place = (table * table.sin()).max(0)
            later = most + 1
            del most
            return [table.index_select(0, place), later]

        self.both(program)

    def test_an_error_of_the_index_leaves_the_rest_queued(self) -> None:
        table, counts = self.TABLE.to("tiny"), torch.tensor([1, 1, 0]).to("tiny")
        for _ in range(4):
            before, wrong = table * 2, counts * 9
            with pytest.raises((IndexError, RuntimeError)):
                table.index_select(0, wrong)
            assert before.tolist() == (self.TABLE * 2).tolist()


def test_synchronizing_computes_what_is_written_in_place_alone() -> None:
    """synchronize() computes only in-place writes. Formerly lazy results were built as expressions, 14 ms of a step of
    GPT-2, although nothing had to be computed."""
    x = torch.arange(3.0).to("tiny")
    for _ in range(2):
        lazy = x * 2
    torch.tiny.synchronize()  # type: ignore[attr-defined]
    assert calls.pending()
    for _ in range(2):
        x.add_(1)
    torch.tiny.synchronize()  # type: ignore[attr-defined]
    assert not calls.pending()
    assert (lazy.tolist(), x.tolist()) == ([0.0, 2.0, 4.0], [2.0, 3.0, 4.0])
