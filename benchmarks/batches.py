"""Calls of op_db that are compiled together, and each alone: processor time, and whether both ways judge alike.

    python benchmarks/batches.py [--target inductor] [--variant forward] [--dtype float32] [--ops 12] [--seed 0]

Each case runs in both ways, in turns, without Inductor's caches. The times include the compiler's processes and
torch CPU's answers. A row whose verdicts differ is printed with both, and ends with exit code
1.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import sys
import warnings

os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")

from conformance.engine.loading import load_target
from conformance.record.result import Result
from conformance.sources.opinfo import catalog, plan
from conformance.sources.opinfo.case import run_case

SAMPLES = 16


def processor_time() -> float:
    """Seconds of processor time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def verdict(result: Result) -> tuple[str, int, int, int]:
    """The outcome, and the numbers of samples that were compared, failed and skipped."""
    return result.outcome.name, result.samples, result.failed, result.skipped


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", default="inductor")
    parser.add_argument("--variant", default="forward")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--ops", type=int, default=12, help="number of ops, chosen at random")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    target = load_target(args.target)
    entries = [entry for entry in catalog.entries() if args.variant in entry.variants and args.dtype in entry.dtypes]
    chosen = random.Random(args.seed).sample(entries, min(args.ops, len(entries)))
    seconds, compared, differing = {True: 0.0, False: 0.0}, 0, 0
    for entry in chosen:
        case = plan.Case(entry.op, entry.overload, entry.family, args.dtype, args.variant, "as_sampled", SAMPLES)
        results = {}
        for together in (True, False):
            begin = processor_time()
            results[together] = run_case(case, target, together=together)
            seconds[together] += processor_time() - begin
        compared += results[False].samples
        one, other = map(verdict, results.values())
        differing += one != other
        print(f"{case.id:60}{one}{f' together, alone {other}' * (one != other)}", flush=True)
    print(f"{compared} calls: {seconds[True]:.1f} s together, {seconds[False]:.1f} s alone, "
          f"ratio {seconds[False] / max(seconds[True], 1e-9):.1f}; {differing} verdicts differ")  # fmt: skip
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())
