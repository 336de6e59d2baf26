"""The device `tiny`: a PyTorch device on tinygrad, in pure Python. Importing this package registers it.

    import conformance.backend
    torch.ones(3, device="tiny") + 1

Storages, strides, offsets and views are torch's own. Values are lazy tinygrad graphs, computed when they are read. This
package does not depend on the test harness.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from . import installation  # noqa: F401 - first: what is missing is one sentence
from .dispatch import tensors
from .dispatch.call_caches import forget_calls
from .dispatch.registry import reset_state
from .lazy import flush
from .lazy.calls import queue_calls
from .lazy.storage import storage_of
from .runtime.stats import FallbackError, no_fallback, reset_stats, stats
from .runtime.toolchain import Compiler, ToolchainError, ensure_compiler
from .torch_api import autocast, default_compiler, device_module, skip_dynamo
from .torch_api.install import install

device_module.register()
install()
autocast.install()
default_compiler.install()
skip_dynamo.skip_dynamo_frames()


forget_numbers = reset_state  # the earlier name


def realize(tensors_: Iterable[torch.Tensor] = ()) -> None:
    """Compute these tiny tensors and all storages written in place, in one schedule. Copies nothing."""
    flush.flush([storage_of(t) for t in tensors_], why="realize")


__all__ = [
    "Compiler",
    "FallbackError",
    "ToolchainError",
    "ensure_compiler",
    "forget_calls",
    "forget_numbers",
    "no_fallback",
    "queue_calls",
    "realize",
    "reset_state",
    "reset_stats",
    "stats",
    "tensors",
]
