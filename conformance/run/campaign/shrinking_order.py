"""Which finding a campaign shrinks next, and which it leaves as they are.

Defines `ShrinkingOrder`. Shrinking one finding takes as long as many programs. So bugs that nobody knows come first,
then those that may be reported, and bugs that PyTorch has without the backend come last or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.record.finding import HARNESS, INVALID, MOVE
from conformance.record.upstream import bugs
from conformance.run import shrink_program
from conformance.run.failing_program import DEATHS, FailingProgram

if TYPE_CHECKING:
    from conformance.run.campaign.campaign import Campaign

SHRUNK_EACH = 3
"""Number of findings to shrink per pattern, if their causes are known without shrinking."""

KNOWN_TRIALS = 3
"""Number of smaller programs, for each program that ran, after which no finding is shrunk that may be a reported bug of
PyTorch. On AOTAutograd six or seven of them take the time of a program, with what it takes to confirm and to attribute
the findings, so that shrinking known bugs takes at most a third of a campaign. A number, since the findings that are
shrunk must not depend on the speed of a machine."""


class ShrinkingOrder:
    """The order of the findings of a campaign. It depends on what the campaign has found and tried so far."""

    def __init__(self, campaign: Campaign) -> None:
        self.campaign = campaign
        self._may_be: dict[tuple[int, int, str], str] = {}

    def queue(self) -> list[FailingProgram]:
        """The findings that are not shrunk, in the order in which they are to be. If `--minutes` limits the campaign,
        the findings of the most programs and the most severe ones take turns. Those that may be reported bugs of
        PyTorch come later, and those that also show without the backend last."""
        campaign = self.campaign
        ranked = campaign.findings.ranked()
        if campaign.wanted is not None:
            weights = [(campaign.wanted(campaign, finding), finding) for finding in ranked]
            ranked = [finding for weight, finding in sorted(weights, key=lambda weighted: -weighted[0]) if weight]
        elif campaign.plan.minutes is not None:
            frequent = sorted(ranked, key=lambda finding: -finding.count)
            turns = (finding for pair in zip(frequent, ranked, strict=True) for finding in pair)
            ranked = [*{id(finding): finding for finding in turns}.values()]
        if campaign.wanted is None:  # bugs that nobody knows first, then those that may be reported, then PyTorch's own
            ranked.sort(key=lambda finding: (self.of_torch(finding), bool(self.may_be_known(finding))))
        return [finding for finding in ranked if not finding.shrunk]

    @property
    def unwanted(self) -> list[FailingProgram]:
        """The findings that the campaign is not to shrink."""
        queue = self.queue()
        return [finding for finding in self.campaign.findings if not finding.shrunk and finding not in queue]

    def is_due(self, finding: FailingProgram) -> bool:
        """Whether the campaign is still to shrink a finding."""
        campaign = self.campaign
        excused = campaign.wanted is None and not campaign.plan.fail_on_torch_bugs and self.of_torch(finding)
        return not (
            finding.shrunk
            or excused
            or self.has_enough_of(finding)
            or self.is_unshrinkable(finding)
            or self.is_left_as_known(finding)
        )

    def is_left_as_known(self, finding: FailingProgram) -> bool:
        """Whether a finding that may be a reported bug of PyTorch is not shrunk, since shrinking has tried enough."""
        campaign = self.campaign
        spent = campaign.wanted is None and campaign.tried > KNOWN_TRIALS * campaign.result.done
        return spent and not finding.shrunk and bool(self.may_be_known(finding))

    def of_torch(self, finding: FailingProgram) -> bool:
        """Whether a finding also shows without the backend under test, as far as is known. It does not fail the run,
        and is not shrunk: with a backend that has no bug, shrinking PyTorch's took most of the time."""
        if not (finding.layer or finding.kind in DEATHS):
            return False
        answers = [finding.elsewhere.get(layer, "") for layer in self.campaign.facts.without_backend]
        return any(answer.startswith(shrink_program.SAME) for answer in answers) or finding.layer in self.unanswered(
            finding
        )

    def may_be_known(self, finding: FailingProgram) -> str:
        """The reported bugs of PyTorch that a finding may be, by its property and its operators; "" for a target that
        shows none. A smaller program has fewer operators, so this decides about the order only."""
        key = finding.number, finding.part, finding.signature
        if key not in self._may_be:
            spec = self.campaign.plan.target.partition(",")[0]
            names = {spec, spec.removeprefix("compile:"), f"compile:{spec}"}
            own = [bug for bug in bugs() if names & {*bug.targets}]
            operators = finding.operators if own else ()
            self._may_be[key] = ", ".join(bug.name for bug in own if bug.may_be(finding.property, operators))
        return self._may_be[key]

    def unanswered(self, finding: FailingProgram) -> list[str]:
        """The targets without the backend on which the outcome of a finding depends, and which have not judged it. The
        worker has judged a difference on each of them in its own process, which the target under test may have
        spoiled; a death it has not."""
        layers = [layer for layer in self.campaign.facts.without_backend if layer in self.campaign.facts.siblings]
        asked = layers if finding.kind in DEATHS and finding.program.inputs else (finding.layer,)
        return [layer for layer in asked if layer and layer not in finding.elsewhere]

    def has_enough_of(self, finding: FailingProgram) -> bool:
        """Whether enough findings of this pattern are shrunk, and the cause is precise without shrinking. One example
        of a pattern is enough if it also shows without the backend: it is no bug of the user's."""
        if self.campaign.wanted is not None:
            return False
        pattern = finding.pattern_if_shrunk
        alike = [known for known in self.campaign.findings if known.shrunk and known.pattern == pattern]
        return bool(alike) if finding.layer else finding.precise and len(alike) >= SHRUNK_EACH

    def is_unshrinkable(self, finding: FailingProgram) -> bool:
        """Whether no smaller program tells more: a fault of the harness, or a failure of every program."""
        return finding.kind in (INVALID, HARNESS) or self._of_all(finding)

    def _of_all(self, finding: FailingProgram) -> bool:
        """Whether every program that ran fails in this way before its first step, so that shrinking is pointless."""
        result = self.campaign.result
        return finding.op == MOVE and finding.count == result.done - result.unsupported.total()
