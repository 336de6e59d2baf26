"""Tolerances that a target's profile declares, for a device that computes with less precision than torch CPU.

    [[tolerance]]
    op = ["*mm", "linear", "conv*"]
    dtype = "float32"
    rtol = 0.01
    atol = 0.001
    reason = "the matrix unit rounds its operands to bfloat16"

An answer that passes only by such a tolerance is counted, and every report of a run states the tolerances: a wide one
hides faults, so it must not be forgotten. This module must not import torch.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.declare.declaration import known_keys, names_of, quoted
from conformance.record.errors import ReportError
from conformance.record.names import nearest
from conformance.record.patterns import base_operator

ROUNDED = ("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128")
"""The dtypes whose answers have a tolerance. Others must agree exactly."""

EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
"""The distance between 1 and the next number of a dtype. An ulp of a number x is at most this, times |x|."""

USUAL = {"float16": 1e-3, "bfloat16": 1.6e-2, "float32": 1.3e-6, "float64": 1e-7}
"""The rtol of torch.testing."""

LARGEST_PROPOSED = 0.1
"""The largest tolerance that is proposed: a larger error is a fault, not a rounding."""

MARGIN = 2.0
"""Factor between a measured error and the proposed tolerance, since other inputs round otherwise."""

KEYS = ("op", "dtype", "rtol", "atol", "reason")


@dataclass(frozen=True)
class DeclaredTolerance:
    """The tolerance of answers of these dtypes: |answer - right| <= atol + rtol * |right|. It holds for a call of an
    operator that one of the globs of `op` names, by its full name or without its module (`nn.functional.linear`,
    `linear`). In a program it holds for every answer, since later steps carry the error on."""

    dtype: tuple[str, ...]
    rtol: float
    atol: float
    reason: str
    op: tuple[str, ...] = ("*",)
    file: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)

    def covers(self, operators: Iterable[str]) -> bool:
        """Whether it holds for a subject that calls these operators."""
        names = {name for operator in operators for name in (operator.rpartition(":")[2], base_operator(operator))}
        return any(fnmatch.filter(names, glob) for glob in self.op)

    def __str__(self) -> str:
        of = f" of {', '.join(self.op)}" if self.op != ("*",) else ""
        return f"{', '.join(self.dtype)}{of}: rtol {self.rtol:g}, atol {self.atol:g} ({self.reason})"

    def toml(self) -> str:
        """Return the entry as TOML."""
        lists = {key: f"[{', '.join(map(quoted, getattr(self, key)))}]" for key in ("op", "dtype")}
        numbers = {key: f"{getattr(self, key):g}" for key in ("rtol", "atol")}
        rows = {**lists, **numbers, "reason": quoted(self.reason)}
        return "\n".join(["[[tolerance]]", *(f"{key} = {value}" for key, value in rows.items()), ""])


def declared_tolerances(path: Path, data: Mapping[str, Any], lines: list[str]) -> tuple[DeclaredTolerance, ...]:
    """Return the tolerances in the data of a profile. Raises ReportError with the file and the line."""
    tables = data.get("tolerance", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ReportError(f"{path}: 'tolerance' must be written as [[tolerance]] entries")
    heads = [number for number, line in enumerate(lines, 1) if re.match(r"\s*\[\[\s*tolerance\s*\]\]", line)]
    heads = heads if len(heads) == len(tables) else [0] * len(tables)
    return tuple(_tolerance(path, lines, head, table) for table, head in zip(tables, heads, strict=True))


def _tolerance(path: Path, lines: list[str], head: int, table: Mapping[str, Any]) -> DeclaredTolerance:
    where = f"{path}, line {head}"
    known_keys(path, lines, head, table, KEYS)
    dtypes, ops = names_of(where, "dtype", table.get("dtype")), names_of(where, "op", table.get("op", "*"))
    for name in dtypes:
        if name not in ROUNDED:
            hint = nearest(name, ROUNDED) or f"; use {', '.join(ROUNDED)}"
            raise ReportError(f"{where}: no tolerance can be declared for the dtype {name!r}{hint}")
    rtol, atol = (_number(where, key, table.get(key)) for key in ("rtol", "atol"))
    reason = table.get("reason")
    if not (isinstance(reason, str) and reason.strip()):
        raise ReportError(f"{where}: an entry needs a non-empty 'reason'")
    return DeclaredTolerance(dtypes, rtol, atol, reason, ops, str(path), head)


def _number(where: str, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ReportError(f"{where}: {key!r} must be a number, 0 or more")
    return float(value)


def covering(declared: Iterable[DeclaredTolerance], operators: Collection[str]) -> dict[str, tuple[float, float]]:
    """Return the (rtol, atol) that is declared for a subject that calls these operators, by dtype: of several, the
    largest numbers."""
    found: dict[str, tuple[float, float]] = {}
    for one in declared:
        for dtype in one.dtype if one.covers(operators) else ():
            rtol, atol = found.get(dtype, (0.0, 0.0))
            found[dtype] = max(rtol, one.rtol), max(atol, one.atol)
    return found


def unneeded(one: DeclaredTolerance, number: int, noun: str) -> str:
    """Return the sentence about a tolerance by which none of the samples or programs that it covers passed."""
    judged = f"the one {noun}" if number == 1 else f"any of the {number:,} {noun}s"
    where = f" ({Path(one.file).name}, line {one.line})" if one.line else ""
    return f"no tolerance was needed by {judged} that it covers: {one}{where}; remove it, since it may hide a fault"


def unneeded_by_cases(declared: Iterable[DeclaredTolerance], cases: Iterable[tuple[str, str, int, bool]]) -> list[str]:
    """Return a sentence for each tolerance that covers cases and by which none of their samples passed. Each case has
    its operator, its dtype, the number of its samples, and whether some passed by a tolerance only. What is not run
    does not count: one operator's run says nothing about another's tolerance."""
    cases, said = list(cases), []
    for one in declared:
        own = [(samples, by) for op, dtype, samples, by in cases if dtype in one.dtype and one.covers({op})]
        samples = sum(number for number, _ in own)
        if samples and not any(by for _, by in own):
            said.append(unneeded(one, samples, "sample"))
    return said


def proposed(measured: Iterable[tuple[str, str, float]], reason: str) -> list[DeclaredTolerance]:
    """Return tolerances for operators whose error is beyond torch.testing's: each `measured` has an operator, a dtype
    and an error in ulp. Operators of one dtype and tolerance share an entry. An error above `LARGEST_PROPOSED` has
    none."""
    largest: dict[tuple[str, str], float] = {}
    for op, dtype, ulp in measured:
        if dtype in EPSILON:
            largest[op, dtype] = max(MARGIN * ulp * EPSILON[dtype], largest.get((op, dtype), 0.0))
    together: dict[tuple[str, float], list[str]] = {}
    for (op, dtype), error in sorted(largest.items()):
        if USUAL[dtype] < error <= LARGEST_PROPOSED:
            together.setdefault((dtype, _round_up(error)), []).append(op)
    return [DeclaredTolerance((dtype,), rtol, rtol, reason, tuple(ops)) for (dtype, rtol), ops in together.items()]


def _round_up(number: float) -> float:
    """Return the least number of one digit that is not smaller: 0.0032 becomes 0.004."""
    unit = 10.0 ** math.floor(math.log10(number))
    return float(f"{math.ceil(number / unit) * unit:.0e}")
