"""Sample inputs: from op_db on the CPU, in the wanted layout.

OpInfo writes `device=device` for tensors that belong on the device, and nothing or "cpu" for tensors that must stay on
the CPU (the indices of `tensor_split`). Sampling with the device `cpu:0`, which equals no default, distinguishes the
two although all tensors lie on the CPU. This module does not depend on oracles or results.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from conformance.record.names import CHANGED, DIFFERENTIATED, TIERS
from conformance.sources.opinfo import arguments, catalog, seeding
from conformance.sources.opinfo.arguments import ONE_SAMPLE, Origin
from conformance.sources.opinfo.overloads import mode_of
from conformance.sources.opinfo.plan import ADDING_UP, takes_specials
from conformance.standalone import specials
from conformance.standalone.layouts import laid_out
from conformance.standalone.moving import MARKER, leaves, map_leaves, storage_key, tensors
from conformance.standalone.torch_compat import op_db_outside_tests

ACCELERATORS = ("cuda", "mps", "xpu")
"""torch's own devices beside the CPU."""


@dataclass
class Sample:
    """Inputs of one call on the CPU. `kept` holds storages that OpInfo keeps on the CPU. `process` is OpInfo's
    post-processing of outputs whose sign or phase is free, or None.
    """

    index: int
    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    kept: set[int] = field(default_factory=set)
    process: Callable[[Any], Any] | None = None
    error_type: Any = None
    error_regex: str | None = None
    changed: bool = False
    """Whether special values were placed."""
    origin: Origin | None = None
    """The changed argument, in a variant of `CHANGED`."""

    @property
    def tree(self) -> dict[str, Any]:
        return {"input": self.input, "args": self.args, "kwargs": self.kwargs}

    def take(self, tree: dict[str, Any]) -> None:
        """Replace the inputs by the leaves of `tree`."""
        self.input, self.args, self.kwargs = tree["input"], tree["args"], tree["kwargs"]


class KeptOnCpu(TorchFunctionMode):
    """Mode that records the storages of tensors made without the sampling device, which therefore stay on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, torch.Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.device) and args and isinstance(args[0], torch.Tensor):
            # `device=x.device` in a sampler means the sampling device, but the tensor has lost its index.
            known = args[0].layout is torch.strided and storage_key(args[0]) in self.alive
            return result if known or result.type != "cpu" else MARKER
        if isinstance(result, torch.Tensor) and result.layout is torch.strided:
            values = leaves((args, kwargs)) if kwargs else leaves(args)
            if any(isinstance(leaf, torch.device) and leaf == MARKER for leaf in values):
                self.alive.pop(storage_key(result), None)
            elif not any(isinstance(leaf, torch.Tensor) for leaf in values):
                self.alive[storage_key(result)] = result
        return result


def _on_the_target(leaf: Any) -> Any:
    """Return the sampling device for an accelerator of torch. On a machine with a GPU, some samples name it."""
    device = leaf.type if isinstance(leaf, torch.device) else leaf
    return MARKER if isinstance(device, str) and device.partition(":")[0] in ACCELERATORS else leaf


FAR = 400
"""Number of samples of an OpInfo among which those with elements are searched."""


def samples(op: Any, variant: str, dtype: torch.dtype, layout: str, limit: int | None) -> Iterator[Sample]:
    """Yield up to `limit` samples of an OpInfo, drawn lazily on the CPU with OpInfo's own seeds.

    At most half of them have a tensor without elements, if others follow: the first twenty samples of `linalg.svd` are
    empty. Of inputs that must raise, the first are taken."""
    if variant in CHANGED:
        yield from itertools.islice(_changed(op, variant, dtype, layout), limit)
        return
    drawn = _draw_samples(op, variant, dtype, layout)
    if limit is None or variant == "error_inputs" or ONE_SAMPLE in os.environ:
        yield from itertools.islice(drawn, limit)
        return
    allowed, left, taken = (limit + 1) // 2, list[Sample](), 0
    for sample in itertools.islice(drawn, FAR):
        if taken == limit:
            return
        if any(tensor.layout is torch.strided and not tensor.numel() for tensor in tensors(sample.tree)):
            if not allowed:
                left.append(sample)
                continue
            allowed -= 1
        taken += 1
        yield sample
    yield from left[: limit - taken]


def _draw_samples(op: Any, variant: str, dtype: torch.dtype, layout: str) -> Iterator[Sample]:
    """Yield the samples of an OpInfo."""
    # OpInfo's iterators yield only one sample if PYTORCH_OPINFO_SAMPLE_INPUT_INDEX is set. They must then set the seed
    # themselves for each sample before it; otherwise `seeding.seed` does the same in less time.
    wanted = os.environ.get(ONE_SAMPLE)
    only, seeds = int(wanted or "0"), wanted is not None
    with op_db_outside_tests():
        if variant == "error_inputs":
            # Some of these samplers read the device as a string. For an error it does not matter which tensors stay on
            # the CPU.
            drawn = iter(op.error_inputs("cpu", set_seed=seeds))
        elif variant == "reference_inputs":
            drawn = iter(op.reference_inputs(MARKER, dtype, set_seed=seeds))
        else:
            drawn = iter(op.sample_inputs(MARKER, dtype, requires_grad=variant in DIFFERENTIATED, set_seed=seeds))
    mode = KeptOnCpu()
    for index in itertools.count(only):
        if not seeds:
            seeding.seed()
        try:
            with mode if variant != "error_inputs" else op_db_outside_tests():
                item = next(drawn)
        except StopIteration:
            return
        source = item.sample_input if variant == "error_inputs" else item
        sample = Sample(index, source.input, tuple(source.args), dict(source.kwargs), set(mode.alive))
        sample.take(map_leaves(sample.tree, _on_the_target))
        if source.output_process_fn_grad.__qualname__ != "SampleInput.__init__.<locals>.<lambda>":
            sample.process = source.output_process_fn_grad
        if variant == "error_inputs":
            sample.error_type, sample.error_regex = item.error_type, item.error_regex
        if variant in TIERS:
            family, before = catalog.family(op), sample.tree
            names, positive = takes_specials(op.name, family, str(dtype)), family in ADDING_UP
            sample.take(specials.placed(before, TIERS[variant], dtype, sample.kept, names, positive=positive))
            sample.changed = any(a is not b for a, b in zip(leaves(before), leaves(sample.tree), strict=True))
        if layout != "as_sampled":
            _lay_out(sample, layout)
        yield sample


SEARCHED = 20
"""Number of samples of an OpInfo whose arguments are changed. Each argument of a kind is changed in one of them."""

WHOLE = 8
"""Number of samples whose tensors are changed together."""


def _changed(op: Any, variant: str, dtype: torch.dtype, layout: str) -> Iterator[Sample]:
    """Yield the samples of a variant that changes one argument, first of the function, then of the in-place form."""
    wanted, number, seen = os.environ.get(ONE_SAMPLE), itertools.count(), set[tuple[Any, ...]]()
    for base in _unchanged(op, dtype, layout):
        whole: tuple[arguments.Place, str, Any] = ((), "call", base.tree)
        for place, kind, value in (*arguments.places(base.tree), *[whole] * (base.index < WHOLE)):
            key = (place, kind, mode_of(base.tree) if getattr(op, "only", ()) else ())
            if key in seen and place:
                continue
            seen.add(key)
            for change in arguments.table()[variant].get(kind, ()):
                changed = arguments.changed(base.tree, place, change)
                if changed is None or (variant == "refused_device" and len(tensors(base.tree)) < 2):
                    continue
                kept = {*base.kept}
                if not place:
                    pairs = zip(tensors(base.tree), tensors(changed[0]), strict=True)
                    kept |= {storage_key(new) for old, new in pairs if _stays(old, base.kept)}
                if isinstance(changed[1], torch.Tensor) and (change.host or _stays(value, base.kept)):
                    kept.add(storage_key(changed[1]))
                forms = ("", "inplace") if _has_inplace(op, place, change) else ("",)
                for form, index in zip(forms, number):
                    if wanted is None or index == int(wanted):
                        origin = Origin(base.index, place, change, form)
                        tree = changed[0]["input"], changed[0]["args"], changed[0]["kwargs"]
                        yield Sample(index, *tree, kept, base.process, origin=origin)


def _has_inplace(op: Any, place: arguments.Place, change: arguments.Change) -> bool:
    """Whether the op has an in-place form for the changed call. A tensor on the CPU cannot take a device's result."""
    return op.inplace_variant is not None and not (change.host and place[0] == "input")


def _stays(value: Any, kept: set[int]) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and storage_key(value) in kept


_last: dict[tuple[int, torch.dtype, str], list[Sample]] = {}
"""The last unchanged samples, since the variants of an OpInfo run one after the other."""


def _unchanged(op: Any, dtype: torch.dtype, layout: str) -> list[Sample]:
    """Return the first samples of an OpInfo, whichever sample is wanted."""
    key = (id(op), dtype, layout)
    if key not in _last:
        wanted = os.environ.pop(ONE_SAMPLE, None)
        try:
            drawn = list(itertools.islice(samples(op, "forward", dtype, layout, None), SEARCHED))
        finally:
            os.environ.update({ONE_SAMPLE: wanted} if wanted is not None else {})
        _last.clear()
        _last[key] = drawn
    return _last[key]


def _lay_out(sample: Sample, layout: str) -> None:
    """Change the layout of the sample's tensors; a tensor that occurs twice remains one object."""
    laid: dict[int, Any] = {}
    sample.take(map_leaves(sample.tree, lambda leaf: laid.setdefault(id(leaf), laid_out(leaf, layout, sample.kept))))
