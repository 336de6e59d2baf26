"""A program as a standalone Python script that needs torch and the target only, and shows both answers side by side.

The key insight: a report is read by somebody who has neither this package nor its vocabulary, so the script is the
calls themselves, the very function that a compiler is given, and behind them the few functions that compare and draw.
"""

from __future__ import annotations

import inspect
import math
import textwrap
from collections.abc import Iterator, Sequence

from conformance.core.oracles import Mismatch
from conformance.core.script_runtime import SOURCES
from conformance.core.target import Target
from conformance.programs.model import LOOP, Program, Storage
from conformance.programs.source import source
from conformance.programs.steps.op import DEFINED, Step, definitions_of
from conformance.programs.steps.table import OPS

CARRIED = "# What follows runs the program on both and prints what differs."
"""Stands between a script's own part and the functions that each script carries."""

ATTEMPT = """
def attempt(step, *tensors):
    try:
        step(*tensors)
    except Exception as error:
        return type(error).__name__
    return "no error"

"""
ATTEMPT_COMPILED = """
@torch.compiler.disable(recursive=False)
def attempt(step, *tensors):
    try:
        step(*tensors)
    except Exception as error:
        while type(error).__module__ == "torch._dynamo.exc" and error.__context__ is not None:
            error = error.__context__
        return type(error).__name__
    return "no error"

"""
"""For programs with steps that raise, each of which is a function of its own."""

RUN = """
def run(where):
    global device
    device = where
    made = inputs()
    yield from made.items()
    yield from program(*made.values()).items()
"""
RUN_MODE = (
    RUN
    + """

def run_target(where):
    with MODE:
        yield from run(where)
"""
)
"""For targets whose script defines a `MODE`."""

RUN_WHOLE = """
device = "cpu"


def run(where):
    made = inputs()
    yield from made.items()
    yield from (program if where == "cpu" else transform(program))(*made.values()).items()
"""
"""For targets that take whole programs; their script defines `transform`."""


def script(
    program: Program,
    target: Target,
    mismatches: Sequence[Mismatch] = (),
    notes: Sequence[str] = (),
    bad_step: int | None = None,
) -> str:
    """The program as Python source. `mismatches` become its docstring, with the first bad step and the `notes`, one a
    line, such as the command that runs it again."""
    found = "\n".join(textwrap.shorten(str(mismatch), 300) for mismatch in mismatches[:3]) or program.note
    first = "".join(
        f"\nFirst wrong in step {bad_step}: {_text(step)}"
        for number, step in enumerate(program.steps, 1)
        if number == bad_step
    )
    head = [
        f'"""{_inert((found or "A program of view and in-place steps.") + first)}',
        *(["\n" + "\n".join(map(_inert, notes))] if notes else []),
        '"""',
        "from __future__ import annotations\n",
        "import torch",
    ]
    steps = [inner for step in program.steps for inner in (step, *step.body) if inner.op != LOOP]
    used = dict.fromkeys(OPS[step.op].call or step.op for step in steps if OPS[step.op].form is DEFINED)
    attempt = (
        [ATTEMPT_COMPILED if target.transforms_program else ATTEMPT]
        if any(step.raises for step in program.steps)
        else []
    )
    given = textwrap.indent("\n".join(_inputs(program, target)), "    ")
    setup = target.script()
    modal = "MODE" in setup
    run = RUN_WHOLE if target.transforms_program else RUN_MODE if modal else RUN
    carried = "\n".join(f"\n{inspect.getsource(function)}" for function in SOURCES)
    called = ", ".join(
        [
            "run",
            "run_target" if modal else "run",
            "DEVICE",
            f"inputs={_by_storage(program)}",
            f"judged={sorted(target.oracles - {'kernels'})}",
            f"exact={sorted({one.where for one in mismatches if one.by_bits})}",
        ]
    )
    carried = f"\n\n{CARRIED}\n{carried}"
    return "\n".join(
        [
            *head,
            "",
            setup,
            *(f"\n\n{text}" for text in definitions_of(used)),
            *attempt,
            "\n",
            "def inputs():",
            given,
            "\n",
            source(program),
            run,
            carried,
            "",
            f"compare({called})\n",
        ]
    )


def without_carried(text: str) -> str:
    """The part of a script that is its own: what differs, and the program."""
    return text.partition(CARRIED)[0].rstrip("\n")


def _inert(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', "'")
    return "".join(
        mark if (mark.isascii() and mark.isprintable()) or mark == "\n" else f"<{ord(mark):x}>" for mark in escaped
    )


def _by_storage(program: Program) -> list[list[str]]:
    groups: dict[tuple[int, str], list[str]] = {}
    for one in program.inputs:
        groups.setdefault((one.storage, one.dtype), []).append(one.name)
    return [*groups.values()]


def _inputs(program: Program, target: Target) -> Iterator[str]:
    for number, storage in enumerate(program.storages):
        yield f"s{number} = torch.tensor({storage_text(storage)}, dtype=torch.{storage.dtype}).to(device)"
        for one in program.inputs:
            if one.storage == number:
                grad = ".requires_grad_()" if one.requires_grad else ""
                on_it = (
                    f"torch.empty(0, dtype=torch.{one.dtype}, device=device).set_(s{number}.untyped_storage(), "
                    f"{one.offset}, {one.size}, {one.stride})"
                    if target.exposes_storages
                    else f"s{number}.as_strided({one.size}, {one.stride}, {one.offset})"
                )
                yield f"{one.name} = {on_it}{grad}"
    yield f"return {{{', '.join(f'{one.name!r}: {one.name}' for one in program.inputs)}}}"


def storage_text(storage: Storage) -> str:
    """The storage's content as a Python list."""
    return (
        "["
        + ", ".join(
            f"float({str(v)!r})" if isinstance(v, float) and not math.isfinite(v) else repr(v)
            for v in storage.literal()
        )
        + "]"
    )


def _text(step: Step) -> str:
    if step.op == LOOP:
        return f"for i in range({step.times}): {'; '.join(OPS[inner.op].line(inner) for inner in step.body)}"
    return textwrap.shorten(OPS[step.op].line(step), 200)
