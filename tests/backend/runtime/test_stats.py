"""The kind that an operator is counted as: native, decomposed, on the host by design, or a fallback."""

from __future__ import annotations

import pytest
import torch

from conformance import backend

KINDS = ("native", "decomposed", "host", "fallback")


def kinds(program, *names: str) -> dict[str, set[str]]:
    """Return the operators that a program counts under each kind."""
    x = torch.rand(6).to("tiny")
    backend.reset_stats()
    program(x)
    return {kind: set(backend.stats()[kind]) for kind in KINDS}


@pytest.mark.parametrize(
    ("program", "op"),
    [
        (lambda x: x.uniform_(), "aten.uniform_.default"),
        (lambda x: torch.randperm(4, device=x.device), "aten.randperm.default"),
        (torch.bernoulli, "aten.bernoulli.default"),
        (torch.nn.functional.dropout, "aten.native_dropout.default"),
        (lambda x: x.unique(), "aten._unique2.default"),
        (lambda x: x.nonzero(), "aten.nonzero.default"),
    ],
)
def test_what_runs_on_the_host_by_design_is_a_kind_of_its_own(program, op):
    """A host operator counts as neither native nor a fallback, and is allowed under no_fallback()."""
    with backend.no_fallback():
        counted = kinds(program)
    assert op in counted["host"]
    assert op not in counted["native"] | counted["decomposed"] | counted["fallback"]


def test_other_kinds_stay_what_they_are():
    """A value function counts as native. A fallback counts as such, and is an error under no_fallback()."""
    assert kinds(lambda x: x + 1) == {
        "native": {"aten.add.Tensor"},
        "decomposed": set(),
        "host": set(),
        "fallback": set(),
    }
    assert kinds(lambda x: torch.linalg.eigvals(x.diag()))["fallback"]
    with pytest.raises(backend.FallbackError, match="eig"), backend.no_fallback():
        torch.linalg.eigvals(torch.ones(2, 2).to("tiny"))


def test_counts_begin_at_zero():
    """`reset_stats` clears every kind and every number."""
    torch.rand(3, device="tiny").unique()
    backend.reset_stats()
    assert not any(backend.stats().values())
