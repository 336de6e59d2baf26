"""Table of ops: the call, its inputs and their sizes, and the exact answer.

Defines `AccuracyRow`, `AccuracyCase`, `load` and `select`. A row is text that becomes one Python program. The worker
runs this program and a finding's script shows it, so the two cannot differ. This module must not import torch.
"""

from __future__ import annotations

import fnmatch
import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.record.accuracy import ACCURACY
from conformance.record.errors import UsageError
from conformance.record.names import nearest
from conformance.record.result import Named

FILE = Path(__file__).parent / "ops.toml"
NOT_JUDGED = "not_judged"
DIRECTIONS = ("forward", "backward")
DTYPES = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class AccuracyRow:
    """One op: `call` is an expression of the `inputs`, which are expressions, too.

    `exact` is the same function in mpmath, of `x` and possibly `y`. These are drawn from `range`, and `near` are points
    that some arguments approach.
    """

    name: str
    family: str
    call: str
    exact: str = ""
    range: tuple[float, float] = (-float("inf"), float("inf"))
    near: tuple[str, ...] = ()
    backward: bool = True
    constants: tuple[str, ...] = ()
    """Inputs without a gradient."""
    inputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the inputs, in order."""
        return tuple(self.inputs) or (("x", "y") if self.binary else ("x",))

    @property
    def binary(self) -> bool:
        """Whether it is an elementary function of two numbers."""
        return bool(self.exact) and ("(y" in self.call or "y)" in self.call or " y" in self.call)

    def program(self) -> str:
        """Return the source of the function `program`, which takes the inputs."""
        return f"def program({', '.join(self.arguments)}):\n    return {self.call}"

    def input_lines(self) -> list[str]:
        """Return the lines that create the inputs as the dict `given`, for an op with expressions for its inputs."""
        parts = ", ".join(f"{name!r}: {text}" for name, text in self.inputs.items())
        return ["torch.manual_seed(SEED)", f"given = {{{parts}}}"]


class OfRow(Named):
    """Base class of a case of a table row, which has a name, a family and a call."""

    row: Any

    @property
    def op(self) -> str:  # type: ignore[override]
        """The row's name."""
        return str(self.row.name)

    @property
    def family(self) -> str:
        """The row's family."""
        return str(self.row.family)

    @property
    def call(self) -> str:  # type: ignore[override]
        """The row's call."""
        return str(self.row.call)


@dataclass(frozen=True)
class AccuracyCase(OfRow):
    """One row in one dtype, forward or backward."""

    row: AccuracyRow
    dtype: str
    variant: str
    layout: str = ACCURACY
    overload: str = ""


@functools.cache
def load() -> tuple[tuple[AccuracyRow, ...], Mapping[str, Sequence[str]]]:
    """Return the rows, and the ops of op_db without a row, by reason."""
    tables = tomllib.loads(FILE.read_text(encoding="utf-8"))
    reasons = tables.pop(NOT_JUDGED, {})
    rows = [_row(name, family, dict(data)) for family, table in tables.items() for name, data in table.items()]
    return tuple(rows), reasons


def _row(name: str, family: str, data: dict[str, Any]) -> AccuracyRow:
    known: dict[str, Any] = {
        key: data.pop(key) for key in ("call", "exact", "range", "near", "backward", "constants") if key in data
    }
    for key in {"range", "near", "constants"} & known.keys():
        known[key] = tuple(known[key])
    return AccuracyRow(name, family, **known, inputs=data)


def select(ops: Sequence[str], dtypes: Sequence[str], variants: Sequence[str]) -> list[AccuracyCase]:
    """Return the cases of these globs of ops (empty: all), in each dtype and direction that the row supports.

    Only elementary functions have float64 cases. Raises UsageError for a glob without a match, and if no case remains.
    """
    rows, reasons = load()
    for glob in ops:
        if not any(fnmatch.fnmatchcase(row.name, glob) for row in rows):
            why = next((reason for reason, names in reasons.items() if glob in names), "")
            hint = f" ({why})" if why else nearest(glob, [row.name for row in rows])
            raise UsageError(f"no op in the table of accuracy matches {glob!r}{hint}")
    cases = [
        AccuracyCase(row, dtype, variant)
        for row in rows
        if not ops or any(fnmatch.fnmatchcase(row.name, glob) for glob in ops)
        for dtype in dtypes
        if row.exact or dtype != "float64"
        for variant in variants
        if variant == "forward" or row.backward
    ]
    if not cases:
        raise UsageError(
            f"no op among those chosen can be judged in {', '.join(dtypes)}, {', '.join(variants)}: in float64 only "
            "elementary functions are, by mpmath, and some ops have no derivative"
        )
    return cases
