"""The time when lazy values are computed: a graph too deep for one schedule is cut."""

from __future__ import annotations

import gc

import pytest
import torch

from conformance import backend
from conformance.backend.lazy import flush
from conformance.backend.lazy.storage import LazyStorage


def test_a_cut_computes_what_lives_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut computes all live values of the graph once. Formerly it realized only the deepest value, and live values
    below it were computed again."""
    monkeypatch.setattr(flush, "MAX_DEPTH", 32)
    w, x = torch.eye(4).to("tiny"), torch.ones(2, 4).to("tiny")
    kept = []
    backend.reset_stats()
    for _ in range(20):
        x = (x @ w).relu()
        kept.append(x)
    assert sum(k.sum() for k in kept).item() == 160
    assert backend.stats()["kernels"] <= 24  # 20 values and their sum; 42 when each was computed twice


def test_temporary_results_do_not_change_the_kernels_of_a_cut() -> None:
    """The first call of a formula in C++ and its later calls take the same number of kernels. Only in the first call
    are the formula's temporary results alive when its graph is cut; formerly each was stored by a kernel."""
    counts = []
    for _ in range(2):
        x = torch.linspace(-3, 3, 37).to("tiny").requires_grad_()
        backend.reset_stats()
        y = torch.special.log_ndtr(x)
        (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
        gradient.cpu(), y.detach().cpu()
        counts.append(backend.stats()["kernels"])
    assert counts == [3, 3]


def test_cells_die_while_a_cut_looks_at_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A garbage collection during a cut is safe. It formerly raised "dictionary changed size during iteration"."""
    monkeypatch.setattr(flush, "MAX_DEPTH", 16)
    end_loop = flush.end_loop

    def collecting(lazy: LazyStorage) -> None:
        gc.collect()
        end_loop(lazy)

    monkeypatch.setattr(flush, "end_loop", collecting)
    x, looped = torch.ones(4).to("tiny"), torch.zeros(8).to("tiny")
    cycle = [x + 1]
    cycle.append(cycle)  # only the garbage collector frees it
    for i in range(4):
        looped[i] += 1
    del cycle
    gc.disable()
    try:
        for _ in range(20):
            x = x.sin() * 2
    finally:
        gc.enable()
    assert looped.sum().item() == 4
