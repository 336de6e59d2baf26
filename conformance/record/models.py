"""The outcome of recorded models on a target: the rows of the table model x outcome. This module must not import torch.

Defines `ModelRow`, `sentence` and `merged`. A model is a set of distinct operator calls. An operator stops the model if
a call of it raises, ends its process, or is declared lacking; an operator is wrong if a call of it gives another answer
than torch CPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

MODELS = "models"
"""The name of the command and of its files."""

MOST = 4
"""Number of operators that a row names."""


@dataclass(frozen=True)
class ModelRow:
    """One recorded model: the number of its distinct calls, the number of those that were compared or stop it, and the
    calls that stop it and that are wrong, by operator."""

    name: str
    calls: int
    compared: int
    stopped: Mapping[str, int] = field(default_factory=dict)
    wrong: Mapping[str, int] = field(default_factory=dict)
    WRITTEN: ClassVar = ("calls", "compared")

    @property
    def runs(self) -> bool:
        """Whether every call was compared, and none stops the model or is wrong."""
        return 0 < self.compared == self.calls and not (self.stopped or self.wrong)

    @property
    def partial(self) -> bool:
        """Whether only some calls were compared, and none stops the model or is wrong. It is not known to run."""
        return 0 < self.compared < self.calls and not (self.stopped or self.wrong)

    @property
    def outcome(self) -> str:
        """The outcome in words."""
        if not self.compared:
            return "not run"
        parts = [f"stopped by {_named(self.stopped)}"] if self.stopped else []
        parts += [f"wrong in {_named(self.wrong)}"] if self.wrong else []
        return "; ".join(parts) or ("runs" if self.runs else "no difference in these calls")


def _named(operators: Mapping[str, int]) -> str:
    more = [f"{len(operators) - MOST} more"] if len(operators) > MOST else []
    return ", ".join([*[f"{name} ({count})" for name, count in [*operators.items()][:MOST]], *more])


def sentence(rows: Sequence[ModelRow]) -> str:
    """Return how many models run, are stopped, and are wrong."""
    run, stopped, wrong = (sum(bool(getattr(row, of)) for row in rows) for of in ("runs", "stopped", "wrong"))
    text = f"{run} of {len(rows)} models run, {stopped} stopped, {wrong} wrong"
    partly, left = sum(row.partial for row in rows), sum(not row.compared for row in rows)
    return text + (f", {partly} compared in part" if partly else "") + (f", {left} not run" if left else "")


def merged(parts: Iterable[Sequence[ModelRow]]) -> tuple[ModelRow, ...]:
    """Join the rows of several shards: add the calls that were compared, stop the model and are wrong."""
    rows: dict[str, ModelRow] = {}
    for row in (row for part in parts for row in part):
        other = rows.get(row.name, ModelRow(row.name, row.calls, 0))
        stopped, wrong = (
            dict((Counter(mine) + Counter(others)).most_common())
            for mine, others in ((row.stopped, other.stopped), (row.wrong, other.wrong))
        )
        rows[row.name] = ModelRow(row.name, row.calls, row.compared + other.compared, stopped, wrong)
    return tuple(rows.values())
