"""The cases of `conformance modules`: each module in each mode, each optimizer in each form, and their round trips.

Defines `StatefulCase` and `select`. The rows come from `rows.json`, which `python -m scripts.module_table` writes:
this module must not import torch.
"""

from __future__ import annotations

import fnmatch
import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.record.errors import UsageError
from conformance.record.names import MODULES, nearest
from conformance.record.result import Named

ROWS = Path(__file__).with_name("rows.json")
OPTIMIZER = "optim."
"""What the names of optimizers begin with."""

ROUND_TRIP = "state_dict"
VARIANTS = ("train", "eval", ROUND_TRIP, "step", "foreach", "fused")
"""The modes of a module, the forms of an optimizer's step, and what both have: a state that is saved and loaded."""

DTYPES = ("float32", "float64")
"""The dtypes of a run without `--dtype`."""

ILL_CONDITIONED = ("LBFGS",)
"""Optimizers that are compared in float64 only. Given gradients are of no function, so that a step of LBFGS divides by
what cancels: in float32, torch CPU itself is off by 300,000 tolerances from its answer in float64."""


@dataclass(frozen=True)
class StatefulCase(Named):
    """All samples of a module or of an optimizer, in one dtype and variant."""

    op: str
    dtype: str
    variant: str
    overload: str = ""
    layout: str = MODULES
    family: str = ""
    call: str = ""

    @property
    def optimizer(self) -> str:
        """The name of the optimizer; "" for a module."""
        return self.op.removeprefix(OPTIMIZER) if self.op.startswith(OPTIMIZER) else ""


@functools.cache
def rows() -> dict[str, Any]:
    """Return the table: the entries of `module_db` and of `optim_db`, and the torch that has them."""
    result: dict[str, Any] = json.loads(ROWS.read_text(encoding="utf-8"))
    return result


def names() -> list[str]:
    """Return the names of all modules and optimizers."""
    return [*rows()["modules"], *(f"{OPTIMIZER}{name}" for name in rows()["optimizers"])]


def load(dtypes: Sequence[str], variants: Sequence[str]) -> list[StatefulCase]:
    """Return all cases of these dtypes and variants."""
    modules = [
        StatefulCase(name, dtype, variant, family="modules")
        for name, row in rows()["modules"].items()
        for dtype in dtypes
        if dtype in row["dtypes"]
        for variant in (*row["modes"], ROUND_TRIP)
    ]
    optimizers = [
        StatefulCase(f"{OPTIMIZER}{name}", dtype, variant, family="optimizers")
        for name, forms in rows()["optimizers"].items()
        for dtype in dtypes
        if dtype in DTYPES and not (dtype == "float32" and name in ILL_CONDITIONED)
        for variant in (*forms, ROUND_TRIP)
    ]
    return [case for case in (*modules, *optimizers) if case.variant in variants]


def select(patterns: Iterable[str], dtypes: Sequence[str], variants: Sequence[str]) -> list[StatefulCase]:
    """Return the cases whose name matches a pattern, all without one. Raises UsageError for a pattern without a name,
    and if no case is left."""
    patterns = [*patterns]
    for pattern in patterns:
        if not fnmatch.filter(names(), pattern):
            hint = nearest(pattern, names()) or "; write nn.NAME or optim.NAME"
            raise UsageError(f"no module or optimizer has the name {pattern!r}{hint}")
    wanted = {name for pattern in patterns or ["*"] for name in fnmatch.filter(names(), pattern)}
    cases = [case for case in load(dtypes, variants) if case.op in wanted]
    if not cases:
        raise UsageError(f"none of these is defined for {', '.join(dtypes)} and {', '.join(variants)}")
    return cases
