"""Cost of the harness: op_db on torch CPU against torch CPU, in milliseconds per sample.

With the CPU as its own target, the harness adds only sampling, moving, observing and comparing to two plain calls of
the op. The total time is therefore an upper bound of its cost. The last printed line is a JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

from conformance.engine.loading import load_target

TARGET = load_target("cpu")

from conformance.sources.opinfo import catalog, plan  # noqa: E402 - op_db reads the registered devices
from conformance.sources.opinfo.case import run_case  # noqa: E402


def main() -> None:
    """Run every N-th op of op_db and print the mean, the median and the slowest cases."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--every", type=int, default=5, metavar="N", help="only every N-th op (default: %(default)s)")
    parser.add_argument("--variant", default="forward", choices=list(plan.VARIANTS))
    parser.add_argument("--samples", type=int, default=20, help="samples an op (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    wanted = plan.Selection(variants=(args.variant,), samples=args.samples)
    cases = plan.select(catalog.entries(), [wanted])[:: args.every]
    begin = time.perf_counter()
    results = [run_case(case, TARGET) for case in cases]
    seconds = time.perf_counter() - begin
    costs = {result.id: 1000 * result.seconds / result.samples for result in results if result.samples}
    for name, cost in sorted(costs.items(), key=lambda item: -item[1])[:5]:
        print(f"{cost:8.1f} ms a sample  {name}")
    samples = sum(result.samples for result in results)
    figures = {"cases": len(cases), "samples": samples, "ms_a_sample": round(1000 * seconds / samples, 2)}
    print(json.dumps({**figures, "median_case_ms": round(statistics.median(costs.values()), 2)}))


if __name__ == "__main__":
    main()
