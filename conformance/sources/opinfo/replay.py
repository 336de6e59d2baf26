"""Replay of one op_db case, or one sample of it: `conformance opinfo --replay add::float32::forward::as_sampled#3`.

A case's id is enough to run it, since op_db draws the same samples everywhere. The case runs as in any run: in a worker
that may die, under the same judge. `report/terminal.py` defines the output format.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

from conformance.declare import profile as profiles
from conformance.record import result as model
from conformance.record.errors import UsageError
from conformance.record.names import DTYPES, LAYOUTS, NOT_COMPARED, VARIANTS, nearest
from conformance.record.result import Outcome, Result, Run
from conformance.report.terminal import Replayed, show
from conformance.run.options import chosen
from conformance.sources.opinfo.arguments import ONE_SAMPLE
from conformance.sources.opinfo.plan import Selection


def replay(
    words: Sequence[str], target: str | None, run: Callable[[str, Sequence[Selection]], Run], oracle: str | None = None
) -> int:
    """Run the case of `words` again (an id, or a result file and an id in it), and show it. `run` runs selections on a
    target, which `oracle` judges. Returns the exit code; raises UsageError for an unknown id.
    """
    *files, word = words
    if len(files) > 1:
        raise UsageError(f"--replay takes a case id, or a result file and an id, and not {len(words)} words")
    word, _, index = word.partition("#") if word.rpartition("::")[2].count("#") else (word, "", "")
    name, selection = selection_of(word, index)
    if files:
        saved = model.load(Path(files[0]))
        known = [result.id for result in saved.results]
        if name not in known:
            raise UsageError(f"{files[0]} has no case {name!r}{nearest(name, known)}")
        target = target or saved.target
    with mock.patch.dict(os.environ, {ONE_SAMPLE: index} if index else {}):
        repeated = run(profiles.usual(target or "tiny", oracle), [selection])
    results = [result for result in repeated.results if result.id == name]
    if not results:
        if not repeated.complete:
            return 130
        raise UsageError(f"there is no case {name!r}{nearest(name, [result.id for result in repeated.results])}")
    return show(_replayed(results[0], repeated.target, index))


def selection_of(word: str, index: str) -> tuple[str, Selection]:
    """Check a case's id and return it with the selection that runs it. Raises UsageError with the nearest names."""
    parts = word.split("::")
    if len(parts) != 4 or (index and not index.isdecimal()):
        raise UsageError(
            f"{word + '#' * bool(index) + index!r} is no case id: write OP::DTYPE::VARIANT::LAYOUT, with #3 behind it "
            "for its sample 3 alone, for example add::float32::forward::as_sampled#3"
        )
    for part, among, what in zip(parts[1:], (DTYPES, VARIANTS, LAYOUTS), ("dtype", "variant", "layout"), strict=True):
        chosen([part], among, what)
    op, dtype, variant, layout = parts
    return word, Selection((op,), (dtype,), (variant,), (layout,), None)


def _replayed(result: Result, target: str, index: str) -> Replayed:
    name = result.id + (f"#{index}" if index else "")
    if result.outcome is Outcome.SKIP or result.oracles == (NOT_COMPARED,):
        raise UsageError(f"{name}: nothing was compared, since {result.reason or result.failures[0].detail}")
    if result.outcome is Outcome.PASS:
        return Replayed(name, target, f"sample {index}" if index else f"all {result.samples} samples")
    about = [
        f"{failure.oracle} of {failure.where} in sample {failure.sample}: expected {failure.expected}, "
        f"got {failure.actual}" + (f" ({failure.detail})" if failure.detail else "")
        for failure in result.failures
    ]
    script = next((failure.script for failure in result.failures if failure.script), "")
    return Replayed(name, target, "", str(result.outcome), about, script)
