"""Campaigns on the toy backends of `tests/planted`: the planted faults that they find, and the listed findings.

    python benchmarks/planted_backends.py [--programs 200] [--seed 0] [--tree DIR ...] [--only NAME] [--together]

`reported_device` and `reported_compiler` have faults of reported devices (`tests/planted/reported_faults.py`).

A fault counts as found if a saved program fails with this fault alone and passes without any. A finding is a listed
result, a cause an entry of the report. `--tree` names checkouts to compare, such as one of an earlier version; each
campaign runs in the checkout's own code, and all saved programs are judged by this one's.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
PLANTED = ROOT / "tests" / "planted"
sys.path[:0] = [str(ROOT), str(PLANTED)]

from conformance.engine.loading import load_target  # noqa: E402 - of this checkout, with the planted modules
from conformance.program.calls import judge_program  # noqa: E402
from conformance.program.model import ProgramError, read_program  # noqa: E402
from conformance.record.causes import causes_of  # noqa: E402
from conformance.record.result import load  # noqa: E402
from tests.planted.reported_faults import WRONG  # noqa: E402

WRONG_VALUES = tuple(function.__name__ for function in WRONG.values())
BACKENDS = {
    "toy_compiler": ("compile:toy,import=toy_compiler", ("copies", "lost_add_", "relu", "mul", "half")),
    "toy_device": ("device:toy,import=toy_device", ("lost_copy_", "relu", "unfold")),
    "reported_compiler": (
        "compile:reported,import=tests.planted.reported_faults",
        tuple(name for name in WRONG_VALUES if name not in ("tanh_backward", "attention_64", "nonzero_1024")),
    ),
    "reported_device": ("device:cpu,import=tests.planted.reported_faults,call=enable", WRONG_VALUES),
}


def campaign(tree: Path, spec: str, faults: str, args: argparse.Namespace, reports: Path) -> float:
    """Run a campaign with these faults in a checkout; return its seconds."""
    environment = os.environ | {"TOY_FAULTS": faults, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PLANTED)}
    words = ["--target", spec, "--seed", str(args.seed), "--programs", str(args.programs), "--reports", str(reports)]
    begin = time.monotonic()
    command = [sys.executable, "-m", "conformance.fuzz", *words]
    subprocess.run(command, cwd=tree, env=environment, check=False, stdout=subprocess.DEVNULL)
    return time.monotonic() - begin


@functools.cache
def loaded(spec: str) -> Any:
    """The target of a saved program, with the features that the probe found lacking."""
    return load_target(spec)


def judged(path: Path, faults: str) -> bool:
    """Whether a saved program fails on its target with these faults."""
    os.environ["TOY_FAULTS"] = faults
    target = loaded(json.loads(path.read_text())["target"])
    try:
        return bool(judge_program(read_program(path), target, locate=False).mismatches)
    except ProgramError:
        return False


def detected(reports: Path, faults: tuple[str, ...]) -> list[str]:
    """Return the faults that a saved program shows without other faults."""
    seen = set[str]()
    for path in sorted((reports / "failures").glob("*.json")):
        if json.loads(path.read_text())["kind"] == "FAIL" and not judged(path, ""):
            seen |= {fault for fault in faults if fault not in seen and judged(path, fault)}
    return [fault for fault in faults if fault in seen]


def main() -> None:
    """Run the campaigns, print a line after each and a table at the end."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tree", type=Path, action="append", help="a checkout (default: this one)")
    parser.add_argument("--only", choices=BACKENDS, help="one of the backends")
    parser.add_argument("--together", action="store_true", help="only with all faults of a backend at once")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    table = Table("checkout", "backend", "planted", "found", "programs", "findings", "causes", "seconds")
    for backend, (spec, faults) in BACKENDS.items():
        if args.only not in (None, backend):
            continue
        for planted in (*(() if args.together else ((fault,) for fault in faults)), faults):
            for tree in args.tree or [ROOT]:
                with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
                    reports = Path(folder)
                    seconds = campaign(tree, spec, ",".join(planted), args, reports)
                    run, shown = load(reports / "fuzz.json"), detected(reports, planted)
                    listed = [result for result in run.findings if result.outcome != "XFAIL"]
                    drawn = str(run.drawn.programs) if run.drawn else ""
                    names = "all" if planted == faults else planted[0]
                    counts = drawn, str(len(listed)), str(len(causes_of(listed))), f"{seconds:.0f}"
                    missed = ", ".join(fault for fault in planted if fault not in shown)
                    found = f"{len(shown)} of {len(planted)}{f', not {missed}' if missed else ''}"
                    row = tree.name, backend, names, found, *counts
                    print(*row, sep=" | ", flush=True)
                    table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
