"""Conversions between dtypes within one kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import conformance.backend  # noqa: F401 - registers the device

X = torch.linspace(-3.0, 5.0, 40)

SELECTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "where": lambda x: torch.where(x > 1, x.half(), (x + 0.1).half()),
    "stack": lambda x: torch.stack([x[:20].half(), x[20:].half()]),
    "pad": lambda x: torch.nn.functional.pad(x.half(), (1, 1)),
    "masked_fill": lambda x: x.half().masked_fill(x > 1, 3),
    "flip": lambda x: x.half().flip(0),
    "of a selection": lambda x: torch.where(x > 2, torch.where(x > 1, x.half(), x.half() * 3), 2.0),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_a_selected_half_is_rounded(name: str) -> None:
    """A float32 in float16 and back has the precision of float16. Formerly it kept that of float32 if an operator that
    selects elements came in between, so that `a * b - stack(rows of a * b)` was not 0."""
    selected = SELECTIONS[name]
    assert torch.equal(selected(X.to("tiny")).float().cpu(), selected(X).float())
