"""Cost of a report: all its forms for 100,000 results, and the page of a full run, each in a separate process.

A tenth of the results fail, with values, pictures and scripts of usual length. Prints a JSON object for each size:
seconds, the peak memory of the process in MB, and the bytes of the page.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from conformance.record.measurements import CALLS, KERNELS, Measurements
from conformance.record.result import Failure, Outcome, Result, Run
from conformance.report import __main__ as report

SIZES = (2_200, 100_000)


def run(count: int) -> Run:
    """Run with `count` results: 700 ops in as many dtypes as needed."""
    results = []
    for i in range(count):
        bad = i % 10 == 0
        script = f"# {i}\n" + "x = torch.arange(6.0).reshape(2, 3)\n" * 40
        values = tuple((f"[{n}]", "1.0", "2.0", n == 3) for n in range(32))
        layout = {"size": [4, 8], "stride": [8, 1], "offset": 0}
        failure = Failure("value", "result", "1.0", "2.0", "one element differs", 0, "call", script, values,
                          {"expected": layout, "actual": layout})  # fmt: skip
        results.append(
            Result(
                f"op{i % 700}", f"dtype{i // 700}", "forward", "as_sampled", Outcome.FAIL if bad else Outcome.PASS,
                family=f"family {i % 24}", samples=20, failed=int(bad), failures=(failure,) if bad else (),
                measurements=Measurements(
                    {"kernels": i % 30, "native": 20, "decomposed": 3, "fallback": i % 2}, {"kernels": i % 40},
                    {"fallback": {"aten::x": 1}} if i % 2 else {},
                ),
                seconds=0.1,
            )
        )  # fmt: skip
    measures = (KERNELS, *CALLS)
    return Run("tiny", results, {"selection": "all"}, started="2026-01-01T00:00:00+00:00", measures=measures)


def measure(count: int) -> None:
    """Write the report and print its cost, without the time to build the run."""
    result = run(count)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        report.write(result, Path(folder), result)
        seconds = time.perf_counter() - begin
        size = (Path(folder) / "conformance.html").stat().st_size
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"results": count, "seconds": round(seconds, 2), "peak_mb": round(peak), "page_bytes": size}))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(int(sys.argv[1]))
    else:
        for size in SIZES:
            subprocess.run([sys.executable, __file__, str(size)], check=True)
