"""The step table: the rows of all families, and rows for op_db.

Defines `OPS` and `FAMILIES`. The table derives a row for op_db from the row's name on lookup and does not store it.
Drawing of ordinary programs uses the stored rows only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from conformance.program.steps import (
    edges,
    factories,
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
    """Rows by name. Iteration covers the stored rows; lookup also accepts names of op_db rows."""

    def __init__(self, rows: Mapping[str, Op]) -> None:
        self.rows = rows

    def __getitem__(self, name: str) -> Op:
        return self.rows[name] if name in self.rows else op_db.row_of(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


_ROWS = (views.ROWS, writes.ROWS, results.ROWS, fusion.ROWS, special.ROWS, stateful.ROWS, edges.ROWS,
         lists.ROWS, hazards.ROWS, factories.ROWS)  # fmt: skip
OPS = StepTable({op.name: op for rows in _ROWS for op in rows})

FAMILY_OF = {name: op.family for name, op in OPS.items()}
"""Family of each stored step."""

FAMILIES: tuple[str, ...] = (*dict.fromkeys(op.family for op in OPS.values()), op_db.FAMILY)
