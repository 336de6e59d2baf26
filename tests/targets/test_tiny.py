"""The target `tiny`."""

from __future__ import annotations

import pytest
import torch

from conformance.engine.loading import load_target
from conformance.record.measurements import growth

tinygrad = pytest.importorskip("tinygrad")


def test_the_device_that_is_named_is_the_one_that_computes(monkeypatch):
    """The environment names the device that computes. Regression test: on a machine with an OpenCL driver, a report
    named CL, which plain tinygrad chooses there, although tiny computed on the CPU."""
    target = load_target("tiny")
    monkeypatch.setattr(type(tinygrad.Device), "DEFAULT", "CL")
    before = target.counters()
    torch.ones(3, device="tiny").exp().cpu()
    assert growth(before, target.counters()).counts["kernels"] == 1
    assert target.environment()["tinygrad device"] == "CPU"
