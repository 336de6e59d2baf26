"""Steps with writes by index and with recurrent cells are replayed, and their values are torch CPU's.

A write by index is computed from the index's elements on the host, so a replay needs them anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import conformance.backend as backend
from conformance.backend.runtime.counters import COUNTERS

pytestmark = pytest.mark.usefixtures("queue")

TURNS = 8
Write = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

WRITES: dict[str, Write] = {
    "index_add_": lambda x, i, s: x.index_add_(0, i, s, alpha=2),
    "index_copy_": lambda x, i, s: x.index_copy_(0, i.unique(), s[: len(i.unique())]),
    "index_fill_": lambda x, i, s: x.index_fill_(0, i, 3.0),
    "scatter_add": lambda x, i, s: x.scatter_add(0, i[:, None].expand(-1, 3), s),
    "scatter_value": lambda x, i, s: x.scatter(0, i[:, None].expand(-1, 3), 7.0),
    "scatter_reduce": lambda x, i, s: x.scatter_reduce(0, i[:, None].expand(-1, 3), s, "amax"),
    "put_": lambda x, i, s: x.put_(i, s[:, 0], accumulate=True),
    "index_put_": lambda x, i, s: x.index_put_((i,), s, accumulate=True),
    "index_put": lambda x, i, s: x.index_put((i, i.clamp(max=2)), s[:, 0], accumulate=True),
}


def indices() -> Iterator[torch.Tensor]:
    """Indices into seven rows: each has other multiplicities than the one before."""
    for turn in range(TURNS):
        yield torch.tensor([turn % 7, (turn * turn) % 7, 3, (3 * turn) % 7, 0, turn % 2])


def run(write: Write, device: str) -> tuple[list[list[list[float]]], list[int]]:
    """Return the rows after each turn, and the numbers of schedules that were replayed after each turn."""
    rows, replayed = [], []
    x = torch.arange(21.0).reshape(7, 3).to(device)
    for turn, index in enumerate(indices()):
        source = (torch.arange(18.0).reshape(6, 3) % 5 + turn).to(device)
        i = index.to(device)
        x = write(x, i, source) * 2 % 16
        rows.append(x.tolist())
        replayed.append(COUNTERS.replayed)
    return rows, replayed


@pytest.mark.parametrize("name", [name for name in WRITES if name != "index_copy_"])
def test_changing_indices_are_one_step(name: str) -> None:
    """The values are torch CPU's, and each of the last turns is replayed, although its index is a new one."""
    rows, replayed = run(WRITES[name], "tiny")
    assert rows == run(WRITES[name], "cpu")[0]
    assert replayed[-1] - replayed[-4] >= 3


def test_a_changing_number_of_writes() -> None:
    """The geometry changes with the index, so that few steps are equal."""
    assert run(WRITES["index_copy_"], "tiny")[0] == run(WRITES["index_copy_"], "cpu")[0]


def test_the_same_index_with_a_pending_write() -> None:
    """A number written into the index is not in its memory yet. An index of the same memory as in the last call is not
    looked at again, so this write must count."""
    seen = {}
    for device in ("tiny", "cpu"):
        index, x = torch.tensor([0, 1, 2]).to(device), torch.zeros(5).to(device)
        source = torch.tensor([1.0, 2.0, 4.0]).to(device)
        seen[device] = []
        for turn in range(TURNS):
            if turn == 5:
                index[1] = 4
            x.index_add_(0, index, source)
            seen[device].append(x.tolist())
    assert seen["tiny"] == seen["cpu"]


def test_the_same_index_after_a_write_into_its_memory() -> None:
    """A large index is written in place, in the same buffer."""
    seen = {}
    for device in ("tiny", "cpu"):
        index, x = torch.zeros(1 << 18, dtype=torch.int64).to(device), torch.zeros(4).to(device)
        source = torch.ones(1 << 18).to(device)
        seen[device] = []
        for turn in range(4):
            if turn == 3:
                index[:3] = 1
                index[5].item()
            x.index_add_(0, index, source)
            seen[device].append(x.tolist())
    assert seen["tiny"] == seen["cpu"]


def test_an_index_out_of_range_raises_at_the_call() -> None:
    x, source = torch.zeros(4).to("tiny"), torch.ones(2).to("tiny")
    for _ in range(3):
        x.index_add_(0, torch.tensor([1, 3]).to("tiny"), source)
    wrong = torch.tensor([1, 4]).to("tiny")
    with pytest.raises((IndexError, RuntimeError), match="out of range"):
        x.index_add_(0, wrong, source)
    assert x.tolist() == [0.0, 3.0, 0.0, 3.0]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_cells_wait(kind: type[nn.LSTM] | type[nn.GRU]) -> None:
    """A training step of a recurrent net is one replayed schedule; before, each cell emptied the queue."""
    losses: dict[str, list[float]] = {}
    for device in ("cpu", "tiny"):
        torch.manual_seed(0)
        net = kind(3, 4, bias=device == "none").to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        losses[device] = []
        for turn in range(TURNS):
            before = dict(backend.stats())
            optimizer.zero_grad()
            out, _ = net(torch.arange(18.0).reshape(3, 2, 3).sin().add(turn).to(device))
            loss = (out * out).sum()
            loss.backward()
            optimizer.step()
            losses[device].append(loss.item())
    after = backend.stats()
    assert [after[k] - before[k] for k in ("schedules", "replayed", "prepared")] == [1, 1, 0]
    assert losses["tiny"] == pytest.approx(losses["cpu"], rel=1e-5)


def test_a_step_in_which_a_storage_takes_over_a_buffer() -> None:
    """A copy shares the buffer that it was made of, and a number takes the place of a number. Both steps are replayed,
    with the values of torch CPU."""
    seen: dict[str, list[object]] = {}
    for device in ("tiny", "cpu"):
        kept, total, x = torch.zeros(3).to(device), torch.zeros(()).to(device), torch.arange(3.0).to(device)
        zero, one = torch.zeros(3, device=device), torch.ones(3, device=device)
        fill = torch.zeros(3, device=device)
        seen[device] = []
        for turn in range(TURNS):
            before = COUNTERS.replayed
            total = total + x.sum()
            kept.copy_(x)
            fill.copy_(one)
            seen[device].append(total.item())
            x = (torch.arange(3.0) + turn).to(device)
            seen[device] += [kept.tolist(), fill.tolist()]
            total = total + x.sum()
            fill.copy_(zero)
            seen[device] += [total.item(), fill.tolist()]
        if device == "tiny":
            assert COUNTERS.replayed - before == 2
    assert seen["tiny"] == seen["cpu"]
