"""Kernel budgets: numbers of kernels and copies of whole workloads, in a JSON file next to the baseline.

Defines `load` and `dumps`. The key insight: the count of a workload is the same on every machine, so any rise is a
regression. The benchmarks define the workloads, not this module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from conformance.record import simple_values
from conformance.record.errors import ReportError
from conformance.record.files import read

NAME = "kernels.json"


def load(path: Path) -> dict[str, dict[str, int]]:
    """Read `{"workload": {"kernels": 3, "copies_in": 1, "copies_out": 1}}` from a file; empty if there is no file.
    Raises ReportError if the file holds something else."""
    try:
        counts: dict[str, dict[str, int]] = simple_values.load(
            dict[str, dict[str, int]], read(path) if path.exists() else {}
        )
    except TypeError:
        raise ReportError(
            f"{path} holds no kernel budgets; write it with benchmarks/kernel_counts.py --json."
        ) from None
    return counts


def dumps(counts: Mapping[str, Mapping[str, int]]) -> str:
    """The counts as file content, one workload per line."""
    lines = (f" {json.dumps(name)}: {json.dumps(dict(counts[name]))}" for name in sorted(counts))
    return "{\n" + ",\n".join(lines) + "\n}\n"
