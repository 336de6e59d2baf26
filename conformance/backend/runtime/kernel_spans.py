"""Profiler spans of kernels, which run one at a time, each within a separate span.

Defines `measured` and `run_measured`. A kernel's launch returns before the kernel has finished, so each span includes a
wait for the device. Kernels of one schedule therefore do not overlap while a profiler runs.

This module must not depend on torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from tinygrad.device import Device
from tinygrad.engine.realize import run_linear
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp

from .trace import KernelSpan


@contextmanager
def measured(span: KernelSpan, name: str, devices: Iterable[str]) -> Iterator[None]:
    """Within the block one kernel starts; its span ends when these tinygrad devices have finished."""
    with span(f"tiny::{name}"):
        yield
        for device in devices:
            Device[device].synchronize()


def devices_of(call: UOp) -> set[str]:
    """tinygrad's names of the devices that hold the operands and results of a call."""
    names_of_devices = [s.device for s in call.src[1:] if s.device is not None]
    return {name for names in names_of_devices for name in ([names] if isinstance(names, str) else names)}


def run_measured(span: KernelSpan, linked: UOp, names: Sequence[str], variables: dict[str, int]) -> None:
    """Run a linked schedule call by call."""
    for call, name in zip(linked.src, names, strict=True):
        with measured(span, name, devices_of(call)):
            run_linear(UOp(Ops.LINEAR, src=(call,)), variables, jit=True)
