"""The state of shrinking one failure, which survives the death of a worker.

The worker notes each candidate before it runs it, with the smallest failing program so far. So after a death, the owner
of the pool knows which candidate ended the worker. If the failure is such a death, this candidate is the smaller
program; otherwise another worker goes on without it. This module does not import torch, so programs are JSON text here.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from conformance.run.messages import Death, ExitReason
from conformance.run.worker import unit

MOST_DEATHS = 8
"""Limit on the workers that may die, and the trials that may time out, of one failure."""


@dataclass(frozen=True)
class ShrinkProgress:
    """The smallest failing program so far, "" before the first trial; the candidates that ended a worker; and the
    number of deaths and time-outs."""

    best: str = ""
    skipped: frozenset[str] = frozenset()
    deaths: int = 0

    @property
    def over(self) -> bool:
        """Whether too many candidates have ended a worker."""
        return self.deaths >= MOST_DEATHS

    @contextlib.contextmanager
    def trial(self, candidate: str) -> Iterator[None]:
        """Context of a trial, in a worker."""
        with unit(json.dumps([self.best, candidate])):
            yield

    def after(self, death: Death, same: Collection[ExitReason]) -> ShrinkProgress:
        """Return the progress after the death of a worker. A death of the `same` kind is the failure itself."""
        best, candidate = self.best, ""
        with contextlib.suppress(ValueError, TypeError):
            best, candidate = json.loads(death.note.unit if death.note is not None else "")
        best = candidate if candidate and death.reason in same else best
        return ShrinkProgress(best, self.skipped | {candidate}, self.deaths + 1)

    def failed(self, candidate: str, timed_out: bool = False) -> ShrinkProgress:
        """Return the progress after a candidate that fails."""
        return replace(self, best=candidate, deaths=self.deaths + timed_out)

    def passed_over(self, candidate: str) -> ShrinkProgress:
        """Return the progress after a candidate that took too long to show a failure."""
        return replace(self, skipped=self.skipped | {candidate}, deaths=self.deaths + 1)
