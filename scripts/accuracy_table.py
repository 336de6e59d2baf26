"""Generate the table of errors in docs/device.md: errors of the tiny device compared with torch CPU.

    conformance accuracy --target tiny
    python -m scripts.accuracy_table reports/accuracy.json

The page shows the worst cases, which bound all others.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence

from conformance.record import result as model
from conformance.record.accuracy import shown
from conformance.record.result import Result, Run
from scripts.pages import ROOT, Part, csv_text, write

PART, TABLE = Part("docs/device.md", "accuracy_table"), ROOT / "docs" / "accuracy.csv"
WORST = 5


def lines(run: Run) -> list[str]:
    """Markdown of a run: the worst cases."""
    rows = [
        f"torch {run.environment['torch']}, {len(run.errors)} cases measured, {len(run.unexpected)} findings.",
        "",
        f"The worst {WORST}, with the largest error in ulp and its root mean square in brackets:",
        "",
        "| op | dtype | direction | answer | tiny | torch CPU | times torch CPU |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in run.errors[:WORST]:
        of = result.accuracy
        assert of is not None
        errors = (f"{shown(a)} ({shown(b)})" for a, b in ((of.target, of.target_rms), (of.cpu, of.cpu_rms)))
        rows.append(
            f"| `{result.name}` | {result.dtype} | {result.variant} | {of.of} | {' | '.join(errors)} | {of.times:.1f} |"
        )
    return rows


def families(run: Run) -> list[list[str]]:
    """The table of the worst case of each family."""
    by_family = defaultdict[str, list[Result]](list)
    for result in run.errors:
        by_family[result.family].append(result)
    rows = [["family", "cases", "worst, times torch CPU", "where"]]
    for family, results in sorted(by_family.items()):
        first = results[0]
        assert first.accuracy is not None
        where = f"`{first.name}` {first.dtype} {first.variant}"
        rows.append([family, str(len(results)), f"{first.accuracy.times:.1f}", where])
    return rows


def main(arguments: Sequence[str]) -> int:
    """Write the tables of the given run file: of the page, and docs/accuracy.csv. Returns the exit code."""
    if len(arguments) != 1:
        print("usage: accuracy_table.py RUN/accuracy.json", file=sys.stderr)
        return 2
    run = model.load(arguments[0])
    write(TABLE, csv_text(families(run)))
    return PART.renew("\n".join(lines(run)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
