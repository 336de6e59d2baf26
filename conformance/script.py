"""A program as a standalone Python script that needs torch and the target only, and shows both answers side by side.

The key insight: a report is read by somebody who has neither this package nor its vocabulary, so the script is the
calls themselves, with a picture of where the inputs' elements lie in their storages.
"""
from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence

import torch

from conformance.oracle import Mismatch
from conformance.program import LOOP, Program, Storage, make_inputs, table
from conformance.steps.layouts import cells_of
from conformance.steps.op import DEFINED, Step, definitions_of, dtype_of
from conformance.target import SIGNIFICANT_STRIDE, Target
from conformance.whole import source

MOST_CELLS = 48
"""Storages with more cells get no picture."""

FIELDS = {
    "dtype": '"dtype": tensor.dtype',
    "shape": '"size": tuple(tensor.size())',
    "stride": '"stride": tensor.stride()',
    SIGNIFICANT_STRIDE: '"stride": [st for n, st in zip(tensor.size(), tensor.stride()) if n > 1]',
    "storage_offset": '"offset": tensor.storage_offset()',
    "grad": '"requires_grad": tensor.requires_grad',
    "value": '"values": tensor.detach().cpu().tolist()',
    "storage": '"storage": whole.cpu().tolist()',
}
"""What a script shows of a tensor, by the oracle that judges it: what the target does not promise is not shown."""

WHOLE_STORAGE = '''    whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    whole.set_(tensor.untyped_storage(), 0, (tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,))
'''
GRADIENT = '**({"grad": tensor.grad.cpu().tolist()} if tensor.is_leaf and tensor.grad is not None else {})'
ALIASES = '''        first = {}
        for name, value in seen.items():
            if isinstance(value, torch.Tensor):
                owner = first.setdefault(value.untyped_storage()._cdata, name)
                seen[name] = {**describe(value), "shares its storage with": owner}
'''
NO_ALIASES = '''        for name, value in seen.items():
            if isinstance(value, torch.Tensor):
                seen[name] = describe(value)
'''

ANSWERS = '''

def answers(device):
    seen = {}
    try:
        for name, value in program(device):
            seen[name] = value
{all}    except Exception as error:
        seen["error"] = f"{type(error).__name__}: {error}".partition("\\n")[0]
    return seen


'''
COMPARED = '''cpu, target = answers("cpu"), answers(DEVICE)
assert "error" not in cpu, cpu["error"]
if "error" in target:
    print(f"{DEVICE} raises, and cpu does not: {target['error']}   <-- DIFFERS")
for name in dict.fromkeys([*cpu, *target]) if "error" not in target else ():
    one, two = cpu.get(name, "nothing"), target.get(name, "nothing")
    if not isinstance(one, dict) or not isinstance(two, dict):
        one, two = {"": one}, {"": two}
    for key in dict.fromkeys([*one, *two]):
        same = repr(one.get(key)) == repr(two.get(key))
        if not same or key == "values":
            print(f"{name} {key}: cpu {one.get(key)}")
        if not same:
            print(f"  {DEVICE}: {two.get(key)}   <-- DIFFERS")
'''

ATTEMPT = '''
@torch.compiler.disable(recursive=False)
def attempt(step, *tensors):
    try:
        step(*tensors)
    except Exception as error:
        while type(error).__module__ == "torch._dynamo.exc" and error.__context__ is not None:
            error = error.__context__
        return type(error).__name__
    return "no error"

'''
"""For whole programs with steps that raise, each of which is a function of its own."""

WHOLE = '''
def whole(device):
    made = inputs("cpu")
    run = program if device == "cpu" else transform(program)
    yield from {**made, **run(*made.values())}.items()

'''
"""For targets that take whole programs; their script defines `transform`."""


def tail(target: Target) -> str:
    """The lines that run the program on both and print each answer that differs in what the target is judged by."""
    fields = [text for oracle, text in FIELDS.items() if oracle in target.oracles]
    if {"grad", "value"} <= target.oracles:
        fields.append(GRADIENT)
    storage = WHOLE_STORAGE if "storage" in target.oracles else ""
    answers = ANSWERS.replace("{all}", ALIASES if "alias" in target.oracles else NO_ALIASES)
    shown = ",\n            ".join(fields)
    compared = COMPARED
    if "value" not in target.oracles:
        compared = compared.replace('cpu, target = answers("cpu"), answers(DEVICE)',
                                    'cpu = answers("cpu")\nwith MODE:\n    target = answers(DEVICE)')
    text = f"\ndef describe(tensor):\n{storage}    return {{{shown}}}\n{answers}{compared}"
    return WHOLE + text.replace("program(device)", "whole(device)") if target.whole else text


def script(program: Program, target: Target, mismatches: Sequence[Mismatch] = (), notes: Sequence[str] = (),
           bad_step: int | None = None) -> str:
    """The program as Python source. `mismatches` become its docstring, with the first bad step and the `notes`, one a
    line, such as the command that runs it again."""
    found = "\n".join(textwrap.shorten(str(mismatch), 300) for mismatch in mismatches[:3]) or program.note
    first = "".join(f"\nFirst wrong in step {bad_step}: {_text(step)}"
                    for number, step in enumerate(program.steps, 1) if number == bad_step)
    head = [f'"""{_inert((found or "A program of view and in-place steps.") + first)}',
            *(["\n" + "\n".join(map(_inert, notes))] if notes else []), '"""', "import torch"]
    steps = [inner for step in program.steps for inner in (step, *step.body) if inner.op != LOOP]
    used = dict.fromkeys(table()[step.op].call or step.op for step in steps if table()[step.op].form is DEFINED)
    names = [one.name for one in program.inputs]
    functions = [f"\n\n{text}" for text in definitions_of(used)]
    if target.whole:
        given = f"return {{{', '.join(f'{name!r}: {name}' for name in names)}}}"
        body = textwrap.indent("\n".join([*_inputs(program, target), given]), "    ")
        attempt = [ATTEMPT] if any(step.raises for step in program.steps) else []
        parts = ["\ndevice = 'cpu'", *functions, *attempt, "\n", "def inputs(device):", body, "\n", source(program),
                 tail(target)]
        return "\n".join([*head, "", target.script(), *parts])
    body = textwrap.indent("\n".join([*_inputs(program, target), *_steps(program.steps)]), "    ")
    return "\n".join([*head, "", target.script(), *functions, "\n", "def program(device):", body, tail(target)])


def _inert(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', "'")
    return "".join(mark if (mark.isascii() and mark.isprintable()) or mark == "\n" else f"<{ord(mark):x}>"
                   for mark in escaped)


def _inputs(program: Program, target: Target) -> Iterator[str]:
    made = make_inputs(program)
    for number, storage in enumerate(program.storages):
        yield from picture(storage, {one.name: made[one.name].detach() for one in program.inputs
                                     if one.storage == number and one.dtype == storage.dtype})
        yield f"s{number} = torch.tensor({storage_text(storage)}, dtype=torch.{storage.dtype}).to(device)"
        for one in program.inputs:
            if one.storage == number:
                grad = ".requires_grad_()" if one.requires_grad else ""
                on_it = (f"torch.empty(0, dtype=torch.{one.dtype}, device=device).set_(s{number}.untyped_storage(), "
                         f"{one.offset}, {one.size}, {one.stride})" if target.storages else
                         f"s{number}.as_strided({one.size}, {one.stride}, {one.offset})")
                yield f"{one.name} = {on_it}{grad}"
                if not target.whole:
                    yield f'yield "{one.name}", {one.name}'


def storage_text(storage: Storage) -> str:
    """The storage's content as a Python list."""
    return "[" + ", ".join(f"float({str(v)!r})" if isinstance(v, float) and not math.isfinite(v) else repr(v)
                           for v in storage.literal()) + "]"


def picture(storage: Storage, views: dict[str, torch.Tensor]) -> Iterator[str]:
    """Comment lines: the storage's cells in a row, and for each view which of its elements lies where."""
    if not 0 < storage.size <= MOST_CELLS or not dtype_of(storage.dtype):
        return
    rows = {"cell": [str(cell) for cell in range(storage.size)]}
    for name, tensor in views.items():
        marks: list[list[str]] = [[] for _ in range(storage.size)]
        for element, cell in enumerate(cells_of(tensor) if tensor.numel() else []):
            marks[cell].append(str(element))
        rows[f"{name} {tuple(tensor.size())}"] = ["+".join(mark[:2]) + ("+" if len(mark) > 2 else "") or "."
                                                  for mark in marks]
    width = max(len(text) for row in rows.values() for text in row)
    left = max(len(name) for name in rows)
    for name, row in rows.items():
        yield f"# {name:<{left}}  " + " ".join(f"{text:>{width}}" for text in row)


def _steps(steps: Sequence[Step]) -> Iterator[str]:
    for number, step in enumerate(steps, 1):
        if step.op == LOOP:
            yield f"for i in range({step.times}):"
            yield from (f"    {_call(inner)}" for inner in step.body)
            made = dict.fromkeys(name for inner in step.body for name in inner.out)
        elif step.raises:
            yield "try:"
            yield f"    {_call(step)}"
            yield f'    yield "step {number}", "no error"'
            yield "except Exception as error:"
            yield f'    yield "step {number}", type(error).__name__'
            made = {}
        elif not step.out and table()[step.op].effect == "query":
            yield f'yield "step {number}", {_call(step)}'
            made = {}
        else:
            yield _call(step)
            made = dict.fromkeys(step.out)
        yield from (f'yield "{name}", {name}' for name in made)


def _text(step: Step) -> str:
    if step.op == LOOP:
        return f"for i in range({step.times}): {'; '.join(map(_call, step.body))}"
    return textwrap.shorten(_call(step), 200)


def _call(step: Step) -> str:
    call = table()[step.op].show(step)
    if not step.out:
        return call
    return ", ".join(step.out) + (" = " if table()[step.op].results else ", = ") + call


