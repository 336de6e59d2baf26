"""Loops whose offsets move: the number of compiled kernels does not grow with the number of offsets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tinygrad.helpers import Context

from conformance.backend.runtime import moving_sizes, scheduler
from conformance.backend.runtime.counters import COUNTERS
from conformance.backend.runtime.progress import PROGRESS

Loop = Callable[[torch.Tensor], list[torch.Tensor]]


def rows(x: torch.Tensor, turn: Callable[[torch.Tensor, int], torch.Tensor]) -> list[torch.Tensor]:
    """Read the result of each turn, and the tensor at the end."""
    return [*[turn(x, i).cpu() for i in range(len(x))], x.cpu()]


def written(x: torch.Tensor, i: int) -> torch.Tensor:
    x[i] = x[i] * 2
    return x.sum()


def added(x: torch.Tensor, i: int) -> torch.Tensor:
    x[i] += 1
    return x.sum()


def number(x: torch.Tensor, i: int) -> torch.Tensor:
    x[i] = 7
    return x.sum()


def other_number(x: torch.Tensor, i: int) -> torch.Tensor:
    x[i] = i / 2
    return x.sum()


def column(x: torch.Tensor, i: int) -> torch.Tensor:
    x.view(-1, len(x))[:, i] -= 1
    return x.sum()


def previous(x: torch.Tensor, i: int) -> torch.Tensor:
    x[i] += x[i - 1]
    return x.sum()


def element(x: torch.Tensor, i: int) -> torch.Tensor:
    """Add one element to another, as in `total[1] += x[i]`."""
    flat = x.view(-1)
    flat[1] += flat[flat.numel() - 1 - i]
    return x.sum()


def cached(x: torch.Tensor, i: int) -> torch.Tensor:
    """Attention over the rows so far."""
    cache = torch.zeros_like(x)
    cache[i] = x[i] * 2
    return (cache @ x[i]).sum()


LOOPS: dict[str, Loop] = {
    "sums": lambda x: [row.sum().cpu() for row in x],
    "softmax": lambda x: [torch.stack([row.softmax(0) for row in x]).cpu()],
    "windows": lambda x: [torch.stack([x[i : i + 2].softmax(0) for i in range(len(x) - 2)]).cpu()],
    "lazy data": lambda x: rows(x * 2 + 1, lambda y, i: y[i].sum()),
    **{
        f.__name__: lambda x, f=f: rows(x, f)
        for f in (written, added, number, other_number, column, previous, element, cached)
    },
}


def numbers(size: int, width: int) -> torch.Tensor:
    """Different numbers with exact sums, in a size of which each test has its own."""
    return (torch.arange(size * width) * 37 % 64).reshape(size, width) / 8


@pytest.mark.parametrize("name", LOOPS)
def test_kernels_compiled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop over twice as many rows compiles no more kernels. Formerly each offset had kernels of its own."""
    monkeypatch.setattr(moving_sizes, "_families", {})  # of earlier tests, whose programs serve other sizes
    width, compiled = 3 + list(LOOPS).index(name), []
    with Context(CACHELEVEL=0):
        numbers(1, 2).to("tiny").sum().item()  # the first kernel of a process opens the device
        for size in (7, 14):
            x, before = numbers(size, width), PROGRESS.kernels
            actual = LOOPS[name](x.to("tiny"))
            compiled.append(PROGRESS.kernels - before)
            torch.testing.assert_close(actual, LOOPS[name](x.clone()))
    assert 0 < compiled[1] <= compiled[0]


def test_one_program_in_one_schedule() -> None:
    """A schedule calls one program with several offsets, and its copy on disk has them too."""
    x = numbers(9, 17)
    for _ in range(2):
        scheduler.SCHEDULES.clear()  # as in a new process
        before, on_tiny = COUNTERS.loaded, x.to("tiny")
        actual = torch.stack([row.softmax(0) for row in on_tiny]).cpu()
        torch.testing.assert_close(actual, LOOPS["softmax"](x)[0])
    assert COUNTERS.loaded == before + 1


@pytest.mark.parametrize("name", ["sums", "added"])
def test_kernels_that_tinygrad_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """tinygrad gets the offsets of the kernels that it runs itself, to print their times."""
    x = numbers(8, 19)
    with Context(DEBUG=2):
        actual = LOOPS[name](x.to("tiny"))
    torch.testing.assert_close(actual, LOOPS[name](x.clone()))
    assert "*** " in capsys.readouterr().out
