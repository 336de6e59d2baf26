"""The device `tiny`: a PyTorch device on tinygrad, in pure Python. Importing this package registers it.

    import conformance.backend
    torch.ones(3, device="tiny") + 1

Storages, strides, offsets and views are torch's own; values are lazy tinygrad graphs, computed when they are observed.
This package knows nothing of the test harness around it.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from . import (  # mends: before anything else is built
    autocast,
    construction,
    device,
    mends,  # noqa: F401
    mends_llvm,  # noqa: F401
    programs,
    storage,
    tensors,
    untraced,
)
from .install import install
from .rows import forget_numbers
from .stats import FallbackError, no_fallback, reset_stats, stats
from .toolchain import Compiler, ToolchainError, ensure_compiler

construction.install()
programs.install()
device.register()
install()
autocast.install()
untraced.keep_out()


def realize(tensors_: Iterable[torch.Tensor] = ()) -> None:
    """Compute these tiny tensors in one schedule, with everything that was written in place; copies nothing."""
    storage.observe([storage.cell_of(t) for t in tensors_], why="realize")


__all__ = [
    "Compiler",
    "FallbackError",
    "ToolchainError",
    "ensure_compiler",
    "forget_numbers",
    "no_fallback",
    "realize",
    "reset_stats",
    "stats",
    "tensors",
]
