"""Distances and most frequent elements beyond the samples of OpInfo."""

from __future__ import annotations

import math

import pytest
import torch

import conformance.backend  # noqa: F401

NAN, INF = math.nan, math.inf
ROWS = torch.tensor([[0.0, NAN], [INF, 1.0], [1.0, 2.0], [1.0, INF]])
OTHERS = torch.tensor([[0.0, 1.0], [NAN, NAN], [1.0, 2.0], [-INF, 0.0]])


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, INF])
def test_distances_of_nan_and_inf(p):
    """For p = 0 a nan formerly counted as an ordinary difference. For p = inf cdist ignores nan, and pdist does not."""
    mine, theirs = (torch.cdist(ROWS.to(d), OTHERS.to(d), p).cpu() for d in ("tiny", "cpu"))
    torch.testing.assert_close(mine, theirs, equal_nan=True)
    mine, theirs = (torch.pdist(ROWS.to(d), p).cpu() for d in ("tiny", "cpu"))
    torch.testing.assert_close(mine, theirs, equal_nan=True)


@pytest.mark.parametrize(
    ("elements", "value", "place"),
    [([1.0, NAN, NAN, NAN, 2.0, 2.0], 2.0, 5), ([NAN, NAN, NAN], NAN, 0), ([2.0, NAN, 1.0, 2.0], 2.0, 3)],
)
def test_a_nan_is_not_the_same_as_another(elements, value, place):
    """Nans are distinct for mode. Formerly they were counted together. For the last case the CPU returns 1, which
    occurs once, because its sort stops at a nan."""
    mode, at = torch.mode(torch.tensor(elements).to("tiny"))
    torch.testing.assert_close(mode.cpu(), torch.tensor(value), equal_nan=True)
    assert at.item() == place
