"""How far an op's answers are from a better reference, on the target and on torch CPU, and when that is a finding.

Defines `Accuracy` and the rule. The key insight: nobody promises an error in PyTorch, so torch CPU's own error at the
same points is the measure; what it does by luck is not, so no error below what one rounding costs counts for it. All
errors are in units in the last place (ulp), so that one rule serves every op and dtype. This module must not import
torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

ACCURACY = "accuracy"
"""The oracle, and in place of a layout, since inputs are chosen by the table of ops."""

TIMES = 4.0
"""So many times torch CPU's error is still as good as torch CPU."""

ROUNDING = 0.5
"""The least error, in ulp, that torch CPU is granted: that of a correctly rounded answer. So no error of up to
`TIMES * ROUNDING` = 2 ulp is ever a finding: one rounding, and one more of whoever rounds in another order."""

NO_NUMBER = 1e30
"""The error, in ulp, of an answer that is no finite number where the reference is one."""


def limit(cpu: float) -> float:
    """The largest error, in ulp, that is no finding beside this one of torch CPU."""
    return TIMES * max(cpu, ROUNDING)


@dataclass(frozen=True)
class Accuracy:
    """The largest and the root mean square error over some points, in ulp, of the target and of torch CPU.

    `of` names what was measured: a result, a gradient, or an elementary function's answers to one kind of points.
    `at` is where the target is furthest off. In elementary functions an ulp is that of each exact answer; in all others
    that of the largest element of the exact result, since what is summed up is no more exact than its parts."""

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
        """How many times the limit the error is, the largest or the mean, whichever is worse; above 1 it is a
        finding."""
        return max(self.target / limit(self.cpu), self.target_rms / limit(self.cpu_rms))

    @property
    def times(self) -> float:
        """How many times as far off as torch CPU the target is, by the rule."""
        return TIMES * self.excess


def shown(error: float) -> str:
    """An error as people read it: `0.5`, `1.2e+04`, or `no number`."""
    return "no number" if error >= NO_NUMBER else f"{error:.2g}" if error < 100 else f"{error:.3g}"
