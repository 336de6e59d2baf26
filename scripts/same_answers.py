"""Compare a campaign and a run of op_db between one local worker, two, one Ray node, and a Ray cluster of three nodes.

Every place is compared with one local worker, and its programs/s or seconds are printed. For a campaign: the kind,
signatures, numbers and minimal program of each finding, and all counts. For op_db: the result file, byte for byte
except for times, dates and the command. The targets are planted faults of `conformance mutants`, so that there are
findings. Exit code 1 if two places differ.

    python scripts/same_answers.py [--programs 10000] [--samples 2] [--places local1 ray] [--reports FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LIES = {"fuzz": "mutant:mask is off by one", "opinfo": "mutant:arithmetic results are contiguous"}
PLACES = {"local1": ["-n", "1"], "local2": ["-n", "2"], "ray": ["--pool", "ray", "-n", "2"], "nodes": ["-n", "3"]}
TIMES = {"seconds", "started", "calibration", "command"}


@contextlib.contextmanager
def options(place: str) -> Iterator[list[str]]:
    """Options of the command; for `nodes`, a cluster runs as long as the block, and its head runs no worker."""
    if place != "nodes":
        yield PLACES[place]
        return
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from tests.run import clusters

    with clusters.started(3) as cluster:
        yield [*PLACES[place], "--pool", cluster.address]


def run(command: str, *words: str) -> float:
    """Run a command that must have findings (exit code 1), and return its seconds."""
    began = time.monotonic()
    line = [sys.executable, "-m", "conformance", command, "--target", LIES[command], *words]
    done = subprocess.run(line, capture_output=True, check=False)
    if done.returncode != 1:
        sys.exit(f"conformance {command} {' '.join(words)} ended with {done.returncode}: {done.stderr.decode()[-500:]}")
    return time.monotonic() - began


def of_campaign(reports: Path) -> dict[str, Any]:
    """Findings of a campaign, by file, and its counts."""
    keys = ("kind", "signature", "signatures", "numbers", "program", "shrunk")
    findings = {path.name: json.loads(path.read_text()) for path in (reports / "failures").glob("*.json")}
    drawn = json.loads((reports / "fuzz.json").read_text())["drawn"]
    return {**{name: {key: finding[key] for key in keys} for name, finding in findings.items()}, "drawn": drawn}


def of_op_db(reports: Path) -> dict[str, Any]:
    """Result file without times and dates: its fields by name, and each result by its position."""
    data = json.loads((reports / "opinfo.json").read_text())
    results = [{key: value for key, value in one.items() if key not in TIMES} for one in data.pop("results")]
    rest = {key: value for key, value in data.items() if key not in TIMES}
    return {**rest, **{str(number): result for number, result in enumerate(results)}}


def main() -> int:
    """Print a row for each place. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--programs", type=int, default=10_000, help="0: no campaign")
    parser.add_argument("--without", metavar="FAMILIES", help="of steps that no program draws, as of conformance fuzz")
    parser.add_argument("--samples", type=int, default=6, help="of each op of op_db; 0: no op_db")
    parser.add_argument("--op", action="append", default=[], metavar="GLOB", help="only these ops of op_db")
    parser.add_argument("--places", nargs="+", choices=PLACES, default=list(PLACES))
    parser.add_argument("--reports", type=Path, help="keep what the commands write here")
    args = parser.parse_args()
    if args.reports is not None and args.reports.exists():
        parser.error(f"{args.reports} is there already, and its findings would count: name a new folder")
    first: dict[str, dict[str, Any]] = {}
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        for place in args.places:
            folder = (args.reports or Path(temporary)) / place
            with options(place) as words:
                parts = {}
                if args.programs:
                    at = folder / "fuzz"
                    without = ["--without", args.without] if args.without else []
                    seconds = run("fuzz", "--programs", str(args.programs), *without, *words, "--reports", str(at))
                    record = of_campaign(at)
                    parts["campaign"] = record, f"{len(record) - 1} findings", seconds
                if args.samples:
                    at, ops = folder / "opinfo", [word for op in args.op for word in ("--op", op)]
                    chosen = ["--layout", "transposed", "--samples", str(args.samples), *ops]
                    seconds = run("opinfo", *chosen, *words, "--reports", str(at))
                    record = of_op_db(at)
                    parts["op_db"] = record, f"{record['totals']}", seconds
            for name, (record, said, seconds) in parts.items():
                usual = first.setdefault(name, record)
                other = sorted(key for key in usual.keys() | record.keys() if usual.get(key) != record.get(key))
                failed = failed or bool(other)
                same = "the same" if not other else f"DIFFERENT in {len(other)}: {', '.join(other[:5])}"
                print(f"{name} {place}: {said}, {seconds:.0f} s, {same}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
