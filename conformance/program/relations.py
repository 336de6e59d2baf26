"""Metamorphic relations: rewritten programs that must give the same answers as the program itself.

Defines `RELATIONS` and `related`. A relation needs no reference: it rewrites a program, and a target is wrong if the
two answers differ. So it also tests torch CPU, which cannot be its own reference. The key insight: every relation is a
program, since a clone, a split, a second call and an exchange of steps are steps as well. The rewritten program is
drawn, shrunk, judged and printed like any other program.

A run of the shadow on torch CPU tells which steps a relation may rewrite: the memory that a step reads and writes, and
the sizes and strides of its operands. This module runs nothing on a target.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from conformance.program.model import Program
from conformance.program.shadow import Shadow
from conformance.program.steps.functions import TRANSFORMED
from conformance.program.steps.layouts import overlaps_itself
from conformance.program.steps.op import COMPUTE, LOSSY, MOVE, VIEW, Json, Step, tensor, tensors, walk
from conformance.program.steps.table import OPS
from conformance.program.unsupported import runs_tagged
from conformance.record.names import RELATIONS as NAMES
from conformance.standalone.layouts import contiguous_stride
from conformance.standalone.moving import storage_key, whole_storage
from conformance.standalone.torch_compat import DRAWS_NUMBERS

LAYOUT, BATCH, REPETITION, ORDER, UNUSED, DERIVATIVE = NAMES

BROKEN = "breaks the relation {!r}"
"""Words in the detail of a mismatch that name the relation."""


class Related(NamedTuple):
    """A rewritten program. `numbers` holds, for each of its steps, the number of the original step, or 0."""

    program: Program
    numbers: tuple[int, ...]


class Relation(NamedTuple):
    """A relation: the rewriting of a program's steps, its meaning in words, and whether all results must agree to the
    bit."""

    rewrite: Callable[[Sequence[StepRun]], list[tuple[int, Step]]]
    about: str
    bits: bool = False


@dataclass(frozen=True)
class StepRun:
    """A step as torch CPU runs it. `reads` are its operands by name, `results` its results, and `written` the keys of
    the storages that it writes."""

    number: int
    step: Step
    reads: Mapping[str, torch.Tensor]
    results: Mapping[str, torch.Tensor]
    written: frozenset[int]
    used_later: bool
    recorded: bool
    """Whether an operand requires grad, so that autograd may record the step."""

    @property
    def plain(self) -> bool:
        """Whether the step is one call that computes, moves or views values, in no state, and raises nothing."""
        step, row = self.step, OPS.get(self.step.op)
        here = not (step.body or step.under or step.raises or step.after)
        return here and row is not None and row.effect in (COMPUTE, LOSSY, MOVE, VIEW)

    @property
    def pure(self) -> bool:
        """Whether the step is plain, writes nothing, and returns memory of its own."""
        own = {storage_key(result) for result in self.results.values()}.isdisjoint(
            map(storage_key, self.reads.values())
        )
        return self.plain and not self.written and bool(self.results) and own and not APART.search(self.step.op)

    def storages(self) -> set[int]:
        """Return the keys of all storages that the step touches."""
        return {storage_key(tensor) for tensor in (*self.reads.values(), *self.results.values())} | self.written


BY_STRIDES = re.compile(
    r"as_strided|\bview(_as|_as_complex)?$|_unsafe_view|resize|set_|is_contiguous|same_base|new_tensors_lie"
)
"""Operators whose documentation says that strides decide about their answer, or whether they raise."""

APART = re.compile(r"as_strided|empty|\.state$|\.here$|random|bernoulli|_host_view|shares_memory|backward")
"""Steps whose answer depends on strides by definition, on global state, or on random numbers."""


UNREPRODUCIBLE = {"linalg.lstsq": "lstsq-uninitialized-pivots"}
"""Operators whose answer on torch CPU depends on memory that it does not initialize, with the finding of docs/."""


def strides_read(runs: Sequence[StepRun]) -> list[tuple[object, ...]]:
    """Return the geometries of the tensors whose strides decide the answer of a step, with the numbers of the steps."""
    return [
        (run.number, name, t.stride(), t.storage_offset())
        for run in runs
        if any(BY_STRIDES.search(step.op) for step in (run.step, *run.step.body))
        for name, t in run.reads.items()
    ]


def related(program: Program, name: str, runs: Sequence[StepRun] | None = None) -> Related | None:
    """Return the program rewritten by this relation; None if the relation changes no step. `runs` holds the program's
    steps, if they are known. Raises StepError and StepFailed if the program has no defined meaning on torch CPU."""
    steps = RELATIONS[name].rewrite(step_runs(program) if runs is None else runs)
    if not steps or [step for _, step in steps] == [*program.steps]:
        return None
    rewritten = replace(program, steps=tuple(step for _, step in steps), note="", calls=())
    return Related(rewritten, tuple(number for number, _ in steps))


def relation_of(detail: str) -> str:
    """Return the relation that the detail of a mismatch names; "" if it names none."""
    return next((name for name in RELATIONS if BROKEN.format(name) in detail), "")


def step_runs(program: Program) -> list[StepRun]:
    """Run the program on torch CPU, and return its steps with their operands and results; none if it draws random
    numbers, which depend on every other call, or calls an operator of `UNREPRODUCIBLE`."""
    called = {step.op.rpartition(":")[2] for step in program.steps}
    if called & UNREPRODUCIBLE.keys() or runs_tagged(program, DRAWS_NUMBERS):
        return []
    shadow, result = Shadow(program), list[StepRun]()
    for number, step in enumerate(program.steps, 1):
        reads = {name: shadow.env[name].detach() for name in step.names() if name in shadow.env}
        before = {name: whole_storage(tensor).clone() for name, tensor in reads.items()}
        shadow.step(step)
        written = {storage_key(tensor) for name, tensor in reads.items() if not _same_bits(tensor, before[name])}
        written |= {storage_key(reads[name]) for name in _destinations(step) if name in reads}
        results = {name: shadow.env[name] for name in step.out if name in shadow.env}
        later = {name for other in program.steps[number:] for name in other.names()}
        recorded = any(shadow.env[name].requires_grad for name in reads)
        result.append(
            StepRun(number, step, reads, results, frozenset(written), not later.isdisjoint(step.out), recorded)
        )
    return result


def _same_bits(tensor: torch.Tensor, before: torch.Tensor) -> bool:
    now = whole_storage(tensor)
    return now.shape == before.shape and torch.equal(now.view(torch.uint8), before.view(torch.uint8))


def _destinations(step: Step) -> set[str]:
    """Return the names of the tensors that the step's row declares as written."""
    writes = OPS[step.op].writes if step.op in OPS else None
    written: Json = None
    if writes == "out":
        written = step.kwargs.get("out")
    elif isinstance(writes, int):
        written = step.args[writes]
    return {*Step(step.op, (written,)).names()}


def _kept(run: StepRun) -> tuple[int, Step]:
    return run.number, run.step


def _clone(name: str, to: str) -> tuple[int, Step]:
    dense = {"memory_format": {"memory_format": "contiguous_format"}}
    return 0, Step("clone", (tensor(name),), dense, (to,))


def _laid_out(runs: Sequence[StepRun]) -> list[tuple[int, Step]]:
    """Let each step read contiguous clones, and write in place to a contiguous clone that is then copied back."""
    steps: list[tuple[int, Step]] = []
    for run in runs:
        destinations = _destinations(run.step)
        unwritten = [name for name, t in run.reads.items() if storage_key(t) not in run.written]
        own = {storage_key(t) for t in run.results.values()}
        fits = run.plain and not APART.search(run.step.op)
        names = {
            name: f"_{run.number}{name}"
            for name in unwritten
            if fits and _strided(run.reads[name]) and storage_key(run.reads[name]) not in own
        }
        written = [name for name in destinations if fits and _rewritable(run, name)]
        names |= {name: f"_{run.number}{name}" for name in written}
        steps += [_clone(name, clone) for name, clone in names.items()]
        steps.append((run.number, run.step.renamed(names)))
        steps += [(0, Step("copy_", (tensor(name), tensor(names[name])))) for name in written]
    return steps


def _strided(t: torch.Tensor) -> bool:
    """Whether a contiguous clone of the tensor has another geometry."""
    return t.numel() > 0 and (list(t.stride()) != contiguous_stride(t.shape) or t.storage_offset() > 0)


def _rewritable(run: StepRun, name: str) -> bool:
    """Whether the step writes this operand alone on its storage, in place and without a graph or a resize."""
    t = run.reads[name]
    alone = [storage_key(other) for other in run.reads.values()].count(storage_key(t)) == 1
    in_place = isinstance(OPS[run.step.op].writes, int) and not (run.results or run.recorded)
    return alone and in_place and _strided(t) and not overlaps_itself(t)


def _split(runs: Sequence[StepRun]) -> list[tuple[int, Step]]:
    """Let each batched step run on two parts of its rows, and join the results."""
    steps: list[tuple[int, Step]] = []
    for run in runs:
        names = batched(run) if run.pure and len(run.results) == 1 else []
        if not names:
            steps.append(_kept(run))
            continue
        result = next(iter(run.results))
        rows, number = run.reads[names[0]].size(0), run.number
        first, parts = (rows + 1) // 2, list[str]()
        for part, (start, count) in enumerate(((0, first), (first, rows - first))):
            of = {name: f"_{number}{name}{part}" for name in names}
            steps += [(0, Step("narrow", (tensor(a), 0, start, count), out=(b,))) for a, b in of.items()]
            parts.append(f"_{number}{result}{part}")
            steps.append((0, replace(run.step.renamed(of), out=(parts[-1],))))
        steps.append((number, Step("cat", (tensors(parts), 0), out=(result,))))
    return steps


def _repeated(runs: Sequence[StepRun]) -> list[tuple[int, Step]]:
    """Make each call twice, and keep the second answer."""
    steps: list[tuple[int, Step]] = []
    for run in runs:
        if run.pure:
            steps.append((0, replace(run.step, out=tuple(f"_{run.number}{name}" for name in run.step.out))))
        steps.append(_kept(run))
    return steps


def _exchanged(runs: Sequence[StepRun]) -> list[tuple[int, Step]]:
    """Exchange neighbouring steps that share no memory with a write."""
    left, steps = [*runs], list[tuple[int, Step]]()
    while left:
        pair = left[:2]
        if len(pair) == 2 and _independent(*pair):
            pair = pair[::-1]
        else:
            pair = pair[:1]
        steps += map(_kept, pair)
        del left[: len(pair)]
    return steps


def _independent(left: StepRun, right: StepRun) -> bool:
    """Whether the second step neither reads a result of the first nor touches memory that either of both writes."""
    movable = all(run.plain and not APART.search(run.step.op) for run in (left, right))
    names = [{*run.step.names(), *run.step.out} for run in (left, right)]
    if not movable or names[0] & {*right.step.out} or names[1] & {*left.step.out}:
        return False
    return not (left.written & right.storages() or right.written & left.storages())


def _without_unused(runs: Sequence[StepRun]) -> list[tuple[int, Step]]:
    """Leave out steps without an effect beside their results, which no later step reads."""
    bound = [name for run in runs for name in run.step.out]  # fused expressions bind a name again
    return [
        _kept(run) for run in runs if not run.pure or run.used_later or any(bound.count(n) > 1 for n in run.results)
    ]


def _differentiated_otherwise(runs: Sequence[StepRun]) -> list[tuple[int, Step]]:
    """Let plain autograd differentiate in place of transforms. At 0, an operator has op_db's operands, which may have
    ties and zeros: without a derivative there, both answers may be right."""
    steps = []
    for run in runs:
        step = run.step
        if OPS[step.op].family == TRANSFORMED and step.args[2] != 0:
            mode = re.sub("jvp|grad", "autograd", step.args[1])
            step = replace(step, args=(step.args[0], mode, *step.args[2:]))
        steps.append((run.number, step))
    return steps


RELATIONS: Mapping[str, Relation] = {
    LAYOUT: Relation(_laid_out, "each step reads and writes contiguous clones"),
    BATCH: Relation(_split, "each batched step runs on two parts of its rows"),
    REPETITION: Relation(_repeated, "each call is made twice, and the second answer counts", bits=True),
    ORDER: Relation(_exchanged, "neighbouring steps that share no memory are exchanged", bits=True),
    UNUSED: Relation(_without_unused, "steps without a use are left out", bits=True),
    DERIVATIVE: Relation(_differentiated_otherwise, "plain autograd differentiates in place of torch.func"),
}
"""The relations, by name."""


POINTWISE = frozenset(
    "abs absolute acos acosh add addcdiv addcmul angle asin asinh atan atan2 atanh bitwise_and bitwise_left_shift "
    "bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp clamp_max clamp_min conj_physical copysign "
    "cos cosh deg2rad digamma div divide double eq erf erfc erfinv exp exp2 expm1 float float_power floor "
    "floor_divide fmax fmin fmod frac gcd ge greater gt half heaviside hypot i0 igamma igammac isclose isfinite "
    "isinf isnan isneginf isposinf isreal lcm ldexp le lerp less lgamma log log10 log1p log2 logaddexp logaddexp2 "
    "logical_and logical_not logical_or logical_xor logit long lt maximum minimum mul multiply mvlgamma nan_to_num "
    "ne neg negative nextafter polar polygamma positive pow rad2deg reciprocal relu remainder round rsqrt rsub sgn "
    "sigmoid sign signbit sin sinc sinh sqrt square sub subtract tan tanh to true_divide trunc where xlogy "
    "masked_fill clone celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu6 "
    "selu silu softplus softshrink softsign tanhshrink threshold entr erfcx i0e i1 i1e log_ndtr ndtr ndtri xlog1py "
    "zeta bessel_j0 bessel_j1 bessel_y0 bessel_y1 modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 "
    "modified_bessel_k1 spherical_bessel_j0 airy_ai".split()
)
"""Pointwise operators: all operands with the rows of the result are split."""

ROWS: Mapping[str, int] = {
    **dict.fromkeys(("linear", "layer_norm", "rms_norm", "mv", "mm", "matmul"), 2),
    **dict.fromkeys(("conv1d", "max_pool1d", "avg_pool1d", "conv_transpose1d"), 3),
    **dict.fromkeys(("adaptive_avg_pool1d", "instance_norm", "local_response_norm", "group_norm"), 3),
    **dict.fromkeys(("conv2d", "max_pool2d", "avg_pool2d", "conv_transpose2d"), 4),
    **dict.fromkeys(("adaptive_avg_pool2d", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle"), 4),
    **dict.fromkeys(("conv3d", "max_pool3d", "avg_pool3d", "conv_transpose3d", "adaptive_avg_pool3d"), 5),
}
"""Operators with one answer for each row of the first operand, and the least number of dimensions that has rows.
Other operands stay whole."""

ALONG = frozenset(
    "softmax log_softmax softmin cumsum cumprod cummax cummin logcumsumexp logsumexp sum mean prod amax amin argmax "
    "argmin nansum nanmean std var any all argsort glu".split()
)
"""Operators along the dimension that their second argument or `dim` names; the others are rows."""

ALIGNED = ("bmm", "baddbmm", "cdist", "linalg.det", "linalg.inv", "linalg.cholesky")
"""Operators on batches: every operand of three or more dimensions has the rows."""


def batched(run: StepRun) -> list[str]:
    """Return the operands of a step whose rows, dimension 0, are examples of a batch with separate answers; none if the
    tables do not say so."""
    step, row = run.step, OPS[run.step.op]
    path = (row.call or row.name).partition(":")[2] or row.call or row.name
    name = path.rpartition(".")[2] if path not in ALIGNED else path
    result = next(iter(run.results.values()))
    names = step.operands
    first = run.reads[names[0]] if names else result
    if not (names and first.dim() and result.dim()) or first.size(0) < 2 or result.size(0) != first.size(0):
        return []
    if name in POINTWISE and {*step.names()} == {*names}:
        constants: list[dict[str, Json]] = []
        walk(list(step.args), constants.append)
        if any("tensor" in marker for marker in constants):  # a constant with rows would have to be split too
            return []
        rows = [operand for operand in names if run.reads[operand].dim() == result.dim()]
        split = [operand for operand in rows if run.reads[operand].size(0) == result.size(0)]
        fits = all(run.reads[operand].size(0) == 1 for operand in rows if operand not in split)
        return [*dict.fromkeys(split)] if fits else []
    return _rows(run, name, first, names)


def _rows(run: StepRun, name: str, first: torch.Tensor, names: Sequence[str]) -> list[str]:
    whole = name in ("layer_norm", "rms_norm") and len(run.step.args[1]) >= first.dim()
    if name in ROWS and first.dim() >= ROWS[name] and names.count(names[0]) == 1 and not whole:
        others = [operand for operand in names[1:] if name == "matmul" and run.reads[operand].dim() > 2]
        return [] if others else [names[0]]
    if name in ALONG and first.dim() > 1 and len({*names}) == 1:
        dim = run.step.kwargs.get("dim", run.step.args[1] if len(run.step.args) > 1 else None)
        return [names[0]] if isinstance(dim, int) and not isinstance(dim, bool) and dim % first.dim() else []
    if name in ALIGNED and all(run.reads[operand].dim() == first.dim() > 2 for operand in names):
        return [*dict.fromkeys(names)] if all(run.reads[operand].size(0) == first.size(0) for operand in names) else []
    return []
