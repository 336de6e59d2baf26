"""Warnings of the device name the line of the caller, as torch's own warnings do."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch


def masked(device: str) -> None:
    torch.ones(3, device=device)[torch.tensor([1, 0, 1], dtype=torch.uint8, device=device)]


def discarding(device: str) -> None:
    torch.ones(3, device=device).copy_(torch.ones(3, dtype=torch.complex64, device=device))


def discarding_from_cpu(device: str) -> None:
    torch.ones(3, device=device).copy_(torch.ones(3, dtype=torch.complex64))


def one_sample(device: str) -> None:
    torch.ones(1, device=device).var()


def resized(device: str) -> None:
    torch.add(torch.ones(2, device=device), 1, out=torch.ones(3, device=device))


@pytest.fixture
def always() -> Iterator[None]:
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


def warned(call: Callable[[str], None], device: str) -> list[tuple[str, int, str]]:
    """Place and text of each warning of two calls."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(device)
        call(device)
    return [(warning.filename, warning.lineno, str(warning.message)[:40]) for warning in caught]


@pytest.mark.parametrize("call", [masked, discarding, discarding_from_cpu, one_sample, resized])
def test_the_place_is_the_callers(call: Callable[[str], None], always: None) -> None:
    """torch CPU and the device warn at the same file and line, and equally often, from the second call on too."""
    seen = warned(call, "cpu")
    assert len(seen) == 2
    assert warned(call, "tiny") == seen


@pytest.mark.parametrize("call", [discarding, discarding_from_cpu])
def test_a_warning_that_torch_gives_once(call: Callable[[str], None]) -> None:
    """The device gives it once, too."""
    warned(call, "tiny")
    assert warned(call, "tiny") == []
