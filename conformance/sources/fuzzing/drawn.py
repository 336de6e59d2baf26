"""Drawn programs as the programs of a campaign: each is drawn from its seed and number alone, for one target."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from conformance.engine.kernel_tables import needing
from conformance.engine.loading import describe_target
from conformance.program.alias_probes import with_alias_probes
from conformance.program.gradients import with_gradient
from conformance.program.model import Program
from conformance.program.steps.layouts import CLASSES
from conformance.program.steps.op import Json
from conformance.program.steps.table import FAMILIES
from conformance.program.unsupported import held, unsupported_names, unsupported_steps
from conformance.record.program_stats import AXES
from conformance.record.shortfall import PROGRAMS
from conformance.run.campaign.drawing_counts import Tally
from conformance.run.campaign.tasks import described
from conformance.run.worker import loaded
from conformance.sources.fuzzing.drawing import DTYPES, STEPS, VERSION, Drawing
from conformance.sources.fuzzing.further_calls import with_calls


@dataclass(frozen=True)
class DrawnPrograms:
    """The programs that `drawing` draws. If `calls`, programs have further calls on a target that transforms functions.

    See `NumberedPrograms` for the names and methods."""

    drawing: Drawing = field(default_factory=Drawing)
    calls: bool = True
    stem: ClassVar[str] = "fuzz"
    noun: ClassVar[str] = PROGRAMS
    module: ClassVar[str] = "conformance.fuzz"
    endless: ClassVar[bool] = True
    axes: ClassVar[Mapping[str, tuple[str, ...]]] = dict(
        zip(AXES, (tuple(FAMILIES), CLASSES, tuple(dict.fromkeys(DTYPES))), strict=True)
    )
    """Whatever the options are, so that the report shows cells that were never drawn."""

    def program(self, seed: int, number: int, spec: str, tally: Tally) -> Program:
        """Draw a program. If the target does not expose storages, writes at its end show which tensors share memory. If
        it transforms gradients, the program ends with a backward."""
        facts = described(spec).facts
        drawing = _drawing_for(self.drawing, spec)
        program = drawing.numbered(seed, number, tally)
        if drawing.changes_arguments:
            from conformance.sources.fuzzing import arguments  # imports op_db, which takes seconds

            source = random.Random(f"{seed}:{number}:arguments").randint
            program = arguments.extended(program, source, unsupported_names(facts, "trait"), tally)
        if facts.differentiates:
            return with_gradient(program)
        if facts.transforms_program and self.calls:
            return with_calls(program, seed, number, described(spec))
        if facts.exposes_storages:
            return program
        return with_alias_probes(program, unsupported_names(facts, "step"))

    def identity(self) -> dict[str, Json]:
        """See `NumberedPrograms.identity`."""
        return {**vars(self.drawing), "version": VERSION, "calls": self.calls}

    def words(self, spec: str) -> list[str]:
        """See `NumberedPrograms.words`."""
        words, facts = list[str](), describe_target(spec).facts
        if self.drawing.steps != STEPS:
            words += ["--steps", "{}..{}".format(*self.drawing.steps)]
        if self.drawing.dtypes != held(DTYPES, facts):
            words += ["--dtype", ",".join(self.drawing.dtypes)]
        declared = unsupported_steps(facts)
        for option, names in (("--only", self.drawing.only), ("--without", self.drawing.without)):
            words += [word for name in names if name not in declared for word in (option, name)]
        return words

    def environment(self) -> dict[str, str]:
        """See `NumberedPrograms.environment`."""
        return {"drawing": f"version {VERSION}"}


@functools.lru_cache
def _drawing_for(drawing: Drawing, spec: str) -> Drawing:
    """The drawing for this target, which is loaded. If operators are declared lacking, it draws no entry of op_db that
    needs one of them in any form that the device calls."""
    return replace(drawing, lacking=tuple(needing(loaded(spec)))) if drawing.lacking else drawing
