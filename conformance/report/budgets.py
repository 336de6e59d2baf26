"""Kernel budgets: how many kernels and copies whole workloads take, a JSON file of counts beside the baseline.

Defines `load` and `dumps`. The key insight: a count of a workload is exact on every machine, so any rise is a
regression. What the workloads are is not known here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from conformance.core.errors import ReportError

NAME = "kernels.json"


def load(path: Path) -> dict[str, dict[str, int]]:
    """`{"workload": {"kernels": 3, "copies_in": 1, "copies_out": 1}}` from a file; empty when there is none. Raises
    ReportError for a file that is something else."""
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except json.JSONDecodeError as error:
        raise ReportError(f"{path}, line {error.lineno}: not valid JSON ({error.msg}).") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{path} cannot be read ({error}).") from None
    if not (isinstance(data, dict) and all(map(_counts, data.values()))):
        raise ReportError(f"{path} holds no kernel budgets; write it with benchmarks/kernel_counts.py --json.")
    return data


def _counts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(count, int) for count in value.values())


def dumps(counts: Mapping[str, Mapping[str, int]]) -> str:
    """The counts as the file holds them, one workload a line."""
    lines = (f" {json.dumps(name)}: {json.dumps(dict(counts[name]))}" for name in sorted(counts))
    return "{\n" + ",\n".join(lines) + "\n}\n"
