"""Worker processes that run programs on one target, asked about one program at a time.

Defines `ProgramWorkers`, the workers in which findings are confirmed and shrunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from conformance.program.model import Program, ProgramError
from conformance.record.finding import MEMORY
from conformance.record.names import MEASURED
from conformance.run import shrink_program
from conformance.run.execution_place import LOCAL, ExecutionPlace
from conformance.run.failing_program import DEATHS, FailingProgram
from conformance.run.messages import Limits, WorkerDied
from conformance.run.placed_pool import PlacedPool
from conformance.run.pool import PRELOAD
from conformance.run.worker import environment


class ProgramWorkers(PlacedPool):
    """Processes that run programs on one target, `jobs` at a time. They import `modules`, so that no import counts as
    program time. Use as a context manager."""

    def __init__(
        self, target: str, limits: Limits, jobs: int = 1, place: ExecutionPlace = LOCAL, modules: Sequence[str] = ()
    ) -> None:
        super().__init__(place, target, limits, jobs, [*PRELOAD, *modules])
        self.modules = modules
        self.hang: frozenset[str] = frozenset()
        """Ops whose kernels must compile within program time, since programs timed out in their first calls."""

    def load(self) -> dict[str, str]:
        """Load the target in a worker and return its environment. Raises TargetError."""
        result: dict[str, str] = self.ask_first(environment, self.target)
        return result

    def alike(self) -> ProgramWorkers:
        """Return other workers with the same target and limits, on this machine."""
        place = replace(self.place, address=LOCAL.address)
        result = ProgramWorkers(self.target, self.limits, place=place, modules=self.modules)
        result.hang = self.hang
        return result

    def ending(self, program: Program, until: float = math.inf) -> str:
        """Return CRASH, TIMEOUT or MEMORY if a program ends its worker in that way. Return the empty string if the
        worker survives, or if the program has no meaning on torch CPU. Raises OutOfTime at `until`, and errors of the
        harness itself."""
        try:
            return "" if self.ask(shrink_program.survives, self.target, program, self.hang, until=until) else MEMORY
        except WorkerDied as died:
            return str(died.death.reason)
        except ProgramError:  # a program without a meaning on torch CPU shows nothing
            return ""

    def shows(self, finding: FailingProgram, until: float = math.inf) -> bool:
        """Whether a worker fails on a finding's program, or dies of it, as before. Raises TargetError if no worker can
        be started, and OutOfTime at `until`, in seconds since the epoch."""
        if finding.kind in DEATHS:
            return self.ending(finding.program, until) in finding.exit_reasons
        oracles = {mismatch.oracle for mismatch in finding.mismatches}
        if oracles and oracles <= {*MEASURED}:
            return True  # measurements need the campaign's baseline, which this worker does not have
        try:
            return bool(self.ask(shrink_program.fails, self.target, finding.program, self.limits.unit, until=until))
        except WorkerDied:
            return True
