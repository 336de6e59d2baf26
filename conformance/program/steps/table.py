"""The step table: the rows of all families, and rows for op_db and for topics of functions.

Defines `OPS` and `FAMILIES`. Each module of this folder may have `ROWS`: a file with one row adds a family. The table
derives a row for op_db, or for a topic, from the row's name on lookup and does not store it. Drawing of ordinary
programs uses the stored rows only.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator, Mapping

from conformance.program import steps
from conformance.program.steps import functions, op_db
from conformance.program.steps.op import Op

FIRST = ("views", "writes", "results", "fusion", "special", "stateful", "edges", "lists", "hazards", "factories")
"""Modules whose rows come first, in this order; those of other modules follow by name. The order is part of what a seed
draws, so a new module must not move the rows of these."""


class StepTable(Mapping[str, Op]):
    """Rows by name. Iteration covers the stored rows; lookup also accepts names of derived rows."""

    def __init__(self, rows: Mapping[str, Op]) -> None:
        self.rows = rows

    def __getitem__(self, name: str) -> Op:
        return self.rows[name] if name in self.rows else _derived(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


@functools.cache
def _derived(name: str) -> Op:
    return functions.row_of(name, op_db.callable_as) or op_db.row_of(name)


def _rows() -> Iterator[Op]:
    """Yield the rows of all modules of this folder."""
    others = sorted({module.name for module in pkgutil.iter_modules(steps.__path__)} - {*FIRST, "table"})
    for name in (*FIRST, *others):
        yield from getattr(importlib.import_module(f"{steps.__name__}.{name}"), "ROWS", ())


OPS = StepTable({op.name: op for op in _rows()})

FAMILY_OF = {name: op.family for name, op in OPS.items()}
"""Family of each stored step."""

FAMILIES: tuple[str, ...] = (*dict.fromkeys((*(op.family for op in OPS.values()), *functions.NAMES)), op_db.FAMILY)
