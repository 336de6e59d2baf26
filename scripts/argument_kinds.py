"""Coverage of changed arguments: the pairs of argument and kind that op_db's samples give.

    python -m scripts.argument_kinds [--op GLOB] [--dtype DTYPE] [--list]

Draws the samples of `--variant argument_kinds,refused` and runs nothing. Prints a table with one line for each variant:
the ops, the pairs of op and argument, and the calls. The last line counts arguments that no variant changes. With
--list, prints each argument with its variants instead.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import warnings
from collections import Counter, defaultdict

import torch

from conformance.record.names import ARGUMENTS
from conformance.sources.opinfo import arguments, catalog
from conformance.sources.opinfo.sampling import samples

SEARCHED = 20
"""Number of samples that are searched for arguments that no variant changes."""


def pairs(glob: str, dtype: torch.dtype) -> tuple[dict[tuple[str, str], Counter[str]], set[tuple[str, str]]]:
    """Return the calls by (op, argument) and variant, and the arguments that no variant changes."""
    calls: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    unchanged: set[tuple[str, str]] = set()
    for (name, overload), op in catalog.by_name().items():
        full = f"{name}.{overload}".removesuffix(".")
        if dtype not in op.dtypes or not fnmatch.fnmatchcase(full, glob):
            continue
        for variant in ARGUMENTS:
            for sample in samples(op, variant, dtype, "as_sampled", None):
                assert sample.origin is not None
                calls[full, arguments.shown(sample.origin.place)][variant] += 1
        for sample in samples(op, "forward", dtype, "as_sampled", SEARCHED):
            names = [("input", sample.input), *((f"args[{at}]", x) for at, x in enumerate(sample.args))]
            for place, value in [*names, *sample.kwargs.items()]:
                if value is not None and not arguments.kind_of(value):
                    unchanged.add((full, place))
    return calls, {pair for pair in unchanged if pair not in calls}


def main() -> int:
    """Print the table, or the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", default="*", help="only ops that match this glob")
    parser.add_argument("--dtype", default="float32", help="dtype of the samples (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="print each argument with its variants")
    options = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        by_pair, unchanged = pairs(options.op, getattr(torch, options.dtype))
    if options.list:
        for (op, place), variants in sorted(by_pair.items()):
            print(f"{op} {place}: {', '.join(f'{name} {count}' for name, count in variants.items())}")
        return 0
    print("| variant | ops | pairs of op and argument | calls |", "|---|---|---|---|", sep="\n")
    for variant in ARGUMENTS:
        of = {pair: counts[variant] for pair, counts in by_pair.items() if counts[variant]}
        print(f"| {variant} | {len({op for op, _ in of}):,} | {len(of):,} | {sum(of.values()):,} |")
    calls = sum(counts.total() for counts in by_pair.values())
    print(f"| all | {len({op for op, _ in by_pair}):,} | {len(by_pair):,} | {calls:,} |")
    print(f"{len(unchanged)} arguments are of no kind that is changed: objects of Python, devices, sparse tensors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
