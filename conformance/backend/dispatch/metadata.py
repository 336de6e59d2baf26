"""The metadata of an operator's results: what torch's meta kernels say, put right where the CPU says otherwise.

Defines `specs`, `MetaRejected`, `global_settings` and `device_index`.

The key insight: metadata depend on the geometry of the arguments and on torch's global settings, and not on elements.
So a meta kernel is asked once for each geometry and settings, and the CPU too where its strides are known to be other
ones (on small tensors).
Must not know values.
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
    """Settings of torch by which the same call has other results: whatever remembers a call's results asks for them.

    The default dtype is what integers are divided in; algorithms that must be deterministic refuse calls; and the CPU,
    where it is asked for strides, lays out what oneDNN computes in its own way. Autograd's and autocast's modes are
    settled before a call reaches the device.
    """
    return _default_dtype(), _deterministic(), _warns_only(), _mkldnn()


_default_dtype, _mkldnn = torch.get_default_dtype, torch_compat.mkldnn_enabled
_deterministic, _warns_only = torch_compat.deterministic_algorithms, torch_compat.deterministic_algorithms_warn_only


def specs(
    op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], floats: bool = True
) -> tuple[Any, tuple[Spec, ...]]:
    """The metadata of an operator's results as (structure, specs); raises MetaRejected where the meta kernel raises.

    Structure is None for one tensor, else the container type. Remembered by the geometry of the arguments and torch's
    global settings; the values of floats are part of that only where `floats` is true.
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
"""The warnings of the calls in `_specs`: what is remembered of a call warns again, as often as it is made."""


def _asked(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """What the meta kernel says of the results, and of strides the CPU; and its warnings. Raises MetaRejected."""
    metas: dict[int, torch.Tensor] = {}
    if op._schema.name == "aten::nansum" and args[1:2] and args[1] == []:  # over all, but not for the meta kernel
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


_TRIED = 1 << 14  # elements up to which the CPU is asked about a call as it is
_SHRUNK = 2  # the length of dimensions of a larger call when it is asked about dtypes: equal lengths stay equal
# Operators whose meta kernels order dimensions differently for contiguous arguments too.
_MISSTATED = frozenset({"aten._fft_r2c.default"})


_accepted: dict[tuple[Any, ...], bool] = {}


def _check_dtypes(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise MetaRejected for dtypes that the meta kernel lets pass and the CPU's own kernel does not.

    Whether an out= tensor is written in another dtype, or a source is added in one, only the kernel knows. So where
    dtypes differ, one is written out or integers are written, the call is tried once on ones; a large one on few.
    """
    tensors = list(tensors_in([*args, *kwargs.values()]))
    kinds = tuple(t.dtype for t in tensors)
    # A result of another dtype is an error where it is written to integers; logit_'s meta kernel lets it pass.
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
        if accepted is None and large:  # few elements suit it less than as many as there are: ask again next time
            return
        _accepted[key] = accepted is not False
    if not _accepted[key]:
        raise MetaRejected("the CPU's kernel takes no such dtypes together")


_OF_DTYPES = (
    *("dtype", "scalar type", "scalar_type", "same type", "for result,", "be cast", "implemented for"),
    *("bool tensor", "two bool"),
)
_SUBTRACTIONS = frozenset({"aten::sub", "aten::sub_", "aten::rsub"})  # their meta kernels take bools


def _takes_ones(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], made: Callable[[Any], Any]) -> bool | None:
    """Whether the CPU takes the call with made-up tensors; None where it refuses them for other reasons than dtypes."""
    # An out= of another size would be resized, and torch would say so to the caller: none has elements.
    outs = {a.name for a in op._schema.arguments if a.is_out}
    given = {k: made(v) if k not in outs else torch.empty(0, dtype=v.dtype, device="cpu") for k, v in kwargs.items()}
    try:
        fallback.callable_with_numbers(op, args)(*made(tuple(args)), **given)
    except Exception as error:  # made-up elements need not suit the operator, so only what is said of dtypes counts
        return False if any(word in str(error) for word in _OF_DTYPES) else None
    return True


def _strides_of_cpu(
    op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], known: tuple[Any, tuple[Spec, ...]]
) -> tuple[Any, tuple[Spec, ...]]:
    """The CPU's own strides where its kernels and the meta kernels order dimensions differently.

    They disagree where an argument is not contiguous, or gives dimensions of size 1 or 0 strides that a contiguous
    tensor would not have (docs/notes/meta-and-cpu.md has cases). The call runs on ones then, if it is a small one.
    """
    tensors = list(tensors_in([*args, *kwargs.values()]))
    usual = all(geometry(t)[1] == layout.contiguous_strides(geometry(t)[0]) for t in tensors)
    if (usual and str(op) not in _MISSTATED) or sum(layout.plan(*geometry(t)[:2]).extent for t in tensors) > _TRIED:
        return known
    try:
        call = fallback.callable_with_numbers(op, args)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of made-up elements
            structure, specs_ = _describe(call(*_ones(tuple(args)), **{k: _ones(v) for k, v in kwargs.items()}))
    except (RuntimeError, IndexError, ValueError):  # made-up elements need not suit the operator
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
    """The same with short dimensions."""
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
            # A wrapped number and a 0-dim CPU tensor promote differently and look alike: ask what they promote to.
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
    """The index of the tiny device on which a call works; raises when its tensors live on several."""
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
    """Raise torch's error for a tensor elsewhere, other than a 0-dim CPU one."""
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
