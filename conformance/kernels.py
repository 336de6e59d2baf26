"""Counting that explains: what a block of code ran on the tiny device, where in the code, and why there.

Defines `count` (a context manager that yields a `Count`), `budget` (which fails when a workload takes more than its
file allows) and the command ``python -m conformance.kernels SCRIPT.py``.

The key insight: a lazy device computes at boundaries, and a boundary has a line of the program that crossed it. The
line with the most kernels is the line to change.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import runpy
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .backend.runtime import trace

BUDGETS = Path("reports/baseline/kernels.json")
WHY = {
    "observed": "a value was read on the host",
    "realize": "the program asked for it",
    "cut": "a graph had grown too deep for one schedule",
    "write in place": "a large buffer was written, and who read it needed its old content",
    "index check": "an index had to be looked at before it was used",
    "compiled": "a graph that torch.compile captured",
}
_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<")


class Place(NamedTuple):
    """A line of the program that crossed a boundary."""

    file: str
    line: int
    code: str


@dataclass
class Count:
    """What ran while a block of `count` was open. Times are seconds, sizes bytes."""

    kernels: int = 0
    schedules: int = 0
    replayed: int = 0  # schedules that were remembered, their graph having been met before
    loaded: int = 0  # of these, those that came from disk: another process met it
    stored: int = 0  # writes into a buffer's own memory
    copies_in: int = 0
    copies_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    schedule_s: float = 0.0
    compile_s: float = 0.0
    run_s: float = 0.0
    boundaries: list[tuple[Place, trace.Event]] = field(default_factory=list)

    def add(self, event: trace.Event) -> None:
        """Take in one event of the device."""
        match event:
            case trace.Copy(direction="in", nbytes=n):
                self.copies_in, self.bytes_in = self.copies_in + 1, self.bytes_in + n
            case trace.Copy(nbytes=n):
                self.copies_out, self.bytes_out = self.copies_out + 1, self.bytes_out + n
            case trace.Store():
                self.stored += 1
            case trace.Schedule() as s:
                self.kernels, self.schedules = self.kernels + len(s.kernels), self.schedules + 1
                self.replayed += s.origin != "scheduled"
                self.loaded += s.origin == "disk"
                self.schedule_s, self.compile_s = self.schedule_s + s.schedule_s, self.compile_s + s.compile_s
                self.run_s += s.run_s
        self.boundaries.append((_place(), event))

    @property
    def counts(self) -> dict[str, int]:
        """What a budget limits."""
        return {"kernels": self.kernels, "copies_in": self.copies_in, "copies_out": self.copies_out}


@contextlib.contextmanager
def count() -> Iterator[Count]:
    """Count what the block runs on the device; blocks may nest.

    with conformance.kernels.count() as k:
        step()
    assert k.kernels <= 12
    """
    counted = Count()
    trace.LISTENERS.append(counted.add)
    try:
        yield counted
    finally:
        trace.LISTENERS.remove(counted.add)


class OverBudget(AssertionError):
    """A workload took more kernels or copies than its budget."""


@contextlib.contextmanager
def budget(workload: str, file: Path = BUDGETS) -> Iterator[Count]:
    """`count`, and OverBudget after the block if it took more than `file` allows for this workload.

    Raises ValueError where the file has no such workload.
    """
    allowed = json.loads(file.read_text()).get(workload)
    if allowed is None:
        raise ValueError(f"{file} has no budget for {workload!r}; benchmarks/kernel_counts.py --json FILE writes them.")
    with count() as counted:
        yield counted
    over = [f"{name} {n}, allowed {allowed[name]}" for name, n in counted.counts.items() if n > allowed[name]]
    if over:
        raise OverBudget(f"{workload}: {'; '.join(over)}")


def _place() -> Place:
    """The innermost line that lies neither in torch nor here."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    found = traceback.extract_stack(frame, 1)[0]
    return Place(found.filename, found.lineno or 0, found.line or "")


def kinds(kernels: tuple[str, ...]) -> str:
    """Kernels by what bounds them: reductions (tinygrad's r_), elementwise work (E_), copies."""
    names = {"r": "reduction", "E": "elementwise"}
    found = Counter(names.get(kernel.split("_")[0], kernel) for kernel in kernels)
    return ", ".join(f"{n} {kind}" for kind, n in found.items())


def tables(counted: Count) -> Iterator[Table]:
    """What ran in all, and line by line, the line with the most kernels first."""
    total = Table("what", "count", "detail", title="In all")
    seconds = f"{counted.schedule_s:.3f} s scheduling, {counted.compile_s:.3f} s code, {counted.run_s:.3f} s running"
    total.add_row("kernels", str(counted.kernels), seconds)
    known = f"{counted.replayed} remembered, {counted.loaded} of these on disk"
    total.add_row("schedules", str(counted.schedules), known)
    total.add_row("copies in", str(counted.copies_in), f"{counted.bytes_in} bytes")
    total.add_row("copies out", str(counted.copies_out), f"{counted.bytes_out} bytes")
    total.add_row("stores", str(counted.stored), "writes into a buffer's own memory")
    yield total
    lines: dict[tuple[Place, str], list[trace.Event]] = {}
    for place, event in counted.boundaries:
        why = event.why if isinstance(event, trace.Schedule) else type(event).__name__.lower()
        why += f" {event.direction}" if isinstance(event, trace.Copy) else ""
        lines.setdefault((place, why), []).append(event)
    table = Table("line", "why", "times", "kernels", "of which", title="Boundaries")
    rows = []
    for (place, why), events in lines.items():
        kernels = tuple(k for e in events if isinstance(e, trace.Schedule) for k in e.kernels)
        rows.append((len(kernels), len(events), place, why, kernels))
    for n, times, place, why, kernels in sorted(rows, key=lambda row: (-row[0], -row[1])):
        where = f"{Path(place.file).name}:{place.line}  {place.code}"
        table.add_row(escape(where), WHY.get(why, why), str(times), str(n), kinds(kernels))
    yield table


def main(arguments: list[str] | None = None) -> int:
    """Run a script and print what it ran on the device; its own exit code, 2 where there is no such script."""
    parser = argparse.ArgumentParser("python -m conformance.kernels", description=main.__doc__)
    parser.add_argument("script", type=Path, help="a Python file that uses the tiny device")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    given = parser.parse_args(arguments)
    if not given.script.is_file():
        print(f"{given.script}: there is no such file; give the path of a Python script.", file=sys.stderr)
        return 2
    sys.argv = [str(given.script), *given.arguments]
    sys.path.insert(0, str(given.script.parent))
    code = 0
    with count() as counted:
        try:
            runpy.run_path(str(given.script), run_name="__main__")
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except Exception:
            traceback.print_exc()
            code = 1
    console = Console()
    for table in tables(counted):
        console.print(table)
    return code


if __name__ == "__main__":
    sys.exit(main())
