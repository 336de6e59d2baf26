"""The training of hlb-CIFAR10 on tiny as on the CPU, from benchmarks/hlb_cifar10.py."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tinygrad.helpers import Context

import conformance.backend as backend
from benchmarks import hlb_cifar10
from benchmarks.hlb_cifar10 import Recipe

SMALL = Recipe(images=24, test_images=4, batch=8, test_batch=4, side=18, width=4, every=1, dtype="float64")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_epoch() -> None:
    """The losses of all steps and the results on the test images equal the CPU's.

    In float64 the difference of two correct devices stays small, although each step amplifies it. Kernels are not
    optimized, since their sizes are all new and most of the time would be code generation.
    """
    with Context(NOOPT=1):
        expected, actual = (hlb_cifar10.trained(SMALL, device) for device in ("cpu", "tiny"))
    assert len(set(expected.losses)) == len(expected.losses) == 3
    torch.testing.assert_close(actual.losses, expected.losses, rtol=1e-9, atol=0)
    torch.testing.assert_close(actual.tests, expected.tests, rtol=1e-9, atol=0)


def test_difference() -> None:
    """The difference is relative to the expected loss, and a loss that is nan differs from every number."""
    assert hlb_cifar10.difference([2.0, 4.0], [2.0, 5.0]) == 0.2
    assert hlb_cifar10.difference([2.0, float("nan")], [2.0, 5.0]) == float("inf")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_steps_are_replayed() -> None:
    """The batches and the rates of an epoch change, and its steps are not scheduled again."""
    recipe = dataclasses.replace(SMALL, images=96, every=100, dtype="float32")
    hlb_cifar10.trained(dataclasses.replace(recipe, steps=6), "tiny")
    backend.reset_stats()
    losses = hlb_cifar10.trained(dataclasses.replace(recipe, steps=9), "tiny").losses
    counts = backend.stats()
    assert len(losses) == 9
    assert counts["replayed"] >= 3
    assert counts["scheduled"] == 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_published_sizes() -> None:
    """Five steps with the published width and batch have the CPU's losses, within the benchmark's tolerance."""
    recipe = Recipe(images=10 * 1024, steps=5)
    expected, actual = (hlb_cifar10.trained(recipe, device) for device in ("cpu", "tiny"))
    torch.testing.assert_close(actual.losses, expected.losses, rtol=hlb_cifar10.TOLERANCE, atol=0)
