"""One operator call of the traced script, with copies of its inputs, judged as a program of one step.

Defines `TracedCall`. The device has run the call in the user's script; torch CPU runs it here, on the copies.
"""

from __future__ import annotations

import cmath
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from conformance.engine.aten_ops import METADATA_ONLY, is_metadata_only
from conformance.engine.executor import Execution
from conformance.engine.judge import Judgement
from conformance.engine.rounding import small_faults
from conformance.engine.rules import LARGE, TIES
from conformance.engine.target import Target
from conformance.program.float64 import widened_answer
from conformance.program.model import GivenInput, Program
from conformance.program.steps.entry import OBJECT, Runner
from conformance.program.steps.op import ANY, Held, Step
from conformance.program.steps.op import tensor as operand
from conformance.program.trial import CpuAnswer, Trial
from conformance.record.names import METADATA
from conformance.sources.trace.references import WORKSPACE, reference_of
from conformance.standalone.device import copy_to_host
from conformance.standalone.moving import (
    MARKER,
    copied_to_host,
    leaves,
    map_leaves,
    map_tensors,
    rebuild,
    storage_key,
    tensors,
    whole_storage,
)
from conformance.standalone.observation import Observation, Raised, Seen, metadata_of, names_of, tensors_by_name
from conformance.standalone.oracles import Mismatch, show
from conformance.standalone.torch_compat import DRAWS_NUMBERS

RESULT = "result"

VALUES = frozenset({"value", "storage", "grad"})
"""Oracles that need the content of tensors."""

UNSEEN = frozenset({"kernels", "version", "grad"})
"""Oracles that a dispatch mode cannot judge. Autograd works above it, and counts writes above it."""

UNWRITTEN = frozenset(
    getattr(torch.ops.aten, name)
    for name in (
        *("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "empty_permuted", "resize_"),
        *("empty_quantized", "_efficientzerotensor", "_fused_sdp_choice"),
    )
    if hasattr(torch.ops.aten, name)
)
"""Operators whose result has no defined content. Each device chooses its kernel of attention."""

NO_DRAWS = (("dropout_p", 0), ("train", False), ("training", False))
"""Arguments, each with the value for which an operator draws no numbers, although its tags say that it may."""

CHOOSES = frozenset({"sort", "topk", "kthvalue", "median", "nanmedian", "mode", "max", "min", "argsort", "msort"})
"""Operators that may return the index of any of several equal elements."""

Tree = Any


class CopiedCall:
    """Base of a call with copies of its inputs on the CPU, which is judged as a program of one step.

    The user's script has made the call on the device, and torch CPU makes it on the copies, without an executor: that
    would copy all inputs once more, and take twice the time for most calls (docs/notes/traced-calls.md)."""

    def as_program(self) -> Program:
        """Return the program of one step that makes the call again. It holds the call, so nothing else may hold the
        program: the copies of a traced call must be freed at once."""
        raise NotImplementedError

    def oracles(self, target: Target) -> Collection[str]:
        """Return the oracles that judge the call on a target."""
        raise NotImplementedError

    def inputs(self) -> list[Any]:
        """Return the tensors and numbers that the call reads."""
        raise NotImplementedError

    def made_nonfinite(self, got: Execution) -> list[Mismatch]:
        """Return a difference for each tensor of the target's run in which the call put nan or inf, although all inputs
        are finite."""
        if not all(map(is_finite, self.inputs())):
            return []
        made = ((name, seen.value) for name, seen in got.last.tensors.items() if not is_finite(seen.value))
        return [_nonfinite(name, value) for name, value in made]

    def judged(self, want: Execution, got: Execution, target: Target) -> Judgement:
        """Return the differences between torch CPU's answer and the target's."""
        program, oracles = self.as_program(), self.oracles(target)
        got = replace(got, observations=(with_equal_storages_of(want.last, got.last),))
        answer = CpuAnswer(program)
        answer.run = want
        judgement = Trial(program, target, (answer,)).judge(got, oracles)
        if judgement.mismatches or judgement.tolerated or "value" not in oracles or want.last.error is not None:
            return judgement
        again = functools.partial(widened_answer, program)
        return judgement._replace(mismatches=small_faults(again, want.last, got.last))


def program_of_call(
    operators: tuple[str, ...],
    call: Callable[..., Any],
    given: Mapping[str, Any],
    rules: tuple[str, ...],
    on_host: bool,
) -> Program:
    """Return the program whose step makes a call of these operators on inputs that exist. `call` gets the running
    program and the inputs, and returns its results by name."""
    inputs = tuple(GivenInput(one, map_leaves(value, _as_marker), on_host=on_host) for one, value in given.items())
    step = Step(f"{OBJECT}:{operators[0]}", ({"object": Held(call)}, *map(operand, given)), raises=ANY)
    return Program((), (), (step,), rules=rules, given=inputs, operators=operators)


def _as_marker(leaf: Any) -> Any:
    """Return the leaf for a given input, where the device of a call is a placeholder."""
    return MARKER if isinstance(leaf, torch.device) else leaf


@dataclass
class TracedCall(CopiedCall):
    """A call of an operator. `args` and `kwargs` hold copies of the inputs on the CPU, as they were before the call.

    `on_host` says whether a result may lie on the CPU."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    on_host: bool = False

    @property
    def name(self) -> str:
        """The operator's name below `torch.ops`: aten.add.Tensor."""
        return str(self.func)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors of the arguments by name."""
        return tensors_by_name(arguments_by_name(self.func, self.args, self.kwargs))

    @property
    def reference(self) -> Callable[..., Any]:
        """The function that computes torch CPU's answer: the operator, or a formula if torch CPU lacks it."""
        return reference_of(self.func)

    @property
    def is_formula(self) -> bool:
        """Whether torch CPU lacks the operator, and a formula computes its answer."""
        return self.reference is not self.func

    @property
    def draws(self) -> bool:
        """Whether the call draws random numbers. Without dropout, attention does not, although its operators may."""
        if not any(tag in self.func.tags for tag in DRAWS_NUMBERS):
            return False
        given = {argument.name: argument.default_value for argument in self.func._schema.arguments}
        given |= arguments_by_name(self.func, self.args, self.kwargs)
        return not any(name in given and given[name] == value for name, value in NO_DRAWS)

    @property
    def is_collective(self) -> bool:
        """Whether all processes of a job make the call together. torch CPU makes it once in each process; a further
        call that only one process makes, for its own reasons, would wait for the others for ever."""
        return self.func.namespace in ("c10d", "_c10d_functional")

    @property
    def free_content(self) -> bool:
        """Whether the content of the result is random or undefined."""
        return self.draws or self.func.overloadpacket in UNWRITTEN

    @property
    def is_view(self) -> bool:
        """Whether the call computes metadata only."""
        return is_metadata_only(self.func) and self.func.overloadpacket not in UNWRITTEN | NEEDS_CONTENT

    @property
    def declared(self) -> frozenset[str]:
        """The arguments that the schema declares as written."""
        arguments = self.func._schema.arguments
        return frozenset(one.name for one in arguments if one.alias_info and one.alias_info.is_write)

    def as_program(self) -> Program:
        """See `CopiedCall.as_program`. Rounding may dominate a result, and ties are open."""
        named = arguments_by_name(self.func, self.args, self.kwargs)
        packet = self.func.overloadpacket.__name__
        chosen = packet in CHOOSES and isinstance(named.get("dim", -1), int)
        rules = (LARGE, TIES) if chosen else (LARGE,)
        return program_of_call((packet,), self._again, named, rules, self.on_host)

    def _again(self, runner: Runner, *values: Any) -> dict[str, Any]:
        """Make the call again on other values of its arguments. One process alone cannot make a collective call."""
        if self.is_collective:
            raise RuntimeError(f"{self.name} is a call of all processes")
        count = len(self.args)
        kwargs = dict(zip(self.kwargs, values[count:], strict=True))
        return names_of(self._compared(values[:count], kwargs, self.reference(*values[:count], **kwargs)), RESULT)

    def inputs(self) -> list[Any]:
        """See `CopiedCall.inputs`. The call does not read what it only writes."""
        outs = {argument.name for argument in self.func._schema.arguments if argument.is_out}
        arguments = arguments_by_name(self.func, self.args, self.kwargs)
        return leaves([value for name, value in arguments.items() if name not in outs])

    def made_nonfinite(self, got: Execution) -> list[Mismatch]:
        """See `CopiedCall.made_nonfinite`. New memory may hold anything."""
        return [] if self.func.overloadpacket in UNWRITTEN else super().made_nonfinite(got)

    def oracles(self, target: Target) -> Collection[str]:
        """See `CopiedCall.oracles`. A random or undefined result has no value to compare, but storages must stay. A
        formula does not define strides."""
        left_open = {"value"} if self.free_content else set()
        left_open |= {"stride", "storage_offset", "contiguity"} if self.is_formula else set()
        return target.facts.oracles - UNSEEN - left_open

    def by_cpu(self) -> Execution:
        """Return torch CPU's answer on the copies. The copies keep their content, also if the operator writes an
        argument that its schema does not declare, as `native_batch_norm` does: its answer in float64 starts from them.
        """
        args, kwargs = rebuild((self.args, self.kwargs), list if self.is_view else copied_to_host)
        try:
            result = self.reference(*args, **kwargs)
        except Exception as error:
            return Execution((Observation(error=Raised.of(error)),))
        return self._run(args, kwargs, result)

    def by_device(self, args: Tree, kwargs: Tree, result: Tree, target: Target) -> Execution:
        """Return the device's answer, fetched. `args`, `kwargs` and `result` are on the device."""
        return self._run(args, kwargs, result, target)

    def names_of_changes(self, got: Observation) -> list[str]:
        """Return the names of results, then of arguments that the schema declares as written or that changed."""
        before, declared = self.tensors, self.declared
        written = [
            name
            for name, copy in before.items()
            if name.partition("[")[0] in declared or not torch.equal(copy, got.tensors[name].value)
        ]
        return [*(name for name in got.tensors if name not in before), *written]

    def tensors_of(self, run: Execution) -> dict[str, torch.Tensor]:
        """Return the tensors of a run by name, where it left them: arguments, then results. A run that raised has
        none."""
        if run.inputs is None:
            return {}
        args, kwargs = run.inputs
        inputs = tensors_by_name(arguments_by_name(self.func, args, kwargs))
        return inputs | tensors_by_name(names_of(run.outcome, RESULT))

    def _run(self, args: Tree, kwargs: Tree, result: Tree, target: Target | None = None) -> Execution:
        """Return the run with the observation of all arguments and results."""
        for leaf in leaves(result):
            if isinstance(leaf, torch.ScriptObject) and hasattr(leaf, "wait"):
                leaf.wait()  # a collective returns before it has written its tensors
        arguments, compared = arguments_by_name(self.func, args, kwargs), self._compared(args, kwargs, result)
        seen = observed(tensors_by_name(arguments), names_of(compared, RESULT), target)
        if self.free_content:
            free = {one.alias for name, one in seen.tensors.items() if name.partition("[")[0] in self.declared}
            kept = {name: storage for name, storage in seen.storages.items() if name not in free}
            seen = replace(seen, storages=kept)
        return Execution((seen,), outcome=result, inputs=(args, kwargs))

    def _compared(self, args: Tree, kwargs: Tree, result: Tree) -> Tree:
        """Return the part of a result that is compared: no workspace, and no gradient that the call does not want,
        which may hold anything."""
        compared = result[: WORKSPACE[self.func]] if self.func in WORKSPACE else result
        if wanted := arguments_by_name(self.func, args, kwargs).get("grad_input_mask"):
            compared = [one if is_wanted else None for one, is_wanted in zip(compared, wanted)]
        return compared


def arguments_by_name(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an operator by the names of its schema."""
    return {**dict(zip((argument.name for argument in func._schema.arguments), args)), **kwargs}


def observed(
    inputs: Mapping[str, torch.Tensor], results: Mapping[str, Any], target: Target | None = None
) -> Observation:
    """Return the observation of arguments and results, and of the whole storages of arguments: an operator may write
    what its schema does not declare. Without a target, all tensors are torch CPU's own, and stay where they are."""
    tensors = {**inputs, **tensors_by_name(results)}
    host, key = (tensors, storage_key) if target is None else (fetched(tensors, target), target.key)
    # Other copies of arguments do not have the strides that the device's tensors have.
    compared = METADATA if target is None or target.facts.reads_storages else ("dtype", "shape")
    first: dict[int, str] = {}
    seen, storages = dict[str, Seen](), dict[str, torch.Tensor]()
    for name, tensor in tensors.items():
        alias, value, metadata = first.setdefault(key(tensor), name), host[name].detach(), metadata_of(tensor)
        if name in inputs:
            storages.setdefault(alias, whole_storage(value))
            metadata = {fact: metadata[fact] for fact in compared}
        seen[name] = Seen(value, metadata, alias, False, None, tensor.device.type)
    others = {name: leaf for name, leaf in results.items() if not isinstance(leaf, (torch.Tensor, torch.ScriptObject))}
    return Observation(seen, others, storages)


def with_equal_storages_of(want: Observation, got: Observation) -> Observation:
    """Return `got` with the memory of `want` where the storages of arguments are equal, which most calls do not write.
    The judge then reads no element of them again."""
    same = {
        name for name, flat in got.storages.items() if name in want.storages and _are_equal(flat, want.storages[name])
    }
    tensors = {}
    for name, seen in got.tensors.items():
        tensors[name], other = seen, want.tensors.get(name)
        if other is None or seen.alias != other.alias or seen.alias not in same:
            continue
        if _geometry(seen.value) == _geometry(other.value):
            tensors[name] = replace(seen, value=other.value)
    storages = {name: want.storages[name] if name in same else flat for name, flat in got.storages.items()}
    return replace(got, tensors=tensors, storages=storages)


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype is other.dtype and torch.equal(one, other)


def _geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.is_conj(), tensor.is_neg()


@dataclass
class NodeCall:
    """A call of a node in a compiled graph, with copies of its inputs on the CPU. `name` is the function's path below
    torch, or "Tensor." and the name of a method."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors of the arguments by name."""
        return {f"x{at}": leaf for at, leaf in enumerate(tensors((self.args, self.kwargs)))}


NEEDS_CONTENT = frozenset(getattr(torch.ops.aten, name) for name in ("lift_fresh", "_unsafe_view", "set_"))
"""Operators of `METADATA_ONLY` that are judged with their content."""
assert NEEDS_CONTENT <= METADATA_ONLY


def traced_call(func: Any, args: Tree, kwargs: Mapping[str, Any], target: Target) -> TracedCall:
    """Return the call with its inputs fetched. Raises TypeError for tensors without strides."""
    result = TracedCall(func, args, dict(kwargs))
    devices = {tensor.device.type for tensor in result.tensors.values()}
    result.on_host = not devices or "cpu" in devices or "cpu" in str(kwargs.get("device", ""))
    result.args, result.kwargs = map_leaves(fetched((result.args, result.kwargs), target), on_cpu)
    return result


def fetched(tree: Tree, target: Target) -> Tree:
    """Return the tree on the CPU, with one copy per storage, whatever devices its tensors are on."""
    if not target.facts.reads_storages:
        return map_tensors(tree, lambda tensor: tensor.detach().cpu().clone())
    return rebuild(tree, functools.partial(copy_to_host, target), flatten=target.flatten)


def is_finite(leaf: Any) -> bool:
    """Whether a tensor or a number contains neither nan nor inf; true for all else."""
    if isinstance(leaf, (float, complex)):
        return cmath.isfinite(leaf)
    return not isinstance(leaf, torch.Tensor) or bool(leaf.detach().isfinite().all())


def _nonfinite(name: str, value: torch.Tensor) -> Mismatch:
    """Return the difference of a tensor with elements that are not finite from one without."""
    wrong = ~value.isfinite()
    at = tuple(wrong.nonzero()[0].tolist())
    where = f"at {at}: expected a finite number, got {value[at].item()}" if at else "of a 0-dim tensor"
    detail = f"{int(wrong.sum())} of {value.numel()} elements differ (finite), first {where}"
    return Mismatch("value", name, "a finite number" if not at else "finite numbers", show(value), detail)


def on_cpu(leaf: Any) -> Any:
    """Return the leaf for a call on the CPU: its device and its generator are those of the CPU."""
    if isinstance(leaf, torch.device):
        return torch.device("cpu")
    return None if isinstance(leaf, torch.Generator) else leaf
