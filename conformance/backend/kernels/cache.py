"""The command `conformance cache`: the size of the device's disk cache, and packs of it for another machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from conformance.backend.kernels.command_line import KernelsParser

try:
    from tinygrad.helpers import CACHEDB

    from conformance.backend.runtime.cache_packs import HeldPack, PackError, Rows, export, held, prune, take_in
except ImportError as error:  # the device's packages are missing or too old
    print(f"conformance cache: {error}", file=sys.stderr)
    sys.exit(2)

ABOUT = """What the device tiny keeps on disk: compiled kernels, and schedules by their graphs. A graph that any process
has met before costs neither scheduling nor compiling."""


def size(rows: Rows) -> str:
    """Return the size as the command prints it."""
    return f"{rows.number:,} rows, {rows.nbytes / 1e6:,.1f} MB"


def parser() -> KernelsParser:
    """Return the parser of the command line."""
    parser = KernelsParser("conformance cache", description=ABOUT)
    jobs = parser.add_subparsers(dest="job", required=True, metavar="JOB")
    jobs.add_parser("info", help="how many rows there are, and how many can be used by this version on this processor")
    for name, purpose in (
        ("export", "write what can be used here to a pack, for machines with the same versions and processor"),
        ("import", "add a pack to the cache; a pack is code, so take only those that you trust"),
    ):
        jobs.add_parser(name, help=purpose).add_argument("file", type=Path, metavar="FILE")
    jobs.add_parser("prune", help="remove what cannot be used here any more")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one job. Returns 2 and prints one sentence if it fails."""
    args = parser().parse_args(arguments)
    try:
        if args.job == "info":
            print(CACHEDB)
            for table, usable, other in held() or [HeldPack("nothing yet", Rows(0, 0), Rows(0, 0))]:
                print(f"  {table.removeprefix('conformance_'):<12}{size(usable)}; not usable here {size(other)}")
        elif args.job == "export":
            print(f"{args.file}: {size(export(args.file))}")
        elif args.job == "import":
            print(f"{CACHEDB}: new {size(take_in(args.file))}")
        else:
            print(f"{CACHEDB}: removed {size(prune())}")
    except PackError as error:
        print(f"conformance cache: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
