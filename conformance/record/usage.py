"""Frequency of operators in real programs, as measured by `scripts/operator_usage.py`.

Defines `usage_of`. For most operators, the in-place form and the out= form share one kernel. So calls are counted by
the operator's name without overload and without its last underscore.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from pathlib import Path

DATA = Path(__file__).with_name("usage.json")


@functools.cache
def measured() -> dict[str, Counter[str]]:
    """Number of calls by program and by the operator's plain name."""
    programs = json.loads(DATA.read_text(encoding="utf-8"))["programs"]
    result: dict[str, Counter[str]] = {}
    for program, calls in programs.items():
        result[program] = Counter()
        for operator, count in calls.items():
            result[program][plain_name(operator)] += count
    return result


def plain_name(operator: str) -> str:
    """Return the plain name, such as `add` for aten::add_.Tensor."""
    name = operator.removeprefix("aten::").partition(".")[0]
    return name.rstrip("_") if not name.startswith("__") else name


def usage_of(operator: str) -> tuple[int, int, float]:
    """Return the usage of an operator such as aten::add.out: the number of programs that call it, the number measured,
    and its share of all their calls, from 0 to 1."""
    name, programs = plain_name(operator), measured()
    calls = sum(counts[name] for counts in programs.values())
    total = sum(counts.total() for counts in programs.values())
    return sum(counts[name] > 0 for counts in programs.values()), len(programs), calls / max(total, 1)
