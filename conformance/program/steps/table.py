"""The step table: every op that a program may name, gathered from the families."""

from __future__ import annotations

from conformance.program.steps import fusion, results, special, views, writes
from conformance.program.steps.op import Op

OPS: dict[str, Op] = {op.name: op for op in (*views.ROWS, *writes.ROWS, *results.ROWS, *fusion.ROWS, *special.ROWS)}

FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(op.family for op in OPS.values()))
