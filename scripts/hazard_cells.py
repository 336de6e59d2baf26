"""Count the cells of hazards that drawn programs reach.

    python -m scripts.hazard_cells                      programs of seed 0: 400, 2,000 and 20,000
    python -m scripts.hazard_cells --seed 3 400 1000    other numbers

Programs are drawn and not run on a target. Exit code 1 if the last number of programs leaves a cell unreached.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from conformance.program.steps.hazards import CELLS
from conformance.run.campaign.drawing_counts import Tally
from conformance.sources.fuzzing.drawing import Drawing
from conformance.sources.fuzzing.kinds import HAZARDS, kind_of

COUNTS = (400, 2_000, 20_000)


def reached(seed: int, counts: Sequence[int]) -> list[int]:
    """Return the number of cells that the first programs of a seed reach, for each of these counts of programs."""
    drawing, tally, cells, before = Drawing(), Tally(), list[int](), 0
    for count in counts:
        for number in range(before, count):
            if kind_of(drawing, number)[0] is HAZARDS:
                drawing.numbered(seed, number, tally)
        cells.append(len(tally.hazards))
        before = count
    return cells


def main(words: Sequence[str]) -> int:
    """Print a line for each count."""
    parser = argparse.ArgumentParser(prog="python -m scripts.hazard_cells")
    parser.add_argument("counts", nargs="*", type=int, default=COUNTS)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(words)
    counts = sorted(args.counts)
    numbers = reached(args.seed, counts)
    for count, cells in zip(counts, numbers, strict=True):
        print(f"{count:,} programs of seed {args.seed}: {cells:,} of {len(CELLS):,} cells")
    return int(numbers[-1] < len(CELLS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
