"""The step table: every op that a program may name, gathered from the families, and op_db's entries.

Defines `OPS` and `FAMILIES`. The key insight: the rows of op_db's entries follow from their names, so the table answers
for them without holding them: what it holds is what ordinary programs are drawn from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from conformance.program.steps import edges, fusion, op_db, results, special, stateful, views, writes
from conformance.program.steps.op import Op


class StepTable(Mapping[str, Op]):
    """Rows by name; it iterates over those that it holds, and answers for those of op_db's entries too."""

    def __init__(self, rows: Mapping[str, Op]) -> None:
        self.rows = rows

    def __getitem__(self, name: str) -> Op:
        return self.rows[name] if name in self.rows else op_db.row_of(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


_ROWS = (views.ROWS, writes.ROWS, results.ROWS, fusion.ROWS, special.ROWS, stateful.ROWS, edges.ROWS)
OPS = StepTable({op.name: op for rows in _ROWS for op in rows})

FAMILY_OF = {name: op.family for name, op in OPS.items()}
"""The family of each step of the table."""

FAMILIES: tuple[str, ...] = (*dict.fromkeys(op.family for op in OPS.values()), op_db.FAMILY)
