"""Processor time of `conformance.check` for one operator: until the first verdict, and in all, with the slowest
procedures.

The operators are the correct ones of tests/planted/kernels.py, where every check runs to its end, and a wrong one,
whose first verdict is its difference, with the minimized script. The time is that of the processors of all processes.

Usage: ``python benchmarks/operator_check.py [NAME ...]``; see --help
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for use as a script
from conformance.sources.operator.examine import CheckRequest, examination, verdicts
from conformance.sources.operator.finding import minimized
from conformance.sources.operator.forks import processor_time
from conformance.sources.operator.script import script
from conformance.sources.operator.table import CHECKS
from tests.planted.kernels import CORRECT, LIES


def measure(name: str) -> None:
    """Print the times of one operator."""
    request = CheckRequest(**CORRECT.get(name) or LIES[name], near="tests.planted.kernels")
    begin, first, last = processor_time(), 0.0, 0.0
    trial, parts, wrong = examination(request), dict[str, float](), []
    for verdict in verdicts(trial, request):
        now = processor_time() - begin
        first, procedure = first or now, CHECKS[verdict.check].procedure
        parts[procedure] = parts.get(procedure, 0.0) + now - last
        last = now
        wrong += [verdict.finding] if verdict.finding else []
    if wrong:
        script(trial, minimized(trial, wrong[0]))
    slowest = sorted(parts, key=parts.__getitem__, reverse=True)[:3]
    shown = ", ".join(f"{each} {parts[each]:.1f}" for each in slowest)
    print(f"{name:14} {first:6.1f} {processor_time() - begin:6.1f} s  {shown}")


def main() -> None:
    """Print a line for each operator."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", nargs="*", default=[*CORRECT, "values"], help="operators of tests/planted/kernels.py")
    names = parser.parse_args().name
    importlib.import_module("torch._dynamo")  # part of no operator's time
    print(f"{'operator':14} {'first':>6} {'all':>6}    slowest procedures, s")
    for name in names:
        measure(name)


if __name__ == "__main__":
    main()
