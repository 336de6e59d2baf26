"""A program as a standalone Python script that needs torch and the target only, and prints both answers.

The reader of a report may not have this package. So the script consists of plain torch calls: the function that a
compiler receives. `standalone/script.py` defines the structure of the script.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from conformance.engine.target import Target
from conformance.program.execute import apart, make_inputs
from conformance.program.model import LOOP, Program
from conformance.program.shadow import reference
from conformance.program.source import source
from conformance.program.steps.op import DEFINED, Step, definitions_of
from conformance.program.steps.states import defined_by
from conformance.program.steps.table import OPS
from conformance.record.sentences import sentence
from conformance.standalone.moving import storage_key
from conformance.standalone.oracles import Mismatch
from conformance.standalone.script import Bug, bare, carried, judged, render
from conformance.standalone.tensor_source import NoSource, input_lines

ATTEMPT = """
def attempt(step):
    try:
        return step()
    except Exception as error:
        return error
"""
ATTEMPT_COMPILED = """
@torch.compiler.disable(recursive=False)
def attempt(step):
    try:
        return step()
    except Exception as error:
        return unwrapped(error)
"""
"""Definitions of `attempt` in a script: the second for compilers, the first for programs with several raising steps.

Each raising step becomes a function that `attempt` calls. A compiler needs that for a single raising step too."""

OWN_TENSORS = {"metadata in place", "autograd", "questions", "errors", "state"}
"""Families of steps whose results differ between a plain tensor and a view of a hidden base."""


def script(
    program: Program,
    target: Target,
    mismatches: Sequence[Mismatch] = (),
    notes: Sequence[str] = (),
    bad_step: int | None = None,
    death: str = "",
    options: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return the program as Python source.

    The first of the `mismatches`, or the text of a `death`, becomes the docstring. The script prints that mismatch and
    marks the `bad_step`. All mismatches and the `notes`, such as the command that runs it again, follow as text.
    `options` are further arguments of the comparison, as expressions."""
    first = next(iter(mismatches), None)
    told = sentence(first) if first else death or program.note or "A program of view and in-place steps."
    about = textwrap.shorten(told, 110)
    steps = [inner for step in program.steps for inner in (step, *step.body) if inner.op != LOOP]
    used = dict.fromkeys(OPS[step.op].call or step.op for step in steps if OPS[step.op].form is DEFINED)
    every = [inner for step in program.steps for inner in (step, *step.body)]
    used |= dict.fromkeys(name for step in every for name in defined_by(step.under))
    raising = sum(step.raises is not None for step in program.steps)
    attempts = raising > 1 or target.transforms_program
    compiled = carried(("unwrapped",)) + ATTEMPT_COMPILED
    attempt = [compiled if target.transforms_program else ATTEMPT] if raising and attempts else []
    inputs = make_inputs(program)
    own = any(one.requires_grad for one in program.inputs) or any(OPS[s.op].family in OWN_TENSORS for s in steps)
    flats = [storage.make() for storage in program.storages]
    make = functools.partial(
        input_lines,
        list(inputs.items()),
        {storage_key(inputs[one.name]): flats[one.storage] for one in program.inputs},
        stays=inputs if target.transforms_program else (),
        own=own,
    )
    try:
        lines = make(lacks=target.lacks)
    except NoSource:  # the program killed its worker before the inputs existed, or was saved for another device
        lines = make()
    inside, outside = apart(program) if target.differentiates else (program, ())
    call = [line for step in outside for line in _outside(step)]
    # Inputs of the mismatch are returned too. Not for a compiler, where that would change the compiled outputs.
    looked = {first.where.removeprefix("grad of "), first.expected, first.actual} if first else set()
    also = [] if target.transforms_program else [name for name in inputs if name in looked]
    bug = Bug(
        [*map(bare, definitions_of(used)), *attempt, *(["\n".join(call)] if call else [])],
        [*lines, f"return {{{', '.join(f'{name!r}: {name}' for name in inputs)}}}"],
        [name for name in inputs if name not in also],
        source(inside, mark=bad_step, attempts=attempts, also=also),
        "differentiate" if call else "",
    )
    # A program with mismatches has run on the CPU before. A program that killed a worker does not run here.
    exact = sorted(reference(program).exact) if any(mismatch.by_bits for mismatch in mismatches) else []
    options = {**judged(target.oracles, target.lacks), "exact": str(exact), **options}
    everything = [textwrap.shorten(str(mismatch), 300) for mismatch in mismatches]
    return render(bug, target.script(), about, first, options, [*everything, *notes])


def _outside(step: Step) -> Iterator[str]:
    """Yield the lines of a function that calls the program and then makes this step on its results."""
    yield "def differentiate(program, given):"
    yield "    made = program(*given.values())"
    yield from (f"    {name} = made[{name!r}]" for name in step.names())
    yield f"    {OPS[step.op].show(step)}"
    yield "    return made"
