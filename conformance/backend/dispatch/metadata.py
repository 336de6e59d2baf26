"""Metadata of an operator's results: from torch's meta kernels, corrected where the CPU differs.

Defines `specs`, `MetaRejected`, `global_settings` and `device_index`.

Metadata depend on the geometry of the arguments and on torch's global settings, not on elements. The meta kernel
therefore runs once for each geometry and settings. If its strides are known to differ from the CPU's, the CPU kernel
also runs (on small tensors).

This module must not depend on values.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..lazy import layout
from ..lazy.storage import storage_of
from ..runtime import torch_compat
from ..runtime.counters import COUNTERS
from ..runtime.torch_compat import OpOverload
from . import fallback
from .tensors import Spec, geometry


class MetaRejected(Exception):
    """A call that the meta kernel refuses, or that torch's checks of memory overlap may refuse: the CPU decides."""


_specs: OrderedDict[tuple[Any, ...], tuple[Any, tuple[Spec, ...]]] = OrderedDict()
_SPECS_KEPT = 16384
_INT8, _FLOAT16 = torch.empty(1, dtype=torch.int8), torch.empty(1, dtype=torch.float16)


def global_settings() -> tuple[Any, ...]:
    """Global settings of torch that change results or metadata; every cache of calls has them in its key.

    Integer division uses the default dtype, and deterministic mode makes some algorithms raise. With oneDNN, the CPU's
    strides differ. Autograd's and autocast's modes take effect before a call reaches the device.
    """
    return _default_dtype(), _deterministic(), _warns_only(), _mkldnn()


_default_dtype, _mkldnn = torch.get_default_dtype, torch_compat.mkldnn_enabled
_deterministic, _warns_only = torch_compat.deterministic_algorithms, torch_compat.deterministic_algorithms_warn_only


def specs(
    op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], floats: bool = True
) -> tuple[Any, tuple[Spec, ...]]:
    """The metadata of an operator's results as (structure, specs); raises MetaRejected if the meta kernel raises.

    Structure is None for one tensor, else the container type. Cached by the geometry of the arguments and torch's
    global settings. The values of floats are part of the key only if `floats` is true.
    """
    aliases: dict[int, int] = {}
    key = (op, _key(args, aliases, floats), _key(tuple(kwargs.items()), aliases, floats), global_settings())
    known = _specs.get(key)
    if known is None:
        known, said = _asked(op, args, kwargs)
        if said:
            _said[key] = said
        _specs[key] = known
        if len(_specs) > _SPECS_KEPT:
            _said.pop(_specs.popitem(last=False)[0], None)
    if _said and key in _said:
        COUNTERS.warned += 1
        for text, category in _said[key]:
            warnings.warn(text, category, stacklevel=2)
    return known


_said: dict[tuple[Any, ...], tuple[tuple[str, type[Warning]], ...]] = {}
"""The warnings of the calls in `_specs`; a cached call repeats its warnings."""


def _asked(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Metadata of the results from the meta kernel, with strides from the CPU, and the warnings. Raises
    MetaRejected.
    """
    metas: dict[int, torch.Tensor] = {}
    if op._schema.name == "aten::nansum" and args[1:2] and args[1] == []:  # an empty list means all dimensions
        args = (args[0], None, *args[2:])
    call = fallback.callable_with_numbers(op, args)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = call(*_meta(args, metas), **{k: _meta(v, metas, k) for k, v in kwargs.items()})
    except Exception as error:
        raise MetaRejected(str(error)) from error
    _check_dtypes(op, args, kwargs)
    known = _describe(result)
    if known[1] and not any(a.alias_info is not None for a in op._schema.arguments):
        known = _strides_of_cpu(op, args, kwargs, known)
    return known, tuple(dict.fromkeys((str(one.message), one.category) for one in caught))


_TRIED = 1 << 14  # largest number of elements for which the call runs on the CPU at its own size
_SHRUNK = 2  # length of dimensions of a larger call when its dtypes are checked: equal lengths stay equal
# Operators whose meta kernels order dimensions differently for contiguous arguments too.
_MISSTATED = frozenset({"aten._fft_r2c.default"})


_accepted: dict[tuple[Any, ...], bool] = {}


def _check_dtypes(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise MetaRejected for dtypes that the meta kernel accepts and the CPU's kernel does not.

    Only the kernel decides whether it accepts an out= tensor or a source of another dtype. If dtypes differ, or the
    call writes to out= or to integers, it is tried once on ones. A large call is tried on few elements.
    """
    tensors = list(tensors_in([*args, *kwargs.values()]))
    kinds = tuple(t.dtype for t in tensors)
    # A result of another dtype is an error if it is written to integers; logit_'s meta kernel accepts it.
    writes_out = op._schema.is_mutable and (
        any(a.is_out for a in op._schema.arguments) or not any(kind.is_floating_point for kind in kinds)
    )
    bools = torch.bool in kinds or any(isinstance(a, bool) for a in args)
    subtracts = bools and op._schema.name in _SUBTRACTIONS
    if not (len(set(kinds)) > 1 or writes_out or subtracts) or torch.Tag.nondeterministic_seeded in op.tags:
        return
    key = (op, subtracts, global_settings(), *kinds)
    if key not in _accepted:
        large = sum(layout.plan(*geometry(t)[:2]).extent for t in tensors) > _TRIED
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            accepted = _takes_ones(op, args, kwargs, _few if large else _ones)
        if accepted is None and large:  # a small size suits it less than the real one: check again at the next call
            return
        _accepted[key] = accepted is not False
    if not _accepted[key]:
        raise MetaRejected("the CPU's kernel takes no such dtypes together")


_OF_DTYPES = (
    *("dtype", "scalar type", "scalar_type", "same type", "for result,", "be cast", "implemented for"),
    *("bool tensor", "two bool"),
)
_SUBTRACTIONS = frozenset({"aten::sub", "aten::sub_", "aten::rsub"})  # their meta kernels accept bools


def _takes_ones(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], made: Callable[[Any], Any]) -> bool | None:
    """Whether the CPU accepts the call with substitute tensors; None if it refuses them for a reason other than
    dtypes.
    """
    # Resizing an out= of another size would warn the caller, so out tensors are empty.
    outs = {a.name for a in op._schema.arguments if a.is_out}
    given = {k: made(v) if k not in outs else torch.empty(0, dtype=v.dtype, device="cpu") for k, v in kwargs.items()}
    try:
        fallback.callable_with_numbers(op, args)(*made(tuple(args)), **given)
    except Exception as error:  # the operator may refuse substitute elements, so only errors about dtypes count
        return False if any(word in str(error) for word in _OF_DTYPES) else None
    return True


def _strides_of_cpu(
    op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], known: tuple[Any, tuple[Spec, ...]]
) -> tuple[Any, tuple[Spec, ...]]:
    """The CPU's strides, if its kernels and the meta kernels order dimensions differently.

    They disagree if an argument is not contiguous. They also disagree if dimensions of size 1 or 0 have strides that a
    contiguous tensor would not have (docs/notes/meta-and-cpu.md has cases). The call then runs on ones, if it is small.
    """
    tensors = list(tensors_in([*args, *kwargs.values()]))
    usual = all(geometry(t)[1] == layout.contiguous_strides(geometry(t)[0]) for t in tensors)
    if (usual and str(op) not in _MISSTATED) or sum(layout.plan(*geometry(t)[:2]).extent for t in tensors) > _TRIED:
        return known
    try:
        call = fallback.callable_with_numbers(op, args)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # caused by substitute elements
            structure, specs_ = _describe(call(*_ones(tuple(args)), **{k: _ones(v) for k, v in kwargs.items()}))
    except (RuntimeError, IndexError, ValueError):  # the operator may refuse substitute elements
        return known
    same = structure == known[0] and len(specs_) == len(known[1])
    if same and all(a is not None and b is not None and a[:2] == b[:2] for a, b in zip(specs_, known[1], strict=True)):
        return structure, specs_
    return known


def _ones(x: Any) -> Any:
    """Arguments on the CPU, tensors as ones in their geometry."""
    if isinstance(x, torch.Tensor) and x.device.type == "tiny":
        size, stride, _ = geometry(x)
        return torch.ones(layout.plan(size, stride).extent, dtype=x.dtype, device="cpu").as_strided(size, stride)
    if type(x) in (list, tuple):
        return type(x)([_ones(y) for y in x])
    return torch.device("cpu") if isinstance(x, torch.device) else x


def _few(x: Any) -> Any:
    """Arguments on the CPU, tensors as ones with short dimensions."""
    if isinstance(x, torch.Tensor):
        return torch.ones([min(n, _SHRUNK) for n in x.size()], dtype=x.dtype, device="cpu")
    if type(x) in (list, tuple):
        return type(x)([_few(y) for y in x])
    return _ones(x)


def _describe(result: Any) -> tuple[Any, tuple[Spec, ...]]:
    if isinstance(result, torch.Tensor):
        return None, (Spec(result.dtype, tuple(result.size()), tuple(result.stride())),)
    return type(result), tuple(
        Spec(r.dtype, tuple(r.size()), tuple(r.stride())) if isinstance(r, torch.Tensor) else None  # type: ignore[misc]
        for r in result
    )


def _key(x: Any, aliases: dict[int, int], floats: bool) -> Any:
    if isinstance(x, torch.Tensor):
        if x.device.type != "tiny":
            # A wrapped number and a 0-dim CPU tensor look alike but promote differently, so the key has their
            # promotions.
            return ("host", x.dtype, x.dim(), torch.result_type(_INT8, x), torch.result_type(_FLOAT16, x))
        lazy = id(storage_of(x))
        return (x.dtype, x.size(), x.stride(), x.storage_offset(), aliases.setdefault(lazy, len(aliases)))
    if isinstance(x, (list, tuple)):
        return tuple([_key(y, aliases, floats) for y in x])
    if isinstance(x, float) and not floats:
        return float
    return (x.__class__, x)


def _meta(x: Any, metas: dict[int, torch.Tensor], name: str = "") -> Any:
    if isinstance(x, torch.Tensor):
        if x.device.type != "tiny":
            return x
        lazy = storage_of(x)
        base = metas.get(id(lazy))
        if base is None:
            base = metas[id(lazy)] = torch.empty(lazy.nbytes, dtype=torch.uint8, device="meta")
        made = torch.empty(0, dtype=x.dtype, device="meta")
        return made.set_(base.untyped_storage(), x.storage_offset(), x.size(), x.stride())  # type: ignore[call-overload]
    if isinstance(x, (list, tuple)):
        return type(x)([_meta(y, metas) for y in x]) if type(x) in (list, tuple) else x
    if name == "device" or (isinstance(x, torch.device) and x.type == "tiny"):
        return torch.device("meta")
    return x


def device_index(args: Iterable[Any], kwargs: dict[str, Any]) -> int:
    """The index of the tiny device of a call; raises RuntimeError if its tensors are on several."""
    found: int | None = None
    for x in tensors_in([*args, *kwargs.values()]):
        if x.device.type == "tiny":
            index = x.device.index or 0
            if found is not None and found != index:
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but found at least two devices, "
                    f"tiny:{found} and tiny:{index}!"
                )
            found = index
    if found is None and isinstance(kwargs.get("device"), torch.device):
        found = kwargs["device"].index
    return found or 0


def check_devices(args: Iterable[Any]) -> None:
    """Raise torch's error for a tensor on another device, except a 0-dim CPU tensor."""
    for x in tensors_in(args):
        if x.device.type != "tiny" and x.dim():
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, tiny and {x.device}!"
            )


def tensors_in(xs: Iterable[Any]) -> Iterable[torch.Tensor]:
    for x in xs:
        if isinstance(x, torch.Tensor):
            yield x
        elif isinstance(x, (list, tuple)):
            yield from tensors_in(x)
