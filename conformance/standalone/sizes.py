"""One call on one side: its peak memory, its seconds, and its answers in a form of small, fixed size.

Defines `measured`, `MeasuredCall` and `faults`; scripts of findings carry the source of these functions. Answers are
read chunk by chunk within the measured time, so a lazy device computes there, and no copy of a whole answer is stored.
For exact answers, `AnswerSummary` stores a checksum of each chunk and the elements at the edges, where an index
overflows. For rounded answers, it stores the errors from the answer in float64.

The peak is the kernel's own high-water mark of resident memory (VmHWM), reset before the call. It does not count memory
that is reserved and never touched, memory of other processes such as a compiler, and memory of an accelerator.
"""

from __future__ import annotations

import ctypes
import gc
import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.record.accuracy import NO_NUMBER, limit
from conformance.record.footprint import allowed
from conformance.standalone.torch_compat import storage_id, tree_leaves, tree_map

CHUNK = 1 << 22
"""Elements that are read at a time."""

EDGES = (0, 2**31, 2**32)
"""Indices around which elements are stored; the last elements are stored too."""

PERIOD = 251
"""Period of `pattern`: a prime, so that an element 2^8, 2^16, 2^31 or 2^32 away differs."""

Exact = dict[str, torch.Tensor]
"""Answers in float64, by name."""


def pattern(count: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """Return `count` numbers 0, 1, ..., 250, 0, ..., without allocating more memory of that size."""
    result = torch.empty(count, dtype=dtype)
    whole = count // PERIOD * PERIOD
    result[:whole].view(-1, PERIOD).copy_(torch.arange(PERIOD).to(dtype))
    result[whole:] = torch.arange(count - whole)
    return result


@dataclass
class AnswerSummary:
    """One result tensor of a call.

    For an exact answer, `chunks` holds (checksum, first, last) for each `CHUNK` elements. For a rounded answer, `error`
    and `rms` are the largest and the root mean square error, in ulp of the largest element. `worst` is the index of the
    largest error, with the exact answer and this one.
    """

    dtype: str
    shape: tuple[int, ...]
    chunks: list[tuple[int, Any, Any]] = field(default_factory=list)
    edges: dict[int, Any] = field(default_factory=dict)
    error: float = 0.0
    rms: float = 0.0
    worst: tuple[int, float, float] | None = None


@dataclass
class MeasuredCall:
    """Costs and answers of a call on one side.

    `peak` is the peak in bytes above the level before the call, `stays` the bytes that remain while its results are
    alive. `inputs` and `results` are the bytes of their storages. `seconds` is the time, and `answers` holds the
    answers by name.
    """

    peak: int
    stays: int
    inputs: int
    results: int
    seconds: float
    answers: dict[str, AnswerSummary]

    @property
    def held(self) -> int:
        """Bytes that the call must hold: its inputs, and its results with the objects around them."""
        return self.inputs + max(self.results, self.stays)


def resident(line: str = "VmRSS") -> int:
    """Return this process's resident memory in bytes, now or (`VmHWM`) at the peak. Raises OSError if there is no
    /proc.
    """
    with open("/proc/self/status") as status:
        return next(int(text.split()[1]) for text in status if text.startswith(f"{line}:")) << 10


def begin_peak() -> int:
    """Release free memory, reset the peak to the resident memory, and return the latter in bytes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return resident()


def storage_bytes(tree: Any, known: Sequence[Any] = ()) -> dict[int, int]:
    """Return the bytes of each storage of the tree's tensors, without the `known` storages; for a tensor without a
    storage, its own bytes.
    """
    sizes = {}
    for x in tree_leaves(tree):
        if torch.is_tensor(x):
            try:
                storage = x.untyped_storage()
                sizes[storage_id(storage)] = storage.nbytes()
            except (NotImplementedError, RuntimeError):
                sizes[id(x)] = x.numel() * x.element_size()
    return {key: size for key, size in sizes.items() if key not in known}


def results_of(program: Callable[..., Any], inputs: Mapping[str, Any], backward: bool) -> dict[str, torch.Tensor]:
    """Return the results of the call by name, or the gradients of its floating inputs, with the results as
    cotangents.
    """
    if not backward:
        results = [x for x in tree_leaves(program(*inputs.values())) if torch.is_tensor(x)]
        return {"result" if len(results) == 1 else f"result[{number}]": x for number, x in enumerate(results)}
    wanted = {name: x for name, x in inputs.items() if torch.is_tensor(x) and x.is_floating_point()}
    for x in wanted.values():
        x.requires_grad_()
    results = [x for x in tree_leaves(program(*inputs.values())) if torch.is_tensor(x) and x.requires_grad]
    grads = torch.autograd.grad(results, list(wanted.values()), [x.detach() for x in results])
    return {f"gradient of {name}": x for name, x in zip(wanted, grads, strict=True)}


def read(x: torch.Tensor, exact: torch.Tensor | None) -> AnswerSummary:
    """Read an answer chunk by chunk; `exact` is the float64 answer of a rounded one."""
    result, flat = AnswerSummary(str(x.dtype), tuple(x.shape)), x.detach().reshape(-1)
    count = flat.numel()
    if exact is not None and tuple(exact.shape) == result.shape and count:
        largest = max(float(part.abs().max()) for part in exact.reshape(-1).split(CHUNK))
        info = torch.finfo(x.dtype)
        ulp = math.ldexp(info.eps, math.frexp(max(largest, info.tiny))[1] - 1)
        squares = 0.0
        for at in range(0, count, CHUNK):
            got, right = flat[at : at + CHUNK].cpu().double(), exact.reshape(-1)[at : at + CHUNK]
            off = ((got - right).abs() / ulp).nan_to_num(nan=NO_NUMBER, posinf=NO_NUMBER).clamp(max=NO_NUMBER)
            squares += float(off.square().sum())
            where = int(off.argmax())
            if result.worst is None or float(off[where]) > result.error:
                result.error, result.worst = float(off[where]), (at + where, float(right[where]), float(got[where]))
        result.rms = min(math.sqrt(squares / count), NO_NUMBER)
        return result
    for at in range(0, count, CHUNK):
        host = flat[at : at + CHUNK].cpu().contiguous()
        ends = (host[0].item(), host[-1].item())
        result.chunks.append((zlib.crc32(host.view(torch.uint8).numpy().data), *ends))
    for edge in (*EDGES, count):
        low, high = max(edge - 4, 0), min(edge + 4, count)
        if low < high:
            result.edges |= dict(zip(range(low, high), flat[low:high].cpu().tolist(), strict=True))
    return result


def measured(
    program: Callable[..., Any],
    arguments: Mapping[str, Any],
    backward: bool,
    exact: Exact,
    settle: Callable[[], None] = lambda: None,
) -> MeasuredCall:
    """Make the call, wait for the device with `settle`, and read its answers."""
    inputs = storage_bytes(arguments)
    before, begin = begin_peak(), time.perf_counter()
    outputs = results_of(program, arguments, backward)
    settle()
    answers = {name: read(x, exact.get(name)) for name, x in outputs.items()}
    seconds, peak = time.perf_counter() - begin, resident("VmHWM")
    results = sum(storage_bytes(outputs, tuple(inputs)).values())
    gc.collect()
    return MeasuredCall(peak - before, resident() - before, sum(inputs.values()), results, seconds, answers)


def exact_answers(program: Callable[..., Any], inputs: Mapping[str, Any], backward: bool) -> Exact:
    """Return the rounded answers of a call, in float64 on the CPU."""
    wide = tree_map(lambda x: x.double() if torch.is_tensor(x) and x.is_floating_point() else x, dict(inputs))
    results = results_of(program, wide, backward)
    return {name: x.detach() for name, x in results.items() if x.is_floating_point()}


def faults(cpu: MeasuredCall, got: MeasuredCall) -> list[tuple[str, str, str, str, str]]:
    """Return the target's differences as (oracle, where, expected, actual, detail)."""
    result, most = [], allowed(cpu.held, cpu.peak)
    for name, want in cpu.answers.items():
        have = got.answers.get(name)
        if have is None:
            result.append(("structure", name, "Tensor", "nothing", ""))
        elif (want.dtype, want.shape) != (have.dtype, have.shape):
            oracle = "dtype" if want.dtype != have.dtype else "shape"
            result.append((oracle, name, str(getattr(want, oracle)), str(getattr(have, oracle)), ""))
        elif want.worst is None:
            result += differing_chunks(name, want, have)
        elif have.worst and (have.error > limit(want.error) or have.rms > limit(want.rms)):
            by_mean = have.error <= limit(want.error)
            of, usual = (have.rms, want.rms) if by_mean else (have.error, want.error)
            index, right, number = have.worst
            detail = f"torch CPU {usual:.3g} ulp; element {index} is {number!r}, exact {right!r}"
            most_ulp = f"at most {limit(usual):.3g} ulp{' in the mean' * by_mean}"
            result.append(("accuracy", name, most_ulp, f"{of:.3g} ulp", detail))
    if got.peak > most:
        held = f"{cpu.held >> 20} MiB are held, torch CPU's peak is {cpu.peak >> 20} MiB"
        result.append(("memory", "the call", f"at most {most >> 20} MiB", f"{got.peak >> 20} MiB", held))
    return result


def differing_chunks(name: str, want: AnswerSummary, have: AnswerSummary) -> list[tuple[str, str, str, str, str]]:
    """Return a list with the first chunk of an exact answer that differs, or an empty list."""
    pairs = zip(want.chunks, have.chunks, strict=True)
    wrong = [number for number, (expected, actual) in enumerate(pairs) if expected != actual]
    if not wrong:
        return []
    count, first = math.prod(want.shape), wrong[0] * CHUNK
    detail = (
        f"{len(wrong)} of {len(want.chunks)} chunks differ, first elements {first} to {min(first + CHUNK, count) - 1}"
    )
    seen = next((at for at, number in want.edges.items() if have.edges.get(at) != number), None)
    if seen is not None:
        return [("value", name, str(want.edges[seen]), str(have.edges[seen]), f"element {seen}; {detail}")]
    expected, actual = want.chunks[wrong[0]], have.chunks[wrong[0]]
    return [("value", name, f"checksum {expected[0]:#x}", f"checksum {actual[0]:#x}", detail)]
