"""The `tiny` device of this package: one schedule computes all observed values, and kernels are counted.

`tiny:RENDERER` is the same device with another of tinygrad's code generators. A failure under only one of them is not
the device's fault. tinygrad reads this choice once per process, so a process uses only one. `tiny:REPLAYED` runs each
subject four times and observes the last run. The first run records each call's geometry, and the second queues the
calls. The third records how the queue is computed, and the fourth computes no graph if the queue is the same.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch

from conformance.engine.target import Target, TargetFacts
from conformance.record.errors import TargetError
from conformance.record.measurements import CALLS, KERNELS, SCHEDULED
from conformance.record.names import ORACLES

RENDERERS = {"CLANG": "CPU:CLANG", "X86": "CPU:X86", "LLVM": "CPU:LLVM", "PYTHON": "PYTHON"}
"""tinygrad's code generators that need no further hardware, each with its value of `DEV`."""
REPLAYED = "REPLAYED"


def require_llvm() -> None:
    """Raise TargetError unless libLLVM is of version 16 or newer; older ones cannot read tinygrad's code."""
    try:
        from tinygrad.runtime.autogen import llvm

        llvm.dll.LLVMGetVersion  # noqa: B018 - a symbol that came with version 16
    except (AttributeError, ImportError, OSError) as error:
        raise TargetError(f"target 'tiny:LLVM' needs libLLVM 16 or newer: {error}") from error


class TinyTarget(Target):
    name = "tiny"
    facts = TargetFacts(
        oracles=frozenset(ORACLES), measures=(KERNELS, *CALLS, SCHEDULED), lazy=True, survives_fork=True
    )
    backend: Any

    def __init__(self, argument: str = "") -> None:
        super().__init__()
        self.replayed = argument.upper() == REPLAYED
        self.renderer = "" if self.replayed else argument.upper()
        if self.renderer and self.renderer not in RENDERERS:
            raise TargetError(
                f"target 'tiny:{argument}' names no renderer of tinygrad: choose from {', '.join(RENDERERS)}; "
                f"or {REPLAYED}"
            )
        if self.replayed:
            self.facts = replace(self.facts, rehearsals=3, siblings=("tiny",))
        else:
            others = tuple(f"tiny:{name}" for name in RENDERERS if name != (self.renderer or "CLANG"))
            self.facts = replace(self.facts, siblings=others)

    def prepare(self) -> None:
        """Choose the renderer and import `conformance.backend`, which registers the device. Raises TargetError."""
        if self.renderer:
            wanted = RENDERERS[self.renderer]
            if "tinygrad" in sys.modules and os.environ.get("DEV", "") != wanted:
                raise TargetError(
                    f"target 'tiny:{self.renderer}' needs a process of its own: tinygrad is already "
                    f"loaded with DEV={os.environ.get('DEV', '')!r}; set DEV={wanted} before it is"
                )
            os.environ["DEV"] = wanted
        try:
            if self.renderer == "LLVM" and find_spec("tinygrad"):  # otherwise the device reports the missing package
                require_llvm()
            from conformance import backend
        except ImportError as error:
            raise TargetError(f"target {self.spec!r} cannot be used: {error}") from error
        self.backend = backend
        if self.replayed:
            backend.queue_calls(True)  # independent of the environment
        self.device = torch.device("tiny")
        try:
            backend.ensure_compiler()
            (torch.ones(2).to(self.device) * 3).cpu()
        except Exception as error:  # tinygrad fails in many ways: a missing library, compiler or renderer
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            under = f" under {self.renderer}" if self.renderer else ""
            raise TargetError(f"the tiny device is registered but cannot compute{under}: {reason}") from error

    def download(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Compute every storage in one schedule, then copy each to the host."""
        realize = getattr(self.backend, "realize", None)
        if realize is not None:
            realize(list(flats))
        return super().download(flats)

    def synchronize(self) -> None:
        """Do nothing: every copy to the host waits for tinygrad's CPU queue."""

    def reset_state(self) -> None:
        """Let the backend forget earlier subjects, so that the kernels of a subject depend on it alone.

        The backend queues calls that it knows, and passes numbers that changed between calls to kernels as data. Both
        change the number of kernels. Writes of earlier subjects whose tensors are still alive, for example in the
        traceback of an error, are computed now, since they would be computed and counted with the next subject.
        """
        with contextlib.suppress(Exception):  # an error of an earlier subject, which its own run has reported
            self.backend.realize()
        self.backend.forget_calls()
        self.backend.reset_state()

    def counters(self) -> dict[str, Any]:
        """Return the backend's statistics: kernels, graphs scheduled, and calls, of which those that ran on the CPU are
        counted by operator."""
        stats = self.backend.stats()
        totals = {name: sum(stats[name].values()) for name in ("native", "decomposed")}
        return {**{measure.name: stats[measure.name] for measure in self.facts.measures}, **totals}

    def environment(self) -> dict[str, str]:
        """Return versions of torch and tinygrad, and the tinygrad device that computes, which may differ from
        tinygrad's default.
        """
        from importlib.metadata import version

        device = torch.get_device_module("tiny").get_device_name().removeprefix("tinygrad ")
        return {**super().environment(), "tinygrad": version("tinygrad"), "tinygrad device": device}

    def script(self) -> str:
        """Return the import that registers `tiny`, preceded by the choice of the renderer."""
        chosen = f'import os\nos.environ["DEV"] = {RENDERERS[self.renderer]!r}\n' if self.renderer else ""
        return chosen + 'import conformance.backend\nDEVICE = "tiny"'
