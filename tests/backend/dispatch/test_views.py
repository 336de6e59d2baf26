"""Views that are made in Python: torch treats them as views of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import conformance.backend  # noqa: F401

View = Callable[[torch.Tensor], torch.Tensor]
VIEWS: dict[str, View] = {
    "imag": lambda t: t.imag,
    "view_as_real": torch.view_as_real,
    "dtype": lambda t: t.view(torch.float32),
    "view_as_complex": lambda t: torch.view_as_complex(torch.view_as_real(t)),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("created", [False, True], ids=["before the mode", "in the mode"])
def test_a_view_in_inference_mode(name: str, created: bool) -> None:
    """A view has the kind that torch CPU gives it: normal or inference tensor. Formerly torch refused to set the
    version counter of a view of a normal tensor."""
    seen = []
    for device in ("cpu", "tiny"):
        with torch.inference_mode(created):
            t = torch.tensor([1 + 2j, 3j]).to(device)
        with torch.inference_mode():
            view = VIEWS[name](t)
            view.mul_(2)
            seen.append((view.is_inference(), view.tolist(), t.tolist()))
    assert seen[0] == seen[1]
