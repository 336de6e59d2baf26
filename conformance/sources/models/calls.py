"""Recorded calls as the programs of a campaign, and what its findings mean for each model.

Defines `listed_calls`, `programs` and `outcomes_of`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import overload

from conformance.program import recorded
from conformance.program.model import Program
from conformance.program.recorded import RECORDED, Calls, RecordedCall
from conformance.record.finding import HARNESS, INVALID
from conformance.record.models import MODELS, ModelRow
from conformance.record.shortfall import CALLS
from conformance.run.campaign.listed import ListedPrograms
from conformance.run.failing_program import DEATHS, FailingProgram

MOST_MODELS = 3
"""Number of models that the note of a recorded call names."""


def listed_calls(file: str, models: tuple[str, ...], seed: int) -> ListedPrograms:
    """Return the calls of these models in a file, all without a model, as the programs of a campaign."""
    words = [word for name in models for word in ("--model", name)]
    words += ["--calls", file] if file != str(RECORDED) else []
    arguments = (file, models, seed)
    return ListedPrograms(f"{__name__}:programs", arguments, MODELS, CALLS, "conformance.sources.models", tuple(words))


def programs(file: str, models: tuple[str, ...], seed: int) -> Sequence[Program]:
    """Return the calls of these models in a file as programs on random data. Raises CallsError."""
    return _Programs(*recorded.chosen(file, models), seed)


@dataclass(frozen=True)
class _Programs(Sequence[Program]):
    calls: Calls
    ordered: tuple[RecordedCall, ...]
    seed: int

    def __len__(self) -> int:
        return len(self.ordered)

    @overload
    def __getitem__(self, number: int) -> Program: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Program]: ...
    def __getitem__(self, number: int | slice) -> Program | Sequence[Program]:
        if isinstance(number, slice):
            return [self[at] for at in range(*number.indices(len(self)))]
        call = self.ordered[number]
        names = ", ".join(self.calls.models[at] for at in call.models[:MOST_MODELS])
        more = f" and {len(call.models) - MOST_MODELS} more" if len(call.models) > MOST_MODELS else ""
        return replace(recorded.program_of(call, self.seed), note=f"{call.name} of {names}{more}")


def outcomes_of(
    calls: Calls, ordered: Sequence[RecordedCall], findings: Sequence[FailingProgram], ran: Mapping[str, str]
) -> tuple[ModelRow, ...]:
    """Return the outcome of each model: the operators that stop it, and those that are wrong in it. `ran` are the calls
    that ran, by number, with the reason if the target leaves the call out, else ""."""
    stopped, wrong = dict[int, str](), dict[int, str]()
    for finding in findings:
        if finding.kind in (INVALID, HARNESS):
            continue  # a fault of the harness says nothing about the target
        stops = finding.kind in DEATHS or finding.property in ("error", "not implemented")
        for number in finding.numbers:
            (stopped if stops else wrong)[number] = ordered[number].name
    for number, reason in ((int(number), reason) for number, reason in ran.items() if reason):
        if reason.startswith(("aten::", "dtype ")):
            stopped[number] = reason
    rows = []
    for at, name in enumerate(calls.models):
        own = [number for number, call in enumerate(ordered) if at in call.models]
        compared = sum(ran.get(str(number)) == "" or number in stopped or number in wrong for number in own)
        of = (dict(Counter(counts[n] for n in own if n in counts).most_common()) for counts in (stopped, wrong))
        rows.append(ModelRow(name, len(own), compared, *of))
    return tuple(rows)
