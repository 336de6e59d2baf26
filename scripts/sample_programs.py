"""Count the op_db samples that can be written as programs, and the reasons of the others.

    python -m scripts.sample_programs            measure, and write the tables into docs/checks.md
    python -m scripts.sample_programs --check    exit code 1 if the tables differ for the torch version that they name

One sample of each entry counts in each variant, in float32 and in OpInfo's layout. The `out` variant has three calls.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch

from conformance.engine.loading import reference
from conformance.program.capture import Unwritable
from conformance.record.names import CHANGED, SPECIALS, SPECIALS_BACKWARD
from conformance.sources.opinfo import catalog, undefined
from conformance.sources.opinfo.plan import Case, Entry
from conformance.sources.opinfo.sample_program import written
from conformance.sources.opinfo.sampling import samples
from conformance.sources.opinfo.variants import VARIANTS, SampleTrial, Skip, trials_of
from scripts.pages import ROOT, Part

PART = Part("docs/checks.md", "sample_programs")
DTYPE, SPECIAL, NAMED = "float32", "specials_nan", 3
TABLE = (
    *(name for name in VARIANTS if name not in (*SPECIALS, *SPECIALS_BACKWARD, *CHANGED)),
    SPECIAL,
    f"{SPECIAL}_backward",
)


def trials(case: Case) -> Iterator[SampleTrial]:
    """Yield the trials of the case's first sample."""
    op = catalog.find(case)
    for sample in samples(op, case.variant, torch.float32, case.layout, case.samples):
        with contextlib.suppress(Skip):
            yield from trials_of(case, sample, reference())


def entries_of(variant: str) -> Iterator[Entry]:
    """Yield the entries with this variant in float32."""
    for entry in catalog.entries():
        if variant in entry.variants and DTYPE in (entry.backward_dtypes if "backward" in variant else entry.dtypes):
            yield entry


def tables() -> str:
    """Return both tables: the counts by variant, and the entries by reason."""
    rows, reasons = list[str](), defaultdict[str, list[str]](list)
    for variant in TABLE:
        count = whole = 0
        for entry in entries_of(variant):
            case = Case(entry.op, entry.overload, entry.family, DTYPE, variant, "as_sampled", 1)
            if undefined.fault_of(case)[1]:  # ends the process on torch CPU
                continue
            lost = set[str]()
            total = 0
            for trial in trials(case):
                total += 1
                try:
                    written(trial)
                except Unwritable as error:
                    lost.add(str(error).partition(":")[0])
            count, whole = count + bool(total), whole + bool(total and not lost)
            for reason in lost:
                reasons[reason].append(f"{case.name} ({variant})")
        rows.append(f"| {variant} | {count} | {whole} |")
    causes = []
    for reason, cases in sorted(reasons.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        names = list(dict.fromkeys(case.partition(" ")[0] for case in cases))
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        causes.append(f"| {reason} | {len(cases)} | {', '.join(f'`{name}`' for name in names[:NAMED])}{more} |")
    head = f"torch {torch.__version__.partition('+')[0]}, float32, the first sample of each entry.\n"
    return "\n".join(
        [head, "| variant | entries | written as programs |", "|---|---|---|", *rows, "",
         "| not written: | entries and variants | for example |", "|---|---|---|", *causes]
    )  # fmt: skip


def main(words: Sequence[str]) -> int:
    """Write or check the tables. A page of another torch version is not checked."""
    warnings.simplefilter("ignore")
    version = f"torch {torch.__version__.partition('+')[0]}, float32, the first sample"
    if "--check" in words and version not in (ROOT / PART.page).read_text(encoding="utf-8"):
        return 0
    return PART.renew(tables(), "--check" in words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
