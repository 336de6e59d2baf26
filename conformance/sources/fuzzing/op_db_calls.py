"""op_db's samples as calls of drawn programs: data, with a name for each tensor that has no geometry yet.

Defines `SampleStep`, `drawn_calls` and `entries`. The key insight: an entry is often a wrapper of the user's call. So
a sample is written as a call by a public name: a function, method or attribute. The call is used only if it gives the
entry's answer. A sample without such a call is excluded with a reason; `conformance opinfo` runs it.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from conformance.engine.aten_ops import Tagged
from conformance.program.capture import Unwritable, encoded, on_host
from conformance.program.steps.draw import Draw
from conformance.program.steps.op import METHOD, Json, Step, decode, dtype_name, dtype_of, number
from conformance.program.steps.op_db import has_function, has_method
from conformance.program.steps.table import OPS
from conformance.sources.opinfo import catalog, seeding, undefined
from conformance.sources.opinfo.sample_program import results_of, steps_of
from conformance.sources.opinfo.sampling import Sample, samples, tensors
from conformance.standalone.moving import storage_key
from conformance.standalone.torch_compat import DRAWS_NUMBERS

SAMPLES, LARGEST, SMALL = 8, 512, 64
"""Limits: samples of an entry to consider; elements of one tensor; and elements of all tensors in a small sample."""

CUT = 3
"""Length of each dimension after a large sample of a unary function is cut."""

FORWARD, INPLACE, OUT = "forward", "inplace", "out"


@dataclass(frozen=True)
class Operand:
    """A tensor of a sample: its dtype, its size, and its values in element order."""

    dtype: str
    size: tuple[int, ...]
    values: tuple[Json, ...]


@dataclass(frozen=True)
class SampleStep:
    """A sample as a step, with operands named `#0`, `#1` and so on."""

    step: Step
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...] = ()
    """The result tensors, without values."""
    differentiable: bool = False


Key = tuple[str, str]
"""An entry: its name and overload."""


@functools.cache
def entries() -> tuple[Key, ...]:
    """The entries available to drawing."""
    return tuple(key for key, reason in excluded().items() if not reason)


@functools.cache
def excluded() -> Mapping[Key, str]:
    """Every entry of op_db with the reason why drawing excludes it; "" for the entries available."""
    return {(entry.op, entry.overload): _reason(entry.op, entry.overload) for entry in catalog.entries()}


def _reason(name: str, overload: str) -> str:
    op = opinfo((name, overload))
    if not catalog.has_value(op):
        return "its values are undefined"
    if undefined.is_free(name):
        return "the order, sign or basis of its results is free: conformance opinfo compares what defines them"
    if catalog.family(op) in ("random", "sparse"):
        return f"{catalog.family(op)}: another device draws other numbers, or has no such tensors"
    return ""


def opinfo(key: Key) -> Any:
    """The OpInfo of an entry."""
    return catalog.by_name()[key]


def variants(key: Key) -> tuple[str, ...]:
    """The variants of the entry that a step can call."""
    op, names = opinfo(key), [FORWARD]
    if op.inplace_variant is not None and has_method(getattr(op.inplace_variant, "__name__", ""), METHOD):
        names.append(INPLACE)
    if op.supports_out and has_function(op.name):
        names.append(OUT)
    return tuple(names)


def drawn_calls(d: Draw, key: Key, variant: str, dtype: str) -> Iterator[SampleStep]:
    """Yield the entry's samples as calls that torch CPU answers, in a drawn order, those with few elements first.
    Operands have no geometry yet. Each call takes two runs on torch CPU, so a caller takes only those that it needs."""
    op, known = opinfo(key), _samples_of(key, dtype)
    is_unary = catalog.family(op) == "unary"  # whose large samples are cut
    small = [is_unary or sum(part.numel() for part in tensors(sample.tree)) <= SMALL for sample in known]
    order = d.permutation(len(known))
    for place in (*(at for at in order if small[at]), *(at for at in order if not small[at])):
        call = _call_of(key, variant, dtype, place)
        if call is not None:
            yield call


@functools.lru_cache(8192)
def _call_of(key: Key, variant: str, dtype: str, number: int) -> SampleStep | None:
    """The entry's sample of this number as a call; None if no program can make it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _call(key, variant, copy.copy(_samples_of(key, dtype)[number]))
        except Unwritable:
            return None


@functools.lru_cache(32)
def _samples_of(key: Key, dtype: str) -> tuple[Sample, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return tuple(samples(opinfo(key), "forward", dtype_of(dtype), "as_sampled", SAMPLES))
        except Exception:  # op_db's own samplers fail for some dtypes; other dtypes cover the op
            return ()


def _call(key: Key, variant: str, sample: Sample) -> SampleStep:
    """The sample as a call. Raises Unwritable."""
    if sample.process is not None:
        raise Unwritable("its sign or phase is free")
    op, operands = opinfo(key), list[Operand]()
    if catalog.family(op) == "unary" and isinstance(sample.input, torch.Tensor) and sample.input.numel() > SMALL:
        sample.input = sample.input[tuple(slice(CUT) for _ in sample.input.shape)].clone()
    if "cpu" in sample.kwargs.values():
        raise Unwritable("its result lies on the CPU, where no step on the device's tensors can use it")
    marker = functools.partial(_operand, sample=sample, operands=operands)
    args = tuple(encoded(value, marker) for value in (sample.input, *sample.args))
    kwargs = {name: encoded(value, marker) for name, value in sample.kwargs.items()}
    seeding.seed()
    try:
        with Tagged(DRAWS_NUMBERS) as random_numbers:
            answer = op.op(sample.input, *sample.args, **sample.kwargs)
    except Exception as error:
        raise Unwritable(str(error)) from error
    if random_numbers.seen:
        raise Unwritable("it draws random numbers")
    named, ending = results_of(answer)
    tensors = named.values()
    if variant == OUT and not tensors:
        raise Unwritable("it makes no tensor")
    for step in steps_of(op, variant, ending, args, kwargs):
        if variant == INPLACE:
            return SampleStep(step, tuple(operands))
        if variant == OUT or op.op is _function(op) or _agrees(step, operands, answer):
            outputs = tuple(Operand(dtype_name(part.dtype), tuple(part.size()), ()) for part in tensors)
            floats = any(part.requires_grad or part.is_floating_point() for part in tensors)
            return SampleStep(step, tuple(operands), outputs, variant == FORWARD and op.supports_autograd and floats)
    raise Unwritable("it calls no public function")


def _function(op: Any) -> Any:
    return functools.reduce(getattr, op.name.split("."), torch) if has_function(op.name) else None


def _agrees(step: Step, operands: Sequence[Operand], expected: Any) -> bool:
    """Whether the step gives the answer that the entry gave."""
    cpu = torch.device("cpu")
    env = {f"#{at}": tensor_for(operand) for at, operand in enumerate(operands)}
    try:
        kwargs = {key: decode(part, env, cpu) for key, part in step.kwargs.items()}
        actual = OPS[step.op].run(decode([*step.args], env, cpu), kwargs)
    except Exception:  # another form of the call may work
        return False
    sides = [[*answer] if isinstance(answer, (tuple, list)) else [answer] for answer in (expected, actual)]
    return len(sides[0]) == len(sides[1]) and all(map(_same, *sides))


def tensor_for(operand: Operand) -> torch.Tensor:
    """The operand as a contiguous CPU tensor."""
    cpu = torch.device("cpu")
    return torch.tensor(decode([*operand.values], {}, cpu), dtype=dtype_of(operand.dtype)).reshape(operand.size)


def _same(expected: Any, actual: Any) -> bool:
    if isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
        if (expected.dtype, expected.shape) != (actual.dtype, actual.shape):
            return False
        left, right = (side.detach().to(torch.complex128) for side in (expected, actual))
        return torch.allclose(left, right, 1e-3, 1e-3, equal_nan=True)
    return type(expected) is type(actual) and bool(expected == actual)


def _operand(tensor: torch.Tensor, sample: Sample, operands: list[Operand]) -> Json:
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.numel() > LARGEST:
        raise Unwritable("a tensor that is sparse, or large")
    plain = tensor.detach().resolve_conj().resolve_neg()
    try:
        values = plain.reshape(-1).tolist()
    except RuntimeError as error:
        raise Unwritable(str(error)) from error
    if storage_key(tensor) in sample.kept:
        return on_host(plain)
    short = (float(f"{value:.4g}") if isinstance(value, float) else value for value in values)
    operands.append(Operand(dtype_name(tensor.dtype), tuple(tensor.size()), tuple(map(number, short))))
    return {"t": f"#{len(operands) - 1}"}
