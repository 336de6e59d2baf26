"""The `tiny` device that this package ships: all that is observed is computed in one schedule, kernels are counted."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from conformance.target import ORACLES, KernelCount, Target, TargetError


class TinyTarget(Target):
    name = "tiny"
    oracles = frozenset(ORACLES) - {"version"}
    backend: Any

    def prepare(self) -> None:
        """Import `conformance.backend`, which registers the device."""
        try:
            from conformance import backend
        except ImportError as error:
            raise TargetError(f"the tiny device needs tinygrad: {error}; run `pip install tinygrad==0.14.0`") from error
        self.backend = backend
        self.device = torch.device("tiny")
        try:
            backend.ensure_compiler()
            (torch.ones(2).to(self.device) * 3).cpu()
        except (RuntimeError, OSError, backend.ToolchainError) as error:
            reason = str(error).partition("\n")[0]
            raise TargetError(f"the tiny device is registered but cannot compute: {reason}") from error

    def download(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Compute every storage in one schedule, then copy each to the host."""
        realize = getattr(self.backend, "realize", None)
        if realize is not None:
            realize(list(flats))
        return super().download(flats)

    def synchronize(self) -> None:
        """tinygrad's CPU queue is waited for by every copy to the host."""

    @contextlib.contextmanager
    def kernels(self) -> Iterator[KernelCount]:
        """Count tinygrad's kernels through the backend's statistics."""
        count, before = KernelCount(), self._kernels()
        yield count
        count.total = self._kernels() - before

    def _kernels(self) -> int:
        stats = self.backend.stats()
        return int(stats["kernels"] if isinstance(stats, dict) else stats.kernels)

    def environment(self) -> dict[str, str]:
        """Versions of torch and tinygrad and tinygrad's own device."""
        from importlib.metadata import version

        import tinygrad
        return {**super().environment(), "tinygrad": version("tinygrad"), "tinygrad device": tinygrad.Device.DEFAULT}

    def script(self) -> str:
        """The import that registers `tiny`."""
        return 'import conformance.backend\nDEVICE = "tiny"'
