"""Kernel budgets: how many kernels and copies whole workloads take, a JSON file of counts beside the baseline.

Defines `load` and `dumps`. The key insight: a count of a workload is exact on every machine, so any rise is a
regression. What the workloads are is not known here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from conformance.core import plain
from conformance.core.errors import ReportError
from conformance.core.files import read

NAME = "kernels.json"


def load(path: Path) -> dict[str, dict[str, int]]:
    """`{"workload": {"kernels": 3, "copies_in": 1, "copies_out": 1}}` from a file; empty when there is none. Raises
    ReportError for a file that is something else."""
    try:
        counts: dict[str, dict[str, int]] = plain.load(dict[str, dict[str, int]], read(path) if path.exists() else {})
    except TypeError:
        raise ReportError(
            f"{path} holds no kernel budgets; write it with benchmarks/kernel_counts.py --json."
        ) from None
    return counts


def dumps(counts: Mapping[str, Mapping[str, int]]) -> str:
    """The counts as the file holds them, one workload a line."""
    lines = (f" {json.dumps(name)}: {json.dumps(dict(counts[name]))}" for name in sorted(counts))
    return "{\n" + ",\n".join(lines) + "\n}\n"
