"""How often real programs call an operator, as `scripts/operator_usage.py` measured it.

Defines `usage_of`. The key insight: a kernel of an in-place operator and that of its out= form are one and the same for
most operators, so calls are counted by the operator's name without overload and without its last underscore."""

from __future__ import annotations

import functools
import json
from collections import Counter
from pathlib import Path

DATA = Path(__file__).with_name("usage.json")


@functools.cache
def measured() -> dict[str, Counter[str]]:
    """Calls by program and by the operator's plain name."""
    programs = json.loads(DATA.read_text(encoding="utf-8"))["programs"]
    made: dict[str, Counter[str]] = {}
    for program, calls in programs.items():
        made[program] = Counter()
        for operator, count in calls.items():
            made[program][plain_name(operator)] += count
    return made


def plain_name(operator: str) -> str:
    """`add` of aten::add_.Tensor."""
    name = operator.removeprefix("aten::").partition(".")[0]
    return name.rstrip("_") if not name.startswith("__") else name


def usage_of(operator: str) -> tuple[int, int, float]:
    """Of an operator such as aten::add.out: how many programs call it, how many were measured, and its share of all
    their calls, from 0 to 1."""
    name, programs = plain_name(operator), measured()
    calls = sum(counts[name] for counts in programs.values())
    total = sum(counts.total() for counts in programs.values())
    return sum(counts[name] > 0 for counts in programs.values()), len(programs), calls / max(total, 1)
