"""Conformance tests of a PyTorch device or compiler, op by op and program by program, against torch CPU.

Defines the version and the names users may import from the top. These names are resolved on first use, because a target
has to register its device before torch's test machinery is imported. Importing `conformance` must therefore not import
torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["WrongOperator", "__version__", "check", "programs", "trace"]

_LAZY = {
    "WrongOperator": "conformance.sources.operator.verdict",
    "check": "conformance.sources.operator.api",
    "programs": "conformance.fuzz_views",
    "trace": "conformance.sources.trace.api",
}


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it, on first use (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
