"""One operator call of the traced script, with copies of its inputs, as a subject of the judge.

Defines `TracedCall`. The device has run the call in the user's script; torch CPU runs it here, on the copies.
"""

from __future__ import annotations

import cmath
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from conformance.engine.aten_ops import METADATA_ONLY, is_metadata_only
from conformance.engine.executor import Execution
from conformance.engine.judge import Judged, Judgement, Terms, judge
from conformance.engine.rounding import Float64Reference, small_faults
from conformance.engine.rules import LARGE, TIES, Arguments
from conformance.engine.target import Target
from conformance.record.names import METADATA
from conformance.sources.trace.references import WORKSPACE, reference_of
from conformance.standalone.device import copy_to_host
from conformance.standalone.moving import (
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
from conformance.standalone.rounding import widened
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
    """Base of a call with copies of its inputs on the CPU, as a subject of the judge: without intermediate results."""

    def swayed(
        self, mismatches: Sequence[Mismatch], expected: Observation, actual: Observation
    ) -> Sequence[Observation]:
        """See `Judged.swayed`."""
        return ()

    def operators(self) -> Collection[str]:
        """See `Judged.operators`."""
        return {cast(Judged, self).arguments().op}

    def oracles(self, target: Target) -> Collection[str]:
        """Return the oracles that judge the call on a target."""
        raise NotImplementedError

    def widened_by(self, reference: Float64Reference) -> Execution | None:
        """Return torch CPU's answer on the inputs that `reference` sends; None if it has none."""
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

    def in_float64(self, mismatches: Sequence[Mismatch], expected: Observation) -> Execution | None:
        """Return torch CPU's answer in float64; None if it has none."""
        return self.widened_by(Float64Reference())

    def judged(self, want: Execution, got: Execution, target: Target) -> Judgement:
        """Return the differences between torch CPU's answer and the target's."""
        oracles, got = self.oracles(target), replace(got, observations=(with_equal_storages_of(want.last, got.last),))
        judgement = judge(cast(Judged, self), want, got, target, oracles)  # no rule of its terms may run it again
        if judgement.mismatches or judgement.tolerated or "value" not in oracles or want.last.error is not None:
            return judgement
        return judgement._replace(mismatches=small_faults(self.widened_by, want.last, got.last))


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

    @property
    def terms(self) -> Terms:
        """Terms of a call on any inputs: rounding may dominate a result, and ties are open."""
        chosen = CHOOSES & {self.func.overloadpacket.__name__} and isinstance(self._dim, int)
        return Terms(rules=(LARGE, TIES) if chosen else (LARGE,))

    @property
    def _dim(self) -> Any:
        return arguments_by_name(self.func, self.args, self.kwargs).get("dim", -1)

    def inputs(self) -> list[Any]:
        """See `CopiedCall.inputs`. The call does not read what it only writes."""
        outs = {argument.name for argument in self.func._schema.arguments if argument.is_out}
        arguments = arguments_by_name(self.func, self.args, self.kwargs)
        return leaves([value for name, value in arguments.items() if name not in outs])

    def made_nonfinite(self, got: Execution) -> list[Mismatch]:
        """See `CopiedCall.made_nonfinite`. New memory may hold anything."""
        return [] if self.func.overloadpacket in UNWRITTEN else super().made_nonfinite(got)

    def names_of_inputs(self) -> Collection[str]:
        """Return the names of the arguments."""
        return {*arguments_by_name(self.func, self.args, self.kwargs)}

    def arguments(self) -> Arguments:
        """Return the arguments of the call to which the rules apply."""
        first, *args = self.args or (None,)
        kwargs = {"dim": self._dim} if isinstance(self._dim, int) else dict[str, Any]()
        name, leaves = self.func.overloadpacket.__name__, [*self.tensors.values()]
        return Arguments(name, first, args, {**self.kwargs, **kwargs}, leaves)

    def oracles(self, target: Target) -> Collection[str]:
        """See `CopiedCall.oracles`. A random or undefined result has no value to compare, but storages must stay. A
        formula does not define strides."""
        left_open = {"value"} if self.free_content else set()
        left_open |= {"stride", "storage_offset", "contiguity"} if self.is_formula else set()
        return target.facts.oracles - UNSEEN - left_open

    def widened_by(self, reference: Float64Reference) -> Execution | None:
        """See `CopiedCall.widened_by`."""
        if self.is_collective:
            return None
        try:
            args, kwargs = reference.send((self.args, self.kwargs))
            args, kwargs = map_leaves((args, kwargs), widened_leaf)
            return self._run(args, kwargs, self.reference(*args, **kwargs))
        except Exception:  # torch CPU may have no kernel for float64
            return None

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
        arguments = arguments_by_name(self.func, args, kwargs)
        compared = result[: WORKSPACE[self.func]] if self.func in WORKSPACE else result
        if wanted := arguments.get("grad_input_mask"):  # others may hold anything
            compared = [one if is_wanted else None for one, is_wanted in zip(compared, wanted)]
        seen = observed(tensors_by_name(arguments), names_of(compared, RESULT), target)
        if self.free_content:
            free = {one.alias for name, one in seen.tensors.items() if name.partition("[")[0] in self.declared}
            kept = {name: storage for name, storage in seen.storages.items() if name not in free}
            seen = replace(seen, storages=kept)
        return Execution((seen,), outcome=result, inputs=(args, kwargs))


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


def widened_leaf(leaf: Any) -> Any:
    """Return the leaf for a call in float64: a dtype is widened."""
    return widened(leaf) if isinstance(leaf, torch.dtype) else leaf
