"""Kernel counts by line: the work of a block of code on the tiny device, the lines that caused it, and the reasons.

`count`, `budget` and the other names are resolved on first use (PEP 562), so that the command can report missing
packages of the device. `counting` defines them; ``conformance kernels SCRIPT.py`` prints the count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformance.backend.kernels.counting import BUDGETS, Count, OverBudget, Place, budget, count, trace

__all__ = ["BUDGETS", "Count", "OverBudget", "Place", "budget", "count", "trace"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use. Raises ImportError with one sentence if the device cannot be used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from conformance.backend.kernels import counting

    return getattr(counting, name)
