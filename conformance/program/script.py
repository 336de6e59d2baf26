"""A program as a standalone Python script that needs torch and the target only, and prints both answers.

The reader of a report may not have this package. So the script consists of plain torch calls: the function that a
compiler receives. `standalone/script.py` defines the structure of the script.
"""

from __future__ import annotations

import functools
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from conformance.engine.target import Target
from conformance.program.execute import make_inputs
from conformance.program.model import LOOP, Program, arguments_of, call_of
from conformance.program.relations import RELATIONS, related, relation_of
from conformance.program.shadow import reference
from conformance.program.source import FIRST_WRONG, caller, source
from conformance.program.steps.op import render as render_json
from conformance.program.steps.op import snippet_sources
from conformance.program.steps.states import defined_by, shown
from conformance.program.steps.table import OPS
from conformance.record.sentences import sentence
from conformance.standalone.moving import storage_key
from conformance.standalone.oracles import Mismatch
from conformance.standalone.script import ScriptBody, bare, carried, comparison_options, render
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

LINE, LONGEST_HEADLINE = 110, 330
"""Characters of a line of a headline, and of a headline. Cut to one line, it lost the end of an error's text."""

CALLED = """

def called(program, given):
    return after(program(*given.values()), *given.values())
"""
"""Definition that runs a program and then the calls of its caller."""


def script(
    program: Program,
    target: Target,
    mismatches: Sequence[Mismatch] = (),
    notes: Sequence[str] = (),
    bad_step: int | None = None,
    death: str = "",
    options: Mapping[str, str] = MappingProxyType({}),
    wrong_first: str = "",
) -> str:
    """Return the program as Python source.

    The first of the `mismatches`, or the text of a `death`, becomes the docstring. The script prints that mismatch and
    marks the `bad_step`. All mismatches and the `notes`, such as the command that runs it again, follow as text.
    `options` are further arguments of the comparison, as expressions. `wrong_first` says what is wrong at the
    `bad_step`, if the mismatches do not."""
    program = program if target.facts.transforms_program else call_of(program, 0)
    called, states = call_of(program, len(program.calls)), [call.under for call in program.calls]
    first = next(iter(mismatches), None)
    headline = sentence(first) if first else death or program.note or "A program of view and in-place steps."
    relation = relation_of(first.detail) if first else ""
    about = textwrap.shorten(f"Relation {relation!r}: {headline}" if relation else headline, LONGEST_HEADLINE)
    if program.calls:
        about = f"{about}, in call {len(program.calls) + 1}"
    about = textwrap.fill(about, LINE, break_long_words=False, break_on_hyphens=False)
    label = textwrap.shorten(f"{FIRST_WRONG}: {wrong_first}", LINE) if wrong_first else FIRST_WRONG
    steps = [step for step in program.every_step if step.op != LOOP]
    used = dict.fromkeys(name for step in steps if (name := OPS[step.op].snippet))
    used |= dict.fromkeys(name for step in program.every_step for name in defined_by(step.under))
    used |= dict.fromkeys(name for under in states for name in defined_by(under))
    raising = sum(step.raises is not None for step in program.steps)
    attempts = raising > 1 or target.facts.transforms_program
    compiled = carried(("unwrapped",)) + ATTEMPT_COMPILED
    attempt = [compiled if target.facts.transforms_program else ATTEMPT] if raising and attempts else []
    inputs, make = make_inputs(called), functools.partial(_input_lines, target=target)
    # Inputs of the mismatch are returned too. Not for a compiler, where that would change the compiled outputs.
    looked = {first.where.removeprefix("grad of "), first.expected, first.actual} if first else set()
    also = [] if target.facts.transforms_program else [name for name in inputs if name in looked]
    after = caller(program, mark=bad_step, attempts=attempts, label=label)
    text = source(program, mark=bad_step, attempts=attempts, also=also, label=label)
    other = related(program, relation) if relation else None
    if other is not None:
        text += "\n\n" + source(other.program, attempts=attempts, also=also, name="related", numbers=other.numbers)
    more = [*_earlier_calls(program, make, target.facts.on), *([after + CALLED] if after else [])]
    bug = ScriptBody(
        [
            *["import numpy"] * ("numpy." in text + after),
            *["import uuid"] * program.restarts,
            *map(bare, snippet_sources(used)),
            *attempt,
            *more,
        ],
        make(called),
        [name for name in inputs if name not in also],
        text,
        call="called" if after else "call_under_states" if states and states[-1] else "",
        transform="after_other_calls" if program.calls else "transform",
        relation=relation,
    )
    # A program with mismatches has run on the CPU before. A program that killed a worker does not run here.
    bits, exact = any(mismatch.by_bits for mismatch in mismatches), list[str]()
    if bits:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of what a program does on purpose
            answer = reference(called)
        exact = sorted(answer.observation.tensors if relation and RELATIONS[relation].bits else answer.exact)
    terms = {"undefined": str(program.undefined), "tolerance": str(dict(program.tolerance))}
    options = {**comparison_options(target.facts.oracles, target.facts.lacks), "exact": str(exact), **terms, **options}
    everything = [textwrap.shorten(str(mismatch), 300) for mismatch in mismatches]
    return render(bug, target.script(), about, first, options, [*everything, *notes])


def _input_lines(call: Program, target: Target) -> list[str]:
    """Return the lines that make the inputs of a call and return them and the Python arguments by name."""
    inputs, flats = make_inputs(call), [storage.make() for storage in call.storages]
    make = functools.partial(
        input_lines,
        [(input_.name, inputs[input_.name]) for input_ in call.inputs if not input_.same],
        {storage_key(inputs[input_.name]): flats[input_.storage] for input_ in call.inputs if not input_.same},
        stays=inputs if target.facts.transforms_program and target.facts.on == "cpu" else (),
    )
    try:
        lines = make(lacks=target.facts.lacks)
    except NoSource:  # the program killed its worker before the inputs existed, or was saved for another device
        lines = make()
    lines += [f"{input_.name} = {input_.same}" for input_ in call.inputs if input_.same]
    named = {**{name: name for name in inputs}, **{name: render_json(v) for name, v in arguments_of(call).items()}}
    return [*lines, f"return {{{', '.join(f'{name!r}: {value}' for name, value in named.items())}}}"]


def _earlier_calls(program: Program, make: Callable[[Program], list[str]], on: str) -> Iterator[str]:
    """Yield the functions of a script that make the inputs of the calls before the last one, and make these calls on
    this device."""
    if not program.calls:
        return
    lines = ["def after_other_calls(program):"]
    if program.restarts:
        lines.append("    torch._functorch.config.enable_autograd_cache = torch._inductor.config.fx_graph_cache = True")
        lines.append("    torch.compiler.config.cache_key_tag = uuid.uuid4().hex  # no graphs of earlier processes")
    anew = ["    torch.compiler.reset()", "    run = transform(program)"]
    lines += anew
    as_restarted = [anew[0] + "  # as in a new process, which loads saved graphs", anew[1]]
    parameter, argument = ("", "") if on == "cpu" else ("device", "ON")
    for number in range(len(program.calls)):
        body = [f"    {line}" for line in make(call_of(program, number))]
        yield "\n".join([f"def inputs_{number + 1}({parameter}):", *body])
        states, _ = shown(program.calls[number - 1].under if number else ())
        lines += as_restarted if number and program.calls[number - 1].restarted else []
        lines += [f"    with {states}:"] if states else []
        lines += [f"{'    ' * (1 + bool(states))}run(*inputs_{number + 1}({argument}).values())"]
    yield "\n".join([*lines, *(as_restarted if program.calls[-1].restarted else []), "    return run"])
    states, _ = shown(program.calls[-1].under)
    if states:
        yield f"def call_under_states(run, given):\n    with {states}:\n        return run(*given.values())"
