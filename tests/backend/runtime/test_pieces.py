"""Large repetitive graphs in pieces: equal values, few new schedules for a new length, memory that is not shared."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from tinygrad.dtype import dtypes
from tinygrad.helpers import Context
from tinygrad.uop.ops import UOp
from torch import nn

from conformance.backend import kernels
from conformance.backend.lazy import steps, storage
from conformance.backend.runtime import pieces, scheduler
from conformance.backend.runtime.counters import COUNTERS

Program = Callable[[int], list[torch.Tensor]]


@pytest.fixture(autouse=True)
def _nothing_cached(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No schedules of other tests or processes."""
    monkeypatch.setattr(scheduler, "SCHEDULES", scheduler.Schedules())
    steps.reset_state()
    with Context(CACHELEVEL=0):
        yield
    steps.reset_state()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small graphs are divided too, and small parameters are overwritten in place."""
    monkeypatch.setattr(pieces, "MIN_NODES", 10)
    monkeypatch.setattr(pieces, "MIN_PIECES", 2)
    monkeypatch.setattr(pieces, "MOST_DISTINCT", 1)
    monkeypatch.setattr(storage, "DONOR_BYTES", 16)


def weights(*sizes: tuple[int, ...]) -> list[torch.Tensor]:
    return [(torch.randn(size) * 0.3).to("tiny").requires_grad_() for size in sizes]


def own_cell(length: int) -> list[torch.Tensor]:
    """A recurrence written as a loop, and its gradients."""
    w, u, b = weights((5, 8), (8, 8), (8,))
    x, h = torch.randn(length, 3, 5).to("tiny"), torch.zeros(3, 8).to("tiny")
    states = []
    for t in range(length):
        h = torch.sin(x[t] @ w + h @ u + b)
        states.append(h)
    y = torch.stack(states)
    loss = y.square().mean()
    loss.backward()
    return [loss.detach(), *[p.grad for p in (w, u, b) if p.grad is not None], y.detach()]


def sliced(length: int) -> list[torch.Tensor]:
    """A recurrence over the rows of an input, without gradients."""
    (w,) = [p.detach() for p in weights((8, 8))]
    x, h = torch.randn(length, 3, 8).to("tiny"), torch.zeros(3, 8).to("tiny")
    for t in range(length):
        h = torch.relu((x[t] + h) @ w)
    return [h]


def columns(length: int) -> list[torch.Tensor]:
    """A recurrence over the columns of two inputs, one of them lazy, and one in steps of two columns."""
    (w,) = [p.detach() for p in weights((8, 8))]
    x, wide, h = torch.randn(3, length, 8).to("tiny"), torch.randn(3, 2 * length).to("tiny"), torch.zeros(3, 8)
    scaled, h = x * 1.1 + x.sum(2, keepdim=True), h.to("tiny")
    for t in range(length):
        h = torch.relu((x[:, t] + h + scaled[:, length - 1 - t] + wide[:, 2 * t : 2 * t + 2].sum(1, keepdim=True)) @ w)
    return [h, scaled]


def written_between(length: int) -> list[torch.Tensor]:
    """Writes in place between the steps, into the state, its history, a sum and the weights."""
    (w,) = [p.detach() for p in weights((8, 8))]
    h, history, total = torch.randn(3, 8).to("tiny"), torch.zeros(length, 3, 8).to("tiny"), torch.zeros(3).to("tiny")
    for t in range(length):
        h = torch.sin(h @ w)
        history[t] = h
        h.mul_(1.5).add_(history[t])
        total += h.sum(1)
        if t % 3 == 2:
            w[0].mul_(0.9)
    return [h, history, total, w]


def retained(length: int) -> list[torch.Tensor]:
    """Two backward passes through one graph, and reads of single states."""
    (w,) = weights((8, 8))
    h, states = torch.randn(3, 8).to("tiny"), []
    for _ in range(length):
        h = torch.sin(h @ w)
        states.append(h)
    loss = torch.stack(states).sum()
    loss.backward(retain_graph=True)
    assert w.grad is not None
    first, middle = w.grad.clone(), states[length // 2].detach().cpu()
    loss.backward()
    return [first, w.grad, middle, states[-1].detach(), states[1].detach()]


def read_partly(length: int) -> list[torch.Tensor]:
    """A read of one state in between; slices, strides and flips of all states."""
    (w,) = [p.detach() for p in weights((8, 8))]
    h, states, read = torch.randn(3, 8).to("tiny"), [], []
    for t in range(length):
        h = torch.relu(h @ w) + h * 0.5
        states.append(h)
        if t == length // 3:
            read.append(h[0, :3].cpu())
    y = torch.stack(states, 1)
    return [*read, y[:, ::2].sum(), y[:, 1], h, y.flip(1)[:, :3], torch.stack(states)[1:]]


def decoding(length: int) -> list[torch.Tensor]:
    """Attention over keys and values that grow by a row in each step."""
    q, k, v, o = [p.detach() for p in weights((8, 8), (8, 8), (8, 8), (8, 8))]
    x = torch.randn(2, 1, 8).to("tiny")
    keys, values, outputs = x @ k, x @ v, []
    for _ in range(length):
        x = torch.sin(torch.softmax((x @ q) @ keys.transpose(1, 2), -1) @ values @ o) + x
        keys, values = torch.cat([keys, x @ k], 1), torch.cat([values, x @ v], 1)
        outputs.append(x)
    return [torch.cat(outputs, 1), keys, values]


def losses(length: int) -> list[torch.Tensor]:
    """The sum of a list of lazy losses."""
    (w,) = weights((8, 1))
    total = sum([(torch.randn(4, 8).to("tiny") @ w).square().mean() for _ in range(length)])
    assert isinstance(total, torch.Tensor)
    total.backward()
    assert w.grad is not None
    return [total.detach(), w.grad]


def module(kind: type[nn.Module], optimizer: type[torch.optim.Optimizer], **options: bool | int) -> Program:
    def train(length: int) -> list[torch.Tensor]:
        model = kind(5, 8, **options).to("tiny")
        stepping = optimizer(model.parameters(), lr=0.01)  # type: ignore[call-arg]
        x = torch.randn((3, length, 5) if options.get("batch_first") else (length, 3, 5)).to("tiny")
        found = []
        for _ in range(2):
            y, _ = model(x)
            loss = y.square().mean()
            stepping.zero_grad()
            loss.backward()
            stepping.step()
            found += [loss.detach(), y.detach()]
        return [*found, *[p.detach() for p in model.parameters()]]

    return train


FAST: dict[str, Program] = {
    "sliced": sliced, "written between": written_between, "retained": retained, "read partly": read_partly,
    "losses": losses, "columns": columns,
}  # fmt: skip
SLOW: dict[str, Program] = {
    "own cell": own_cell,
    "decoding": decoding,
    "RNN": module(nn.RNN, torch.optim.SGD),
    "GRU": module(nn.GRU, torch.optim.Adam),
    "LSTM of two layers": module(nn.LSTM, torch.optim.Adam, num_layers=2),
    "GRU with the batch first": module(nn.GRU, torch.optim.SGD, batch_first=True),
    "GRU in both directions": module(nn.GRU, torch.optim.SGD, bidirectional=True),
}


class Run:
    """The results of a program, and the work that it took."""

    def __init__(
        self, program: Callable[[], list[torch.Tensor]], monkeypatch: pytest.MonkeyPatch, divide: bool
    ) -> None:
        monkeypatch.setattr(scheduler, "PIECES", divide)
        monkeypatch.setattr(scheduler, "SCHEDULES", scheduler.Schedules())
        steps.reset_state()
        torch.manual_seed(1)
        divided, scheduled = COUNTERS.divided, COUNTERS.scheduled
        with kernels.count() as counted:
            self.results = [x.cpu().clone() for x in program()]
        self.divided, self.scheduled = COUNTERS.divided - divided, COUNTERS.scheduled - scheduled
        self.kernels = counted.kernels


def assert_same_bits(whole: Run, divided: Run) -> None:
    assert whole.divided == 0 < divided.divided
    for a, b in zip(whole.results, divided.results, strict=True):
        assert torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


@pytest.mark.usefixtures("small")
class TestValues:
    """A graph in pieces has the values of the whole graph, bit for bit."""

    @pytest.mark.parametrize("name", FAST)
    def test_equal_bits(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        runs = [Run(lambda: FAST[name](5), monkeypatch, divide) for divide in (False, True)]
        assert_same_bits(*runs)

    @pytest.mark.slow
    @pytest.mark.parametrize("length", [4, 11])
    @pytest.mark.parametrize("name", SLOW)
    def test_equal_bits_of_modules(self, name: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
        runs = [Run(lambda: SLOW[name](length), monkeypatch, divide) for divide in (False, True)]
        assert_same_bits(*runs)

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(12))
    def test_equal_bits_of_drawn_recurrences(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        runs = [Run(lambda: drawn(seed), monkeypatch, divide) for divide in (False, True)]
        assert_same_bits(*runs)

    def test_a_wrong_place_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A planted fault: each part of a value is read one row too early."""
        whole = Run(lambda: sliced(5), monkeypatch, False)
        offset = pieces._offset
        monkeypatch.setattr(pieces, "_offset", lambda node: (offset(node) or 0) and max(0, offset(node) - 8))
        faulty = Run(lambda: sliced(5), monkeypatch, True)
        assert faulty.divided
        assert not torch.equal(whole.results[0], faulty.results[0])

    def test_shared_memory_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A planted fault: all intermediate values share one place."""
        whole = Run(lambda: retained(5), monkeypatch, False)
        plan = pieces._plan
        monkeypatch.setattr(pieces, "_plan", lambda *times: ([0] * len(times[0]), plan(*times)[1]))
        faulty = Run(lambda: retained(5), monkeypatch, True)
        assert faulty.divided
        assert not torch.equal(whole.results[0], faulty.results[0])


def drawn(seed: int) -> list[torch.Tensor]:
    """A drawn recurrence: the same drawn operations in each of some steps, with writes in place and kept values."""
    choose = random.Random(seed)
    length, batch, width = choose.randint(4, 7), choose.choice([1, 2, 3]), choose.choice([4, 5, 8])
    grad = choose.random() < 0.6
    parameters = weights((width, width), (width, width), (width,))
    if not grad:
        parameters = [p.detach() for p in parameters]
    inputs = torch.randn(length, batch, width).to("tiny")
    body = [choose.randrange(10) for _ in range(choose.randint(2, 5))]
    keep, write, early = choose.random() < 0.7, not grad and choose.random() < 0.5, choose.random() < 0.3
    state, kept = torch.randn(batch, width).to("tiny"), []
    cell = state * 0.5
    found = []
    for t in range(length):
        for operation in body:
            if operation == 0:
                state = state @ parameters[0]
            elif operation == 1:
                state = torch.sin(state + inputs[t] @ parameters[1] + parameters[2])
            elif operation == 2:
                state = torch.softmax(state, 1) + cell
            elif operation == 3:
                cell = cell * torch.cos(state) + state.mean(1, keepdim=True)
            elif operation == 4:
                state = torch.cat([state[:, 1:], cell[:, :1]], 1)
            elif operation == 5:
                state = torch.where(inputs[t] > 0, state, cell)
            elif operation == 6:
                cell = torch.relu(cell @ parameters[1]) - inputs[length - 1 - t]
            elif operation == 7:
                state = state / (1 + state.abs().amax())
            elif operation == 8:
                cell = torch.stack([state, cell]).sum(0) * 0.5
            else:
                state = (state.unsqueeze(2) * cell.unsqueeze(1)).sum(2)
        if write:
            state = state.clone()
            state[:, 0].mul_(0.5)
            cell = cell + state
        if keep:
            kept.append(choose.choice([state, cell]))
        if early and t == length // 2:
            found.append(cell.detach()[0].cpu())
    last = torch.sin(state @ parameters[0]) + cell @ parameters[1]
    if kept:
        last = last.sum() + torch.stack(kept).square().mean()
        found.append(torch.stack(kept, 1).detach())
    if grad:
        last.sum().backward()
        found += [p.grad for p in parameters if p.grad is not None]
    return [*found, last.detach(), state.detach(), cell.detach()]


class TestSchedules:
    """Pieces of equal structure share a schedule."""

    def test_a_new_length_is_hardly_scheduled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """After some lengths, of a longer recurrence only the parts are new that depend on the length."""
        monkeypatch.setattr(pieces, "MIN_NODES", 100)
        monkeypatch.setattr(pieces, "MIN_PIECES", 8)
        divided, new = COUNTERS.divided, []
        for length in (13, 14, 18):
            before = COUNTERS.scheduled
            own_cell(length)[0].item()
            new.append(COUNTERS.scheduled - before)
        assert COUNTERS.divided - divided == 3
        assert new[0] >= 5
        assert max(new[1:]) <= 2  # the loss and the largest factor of its gradient, of 20 pieces

    def test_batch_first_costs_one_copy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The strided parts `x[:, t]` are read from one copy, so a new length has new kernels only for the copies."""
        monkeypatch.setattr(pieces, "MIN_NODES", 100)
        monkeypatch.setattr(pieces, "MIN_PIECES", 8)
        (w, u), new, run, divided = weights((5, 8), (8, 8)), [], [], COUNTERS.divided
        for length in (13, 14, 18):
            x, h = torch.randn(3, length, 5).to("tiny"), torch.zeros(3, 8).to("tiny")
            before = COUNTERS.scheduled
            with kernels.count() as counted, torch.no_grad():
                for t in range(length):
                    h = torch.sin(x[:, t] @ w + h @ u)
                h.cpu()
            new.append(COUNTERS.scheduled - before)
            run.append(counted.kernels - length)
        assert COUNTERS.divided - divided == 3
        assert max(new[1:]) <= 1
        assert max(run) <= 1

    def test_a_second_process_finds_the_schedules(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A graph in pieces is one schedule, also where it is stored."""
        monkeypatch.setattr(pieces, "MIN_NODES", 100)
        monkeypatch.setattr(pieces, "MIN_PIECES", 8)
        with Context(CACHELEVEL=2):
            first = own_cell(13)[0].item()
            scheduler.SCHEDULES.clear()
            steps.reset_state()
            scheduled, loaded = COUNTERS.scheduled, COUNTERS.loaded
            torch.manual_seed(0)
            own_cell(13)[0].item()
        assert first
        assert (COUNTERS.scheduled - scheduled, COUNTERS.loaded - loaded) == (0, 1)

    def test_graphs_without_repetition_stay_whole(self, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
        """Different layers one after the other have one schedule."""
        monkeypatch.setattr(pieces, "MOST_DISTINCT", 1 / 2)
        divided = COUNTERS.divided
        x = torch.randn(4, 7).to("tiny")
        for width in range(8, 12):
            x = torch.relu(x @ torch.randn(x.shape[1], width).to("tiny") + width)
        assert x.cpu().shape == (4, 11)
        assert COUNTERS.divided == divided

    def test_pieces_are_cut_where_values_are_stored_anyway(self, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
        """No more kernels than of the whole graph."""
        for program in (sliced, retained):
            whole, divided = [Run(lambda: program(5), monkeypatch, divide) for divide in (False, True)]  # noqa: B023
            assert divided.kernels <= whole.kernels


def test_intermediate_values_in_use_do_not_overlap() -> None:
    """Drawn lifetimes: two values that are used at one time have different memory."""
    choose = random.Random(0)
    for _ in range(50):
        count = choose.randint(1, 40)
        first = [choose.randrange(30) for _ in range(count)]
        last = [at + choose.randrange(10) for at in first]
        sizes = [choose.choice([4, 256, 300, 5000]) for _ in range(count)]
        offsets, total = pieces._plan(sizes, first, last)
        assert all(o % 256 == 0 and o + s <= total for o, s in zip(offsets, sizes, strict=True))
        for i in range(count):
            for j in range(i):
                used_together = first[i] <= last[j] and first[j] <= last[i]
                apart = offsets[i] + sizes[i] <= offsets[j] or offsets[j] + sizes[j] <= offsets[i]
                assert apart or not used_together


@pytest.mark.parametrize(("device", "expected"), [("CPU", [2, 6]), ("CUDA", [4])])
def test_a_gpu_reads_parts_at_aligned_places_only(device: str, expected: list[int]) -> None:
    """A GPU refuses to load a vector of four floats from the third float of a buffer. No GPU is opened."""
    whole = UOp.new_buffer(device, 26, dtypes.float32)
    starts = (2, 6) if device == "CPU" else (2, 4)
    values = [whole.shrink(((start, start + 8),)) + 1.0 for start in starts]
    division = pieces.Division(values)
    assert sorted(division._parts().values()) == expected


def test_a_large_graph_with_kernels_of_its_own_stays_whole(small: None) -> None:
    """Regression test: the kernels of calls are no nodes of the graph, and looking them up raised KeyError."""
    x = (torch.randn(12, 12) + 12 * torch.eye(12)).to("tiny")
    before = COUNTERS.divided
    total = torch.zeros((), device="tiny")
    for _ in range(12):
        total = total + torch.linalg.inv(x * 1.5).sum()
    torch.testing.assert_close(total.cpu(), 12 * torch.linalg.inv(x.cpu() * 1.5).sum())
    assert COUNTERS.divided == before
