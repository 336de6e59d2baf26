"""The error of an op's answers against a better reference, on the target and torch CPU, and the limit for a finding.

Defines `Accuracy` and the rule. PyTorch promises no error bound, so torch CPU's own error at the same points is the
measure. An error of torch CPU below the cost of one rounding is luck, so the rule raises it to that cost. All errors
are in units in the last place (ulp), so that one rule serves every op and dtype. This module must not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

ACCURACY = "accuracy"
"""The name of the oracle. It also stands in place of a layout, since the table of ops chooses the inputs."""

TIMES = 4.0
"""Largest error that is no finding, as a multiple of torch CPU's error."""

ROUNDING = 0.5
"""The least error, in ulp, that the rule assumes for torch CPU: the error of a correctly rounded answer. So an error of
up to `TIMES * ROUNDING` = 2 ulp is never a finding. This leaves room for one rounding, and one more in an
implementation that rounds in another order."""

NO_NUMBER = 1e30
"""The error, in ulp, of an answer that is not a finite number although the reference is."""


def limit(cpu: float) -> float:
    """Return the largest error, in ulp, that is no finding, given torch CPU's error in ulp."""
    return TIMES * max(cpu, ROUNDING)


@dataclass(frozen=True)
class Accuracy:
    """The largest and the root mean square error over some points, in ulp, of the target and of torch CPU.

    `of` names the measured answer: a result, a gradient, or an elementary function's answers to one kind of points.
    `at` is the point of the target's largest error. For elementary functions, an ulp is that of each exact answer. For
    all others, it is that of the largest element of the exact result, since a sum is no more exact than its terms.
    """

    of: str
    target: float
    cpu: float
    target_rms: float
    cpu_rms: float
    at: str = ""
    points: int = 0
    WRITTEN: ClassVar = ("target", "cpu", "target_rms", "cpu_rms", "points")

    @property
    def excess(self) -> float:
        """The largest or the mean error as a multiple of its limit, whichever is larger; above 1 it is a finding."""
        return max(self.target / limit(self.cpu), self.target_rms / limit(self.cpu_rms))

    @property
    def times(self) -> float:
        """The target's error as a multiple of torch CPU's, by the rule."""
        return TIMES * self.excess


def shown(error: float) -> str:
    """Format an error for a reader: `0.5`, `1.2e+04`, or `no number`."""
    return "no number" if error >= NO_NUMBER else f"{error:.2g}" if error < 100 else f"{error:.3g}"
