"""A helper that runs a program on the CPU and on tiny and compares the results."""

from __future__ import annotations

from collections.abc import Callable

import torch

import conformance.backend  # noqa: F401

DEVICES = ("cpu", "tiny")


def both(program: Callable[[str], torch.Tensor | list[torch.Tensor]]) -> None:
    """Run a program on the CPU and on tiny. Values and geometry must be the same."""
    expected, actual = ([*r] if isinstance(r := program(d), (list, tuple)) else [r] for d in DEVICES)
    for e, a in zip(expected, actual, strict=True):
        assert a.device.type == "tiny"
        assert (a.dtype, a.size(), a.stride(), a.storage_offset()) == (
            e.dtype,
            e.size(),
            e.stride(),
            e.storage_offset(),
        )
        assert torch.equal(a.cpu(), e), f"{a.cpu()} is not {e}"
