"""The step table: the rows of all families, and rows for op_db and for topics of functions.

Defines `OPS` and `FAMILIES`. The table derives a row for op_db, or for a topic, from the row's name on lookup and does
not store it. Drawing of ordinary programs uses the stored rows only.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from conformance.program.steps import (
    edges,
    factories,
    functions,
    fusion,
    hazards,
    lists,
    op_db,
    results,
    special,
    stateful,
    views,
    writes,
)
from conformance.program.steps.op import Op


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


_ROWS = (views.ROWS, writes.ROWS, results.ROWS, fusion.ROWS, special.ROWS, stateful.ROWS, edges.ROWS,
         lists.ROWS, hazards.ROWS, factories.ROWS, functions.ROWS)  # fmt: skip
OPS = StepTable({op.name: op for rows in _ROWS for op in rows})

FAMILY_OF = {name: op.family for name, op in OPS.items()}
"""Family of each stored step."""

FAMILIES: tuple[str, ...] = (*dict.fromkeys((*(op.family for op in OPS.values()), *functions.NAMES)), op_db.FAMILY)
