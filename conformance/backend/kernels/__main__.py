"""The command ``conformance kernels SCRIPT.py``: the work of a script on tiny, by line."""

from __future__ import annotations

import argparse
import runpy
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from conformance.backend.kernels.command_line import KernelsParser
from conformance.run.command_end import end_command

try:
    from conformance.backend.kernels.counting import Count, Place, count
    from conformance.backend.runtime import trace
except ImportError as error:  # the device's packages are missing or too old
    print(f"conformance kernels: {error}", file=sys.stderr)
    sys.exit(2)

WHY = {
    "observed": "a value was read on the host",
    "realize": "the program asked for it",
    "cut": "a graph had grown too deep for one schedule",
    "write in place": "a large buffer was written, and who read it needed its old content",
    "index check": "an index had to be looked at before it was used",
    "compiled": "a graph that torch.compile captured",
}


def kinds(kernels: Sequence[str]) -> str:
    """Count kernels by kind: reductions (tinygrad's r_), elementwise work (E_), copies."""
    names = {"r": "reduction", "E": "elementwise"}
    counts = Counter(names.get(kernel.split("_")[0], kernel) for kernel in kernels)
    return ", ".join(f"{n} {kind}" for kind, n in counts.items())


def tables(counted: Count) -> Iterator[Table]:
    """Yield the total, and a table by line, the line with the most kernels first."""
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
    ran = {
        key: [k for e in events if isinstance(e, trace.Schedule) for k in e.kernels] for key, events in lines.items()
    }
    table = Table("line", "why", "times", "kernels", "of which", title="Boundaries")
    for key in sorted(lines, key=lambda key: (-len(ran[key]), -len(lines[key]))):
        place, why = key
        where = f"{Path(place.file).name}:{place.line}  {place.code}"
        table.add_row(escape(where), WHY.get(why, why), str(len(lines[key])), str(len(ran[key])), kinds(ran[key]))
    yield table


def main(arguments: list[str] | None = None) -> int:
    """Run a script and print its kernels and copies on the device. Returns the script's exit code, or 2 if it does not
    exist.
    """
    parser = KernelsParser("conformance kernels", description=main.__doc__)
    parser.add_argument("script", type=Path, help="a Python file that uses the tiny device")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    args = parser.parse_args(arguments)
    if not args.script.is_file():
        print(f"{args.script}: there is no such file; give the path of a Python script.", file=sys.stderr)
        return 2
    sys.argv = [str(args.script), *args.arguments]
    sys.path.insert(0, str(args.script.parent))
    code = 0
    with count() as counted:
        try:
            runpy.run_path(str(args.script), run_name="__main__")
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
    end_command(main())
