"""Prints the kernels of a dozen op_db cases on `tiny`, as JSON: `python -m tests.targets.count_kernels ORDER`.

    {"quantile float32 forward": 41, ...}

The cases are those whose counts once depended on the process: numbers that change between calls, indices that the host
reads, formulas in C++ with temporary results, schedules from the cache, and many small kernels.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from conformance.engine.loading import load_target
from conformance.engine.target import Target
from conformance.record.result import Outcome
from conformance.sources.opinfo.case import run_case
from conformance.sources.opinfo.plan import Case

CASES = tuple(
    Case(op, "", family, dtype, variant, "as_sampled", samples)
    for op, family, dtype, variant, samples in (
        ("quantile", "sorting", "float32", "forward", 6),
        ("nanquantile", "sorting", "float32", "forward", 6),
        ("ormqr", "linear algebra", "float32", "backward", 2),
        ("linalg.householder_product", "linear algebra", "float32", "backward", 2),
        ("linalg.cholesky", "linear algebra", "float32", "forward", 4),
        ("special.log_ndtr", "special", "float32", "backward", 2),
        ("nn.functional.triplet_margin_loss", "losses", "float32", "backward", 4),
        ("nn.functional.huber_loss", "losses", "float32", "forward", 6),
        ("index_put", "indexing", "float32", "inplace", 4),
        ("gather", "indexing", "int64", "forward", 4),
        ("cumsum", "scans", "bool", "forward", 4),
        ("add", "binary", "float32", "forward", 8),
    )
)


def count_kernels(cases: Sequence[Case], tiny: Target) -> dict[str, int]:
    """Run the cases in order; return the kernels of each. Raises AssertionError for a case that does not pass."""
    counts = {}
    for case in cases:
        result = run_case(case, tiny)
        assert result.outcome is Outcome.PASS, (case, result.reason, result.failures)
        count = result.measurements.get("kernels")
        assert count, case
        counts[f"{case.op} {case.dtype} {case.variant}"] = count
    return counts


if __name__ == "__main__":
    order = {"forwards": CASES, "backwards": CASES[::-1], "twice": (*CASES, *CASES)}[sys.argv[1]]
    json.dump(count_kernels(order, load_target("tiny")), sys.stdout)
