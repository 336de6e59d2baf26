"""Rounding errors of the device against float64 and mpmath: at most 4 times torch CPU's.

The cases are rows of the table of `conformance accuracy`: those with a former fault of the device, and one of each kind
of long sum. `nox -s slow` measures the whole table.
"""

from __future__ import annotations

import pytest

from conformance.engine.loading import load_target
from conformance.sources.accuracy.measure import measure
from conformance.sources.accuracy.table import DIRECTIONS, select

SUMS = {
    "nn.functional.batch_norm without weights": "The variance was summed in float32, 30 times less exact.",
    "matmul": "Products of 10000 terms were 7 times less exact.",
    "nn.functional.cross_entropy": "The mean of 1000 losses was 10 times less exact.",
    "trace": "The diagonal was summed in float32, where torch CPU sums in float64.",
    "nn.functional.layer_norm of images": "",
    "nn.functional.group_norm": "",
    "nn.functional.instance_norm": "",
    "var": "",
    "std": "",
    "mean": "",
    "log_softmax": "",
    "dot": "",
}
"""Ops with long sums, each with its former fault."""

ELEMENTARY = {
    "atanh": "2.2 ulp, by the logarithm",
    "cos": "79 ulp at large arguments",
    "cosh": "2.6 ulp, by the square of a root",
    "erfc": "42 ulp in its tail",
    "erfinv": "3 ulp",
    "lgamma": "no digit was right next to its zeros, 1 and 2",
    "log10": "3 ulp next to 1",
    "log2": "2.4 ulp next to 1",
    "logaddexp2": "7 ulp",
    "sin": "570 ulp at large arguments",
    "tan": "570 ulp at large arguments",
    "tanh": "2.2 ulp",
    "xlogy": "its gradient had the error of the logarithm",
    "nn.functional.mish": "its gradient was 10 times less exact",
}
"""Elementary functions, each with its former error."""


@pytest.mark.parametrize("variant", DIRECTIONS)
@pytest.mark.parametrize("name", [*SUMS, *ELEMENTARY])
def test_errors(name: str, variant: str) -> None:
    """No result and no gradient has more than 4 times the error of torch CPU's."""
    (case,) = select([name], ["float32"], [variant])
    worst, *_ = measure(case, load_target("tiny"))
    assert worst.accuracy.excess <= 1, worst.accuracy
