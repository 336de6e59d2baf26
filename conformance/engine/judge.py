"""The judge: compares a run with the reference and removes the differences that the policy allows.

Defines `Policy` and `judge`. A caller's further facts (values that PyTorch does not define, signs and phases that are
free, an answer in float64) can only remove mismatches. So every exception to "equal" has one place; `oracles` alone
defines "equal".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from conformance.engine.arbitration import ARBITRATED, arbitrate
from conformance.record.names import ORACLES
from conformance.standalone.observation import Observation, out_of_memory
from conformance.standalone.oracles import Mismatch, compare


class Judgement(NamedTuple):
    """The mismatches, and `arbitrated`: whether there are none only because the target agrees with the float64 answer
    and torch CPU is no nearer to it."""

    mismatches: list[Mismatch]
    arbitrated: bool = False


@dataclass(frozen=True)
class Policy:
    """The strictness of a comparison: the oracles, the tensors that must agree to the bit, and OpInfo's tolerances
    (None: torch.testing's for the dtype). Subclasses define the differences that PyTorch allows."""

    oracles: Collection[str] = ORACLES
    exact: Collection[str] | bool = ()
    rtol: float | None = None
    atol: float | None = None

    def undefined(self, mismatch: Mismatch) -> bool:
        """Whether PyTorch leaves this answer undefined, so that the two sides may differ."""
        return False

    def processed(
        self, expected: Observation, actual: Observation, found: Sequence[Mismatch]
    ) -> tuple[Observation, Observation, list[Mismatch]] | None:
        """Convert both sides, whose results may rightly differ, to one form, and return them with the remaining
        mismatches. None means no conversion."""
        return None

    def in_float64(self, found: Sequence[Mismatch], expected: Observation) -> Observation | None:
        """Return torch CPU's answer in float64 if it can decide about these mismatches, else None."""
        return None

    def swayed(self, found: Sequence[Mismatch]) -> Sequence[Observation]:
        """Return torch CPU's float64 answers with every intermediate rounded result moved by one unit in the last
        place."""
        return ()


def judge(expected: Observation, actual: Observation, policy: Policy) -> Judgement:
    """Return the mismatches between the reference and the target. Running out of memory is the oracle "memory"."""
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
    """Return the first line of an error's text, at most 300 characters."""
    return text.strip().partition("\n")[0][:300]
