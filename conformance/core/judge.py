"""The judge: what is wrong with a run, given the reference's observation and what may rightly differ.

Defines `Policy` and `judge`. The key insight: what a caller knows beyond the oracles (values that nothing defines,
signs and phases that are free, an answer in float64) can only take mismatches away, so every exception to "equal" has
one place to stand; what 'equal' means remains the oracles'."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from conformance.core.arbitration import ARBITRATED, arbitrate
from conformance.core.names import ORACLES
from conformance.core.observation import Observation, out_of_memory
from conformance.core.oracles import Mismatch, compare


class Judgement(NamedTuple):
    """The mismatches, and whether there is none only because the target agrees with the answer in float64, to which
    the CPU is no nearer."""

    mismatches: list[Mismatch]
    arbitrated: bool = False


@dataclass(frozen=True)
class Policy:
    """How strictly two observations are compared: by which oracles, which tensors to the bit, and OpInfo's tolerances
    (None: torch.testing's for the dtype). Subclasses say what nothing defines."""

    oracles: Collection[str] = ORACLES
    exact: Collection[str] | bool = ()
    rtol: float | None = None
    atol: float | None = None

    def undefined(self, mismatch: Mismatch) -> bool:
        """Whether nothing promises that the two agree in this."""
        return False

    def processed(
        self, expected: Observation, actual: Observation, found: Sequence[Mismatch]
    ) -> tuple[Observation, Observation, list[Mismatch]] | None:
        """Both sides with results that may differ brought to one form, and the mismatches then; None: as they are."""
        return None

    def in_float64(self, found: Sequence[Mismatch], expected: Observation) -> Observation | None:
        """What torch CPU answers in float64, where that can decide about these mismatches."""
        return None

    def swayed(self, found: Sequence[Mismatch]) -> Sequence[Observation]:
        """What it answers there when every rounded result on the way is moved by a unit in the last place."""
        return ()


def judge(expected: Observation, actual: Observation, policy: Policy) -> Judgement:
    """The mismatches between the reference and the target. Running out of memory is the oracle "memory"."""
    options: Any = {"rtol": policy.rtol, "atol": policy.atol}
    found = compare(expected, actual, oracles=policy.oracles, exact=policy.exact, **options)
    found = [mismatch for mismatch in found if not policy.undefined(mismatch)]
    processed = policy.processed(expected, actual, found)
    if processed is not None:
        expected, actual, found = processed
    if (
        actual.error is not None
        and expected.error is None
        and out_of_memory(f"{actual.error.kind}: {actual.error.text}")
    ):
        found.insert(
            0, Mismatch("memory", "the whole run", "no error", actual.error.kind, first_line(actual.error.text))
        )
    if not found or any(mismatch.oracle not in ARBITRATED for mismatch in found):
        return Judgement(found)
    wide = policy.in_float64(found, expected)
    if wide is None:
        return Judgement(found)
    left = arbitrate(found, expected, actual, wide, **options)
    if left and (swayed := policy.swayed(found)):
        left = arbitrate(found, expected, actual, wide, swayed=swayed, **options)
    return Judgement(left, not left)


def first_line(text: str) -> str:
    """What an error says first, cut."""
    return text.strip().partition("\n")[0][:300]
