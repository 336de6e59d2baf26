"""Kernels that differ only in sizes share one program, with the bits of separate programs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tinygrad.helpers import Context
from torch import nn

from conformance.backend.lazy import steps
from conformance.backend.runtime import moving_sizes, scheduler
from conformance.backend.runtime.program_cache import PROGRAMS
from conformance.backend.runtime.progress import PROGRESS

Program = Callable[[int], list[torch.Tensor]]
SIZES = (3, 4, 5, 7, 6, 9, 1, 8, 2)


def drawn(*size: int) -> torch.Tensor:
    return torch.randn(size).to("tiny")


def sums(n: int) -> list[torch.Tensor]:
    """Means, variances, norms, products and extrema along each dimension; factors depend on the size."""
    x = drawn(n, 5)
    return [x.mean(), x.var(0), x.std(1), x.norm(), x.softmax(0), x.log_softmax(1), x.amax(0), x.prod(1), x.cumsum(0)]


def moved(n: int, width: int = 4) -> list[torch.Tensor]:
    """Joined, padded, flipped, rolled, strided and written values."""
    x, y = drawn(n, width), drawn(n, width)
    x[: (n + 1) // 2] *= 2
    x[:, 1::2] = y[:, 1::2].flip(0)
    return [torch.cat([x, y, x[:1]]), torch.stack([x, y], 1), x.roll(1, 0), nn.functional.pad(x, (1, 2)), x.t() @ y, x]


def indexed(n: int) -> list[torch.Tensor]:
    """Sums that tinygrad turns into loads, with zeros of both signs."""
    x, i = drawn(n, 4), (torch.arange(2 * n) * 5 % n).to("tiny")
    x[0] = -0.0
    return [x[i], x.gather(0, i.reshape(-1, 1).expand(-1, 4)), torch.zeros(n, 4).to("tiny").index_add(0, i, x[i] * 2)]


def integers(n: int) -> list[torch.Tensor]:
    """Arithmetic of integers, whose numbers are no sizes."""
    x = torch.arange(n * 6).to("tiny").reshape(n, 6)
    return [x // 3, x % n, x * n + 1, x.sum(0), (x - n) // 2, x.flip(1) < n]


def layer(n: int) -> list[torch.Tensor]:
    """A layer of a transformer, and its gradients."""
    model = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True).to("tiny")
    x = drawn(2, n, 8).requires_grad_()
    loss = model(x).square().mean()
    loss.backward()
    return [loss.detach(), *[p.grad for p in (x, *model.parameters()) if p.grad is not None]]


def convolved(n: int) -> list[torch.Tensor]:
    """A convolution, pooling and normalization, and their gradients."""
    layers = nn.Conv1d(3, 4, 3, padding=1), nn.BatchNorm1d(4), nn.GELU(), nn.AdaptiveAvgPool1d(2)
    model = nn.Sequential(*layers).to("tiny")
    x = drawn(2, 3, n + 1).requires_grad_()
    loss = model(x).square().sum()
    loss.backward()
    return [loss.detach(), *[p.grad for p in (x, *model.parameters()) if p.grad is not None]]


FAST: dict[str, Program] = {"sums": sums, "moved": moved, "indexed": indexed, "integers": integers}
SLOW: dict[str, Program] = {"layer": layer, "convolved": convolved}


def forget_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the schedules, programs and forms of earlier tests, which may have the same kernels."""
    monkeypatch.setattr(moving_sizes, "_families", {})
    monkeypatch.setattr(scheduler, "SCHEDULES", scheduler.Schedules())
    steps.reset_state()
    for known in (PROGRAMS, PROGRAMS._at, PROGRAMS._places):
        known.clear()


def bits(program: Program, monkeypatch: pytest.MonkeyPatch, separate: int) -> list[list[torch.Tensor]]:
    """The bytes of a program's results at each size, with so many separate programs for each form."""
    monkeypatch.setattr(moving_sizes, "SEPARATE", separate)
    forget_programs(monkeypatch)
    torch.manual_seed(0)
    with Context(CACHELEVEL=0):
        return [[x.cpu().contiguous().reshape(-1).view(torch.uint8) for x in program(n)] for n in SIZES]


def differing(program: Program, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many results of a program have other bits with shared programs."""
    shared = bits(program, monkeypatch, 1)
    assert any(family.seen for family in moving_sizes._families.values())
    fixed = bits(program, monkeypatch, 1 << 30)
    return sum(not torch.equal(a, b) for f, s in zip(fixed, shared, strict=True) for a, b in zip(f, s, strict=True))


class TestValues:
    """A shared program computes the bits of a separate one."""

    @pytest.mark.parametrize("name", FAST)
    def test_equal_bits(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        assert differing(FAST[name], monkeypatch) == 0

    @pytest.mark.slow
    @pytest.mark.parametrize("name", SLOW)
    def test_equal_bits_of_modules(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        assert differing(SLOW[name], monkeypatch) == 0

    def test_a_wrong_size_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A planted fault: different numbers of a kernel are one argument."""
        admit = moving_sizes.Family.admit_numbers

        def join_all(family: moving_sizes.Family, numbers: moving_sizes.Numbers) -> None:
            admit(family, numbers)
            family.arguments = [[place for places in family.arguments for place in places]]

        monkeypatch.setattr(moving_sizes.Family, "admit_numbers", join_all)
        assert differing(lambda n: [drawn(2, n, 6).softmax(1)], monkeypatch) > 0


class TestPrograms:
    """A new size compiles nothing after the first ones."""

    def test_programs_compiled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Up to 16 terms, sums of all sizes have one form; larger ones are computed in float64. Regression test: after
        other tests, whose kernels have the same forms, less was compiled."""
        forget_programs(monkeypatch)
        compiled = []
        for n in (9, 10, 11, 12, 14, 15):
            x, before = drawn(n, 7), PROGRESS.kernels
            with Context(CACHELEVEL=0):
                ((x @ x.t()).softmax(1) @ x).square().mean().item()
            compiled.append(PROGRESS.kernels - before)
        assert min(compiled[:3]) > 2
        assert compiled[3:] == [0, 0, 0]

    def test_large_kernels_have_programs_of_their_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """tinygrad's optimizer needs to know the sizes."""
        forget_programs(monkeypatch)
        compiled = []
        for n in range(300, 305):
            x, before = drawn(n, 70), PROGRESS.kernels
            with Context(CACHELEVEL=0):
                (x + 1).cpu()
            compiled.append(PROGRESS.kernels - before)
        assert compiled == [1] * 5
