"""Metadata of an operator's results: from torch's meta kernels, corrected where the CPU differs.

Defines `specs`, `MetaRejected`, `global_settings`, `number_class` and `device_index`.

Metadata depend on the geometry of the arguments and on torch's global settings, not on elements. The meta kernel
therefore runs once for each geometry and settings. A trial follows: the CPU's kernel runs on ones. It shows whether the
CPU refuses the call, and it gives strides. For large tensors a trial on few elements gives dtypes and the order of
dimensions in memory; `_STRIDES` has the operators for which the order depends on sizes.

This module must not depend on values.
"""

from __future__ import annotations

import bisect
import functools
import sys
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
from ..runtime.warn import warn
from . import fallback, widening
from .tensors import Spec, geometry


class MetaRejected(Exception):
    """A call that the meta kernel refuses, or that torch's checks of memory overlap may refuse: the CPU decides."""


Results = tuple[Any, tuple[Spec, ...]]
"""The structure of an operator's results, and the metadata of each result; None for an undefined result."""

_specs: OrderedDict[tuple[Any, ...], Results] = OrderedDict()
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
    op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], floats: bool = True, warns: bool = True
) -> tuple[Any, tuple[Spec, ...]]:
    """The metadata of an operator's results as (structure, specs); raises MetaRejected if the meta kernel raises.

    Structure is None for one tensor, else the container type. Cached by the geometry of the arguments and torch's
    global settings. The values of floats are part of the key only if `floats` is true. `warns` is False for the
    functional form of a call that has warned already.
    """
    aliases: dict[int, int] = {}
    key = (op, _key(args, aliases, floats), _key(tuple(kwargs.items()), aliases, floats), global_settings())
    known = _specs.get(key)
    if known is None:
        known, warned = _evaluate(op, args, kwargs)
        if warned:
            _warnings[key] = warned
        _specs[key] = known
        if len(_specs) > _SPECS_KEPT:
            _warnings.pop(_specs.popitem(last=False)[0], None)
    if warns and _warnings and key in _warnings:
        COUNTERS.warned += 1
        for text, category in _warnings[key]:
            warn(text, category)
    return known


_warnings: dict[tuple[Any, ...], tuple[tuple[str, type[Warning]], ...]] = {}
"""The warnings of the calls in `_specs`; a cached call repeats its warnings."""


def _evaluate(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Results, Any]:
    """Metadata of the results from the meta kernel, corrected by a trial on the CPU, and the warnings. Raises
    MetaRejected.
    """
    metas: dict[int, torch.Tensor] = {}
    if op._schema.name == "aten::nansum" and args[1:2] and args[1] == []:  # an empty list means all dimensions
        args = (args[0], None, *args[2:])
    call = fallback.callable_with_numbers(op, args)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = call(*_meta(args, metas), **{k: _meta(v, metas, k) for k, v in kwargs.items()})
        except Exception as error:
            raise MetaRejected(str(error)) from error
        known = _tried(op, args, kwargs, _describe(result))
    # The last one of each sentence: the trial's, if the meta kernel, which may be Python, warns too.
    said = {str(one.message).partition(" (Triggered internally")[0]: one for one in caught}
    return known, tuple((str(one.message), one.category) for one in said.values())


_TRIED = 1 << 14  # largest number of elements, of arguments and results, for which the call is tried at its own size
_SHRUNK = 2  # length of dimensions of a larger call when its dtypes are tried: equal lengths stay equal
_NOT_TRIED = frozenset(
    {torch.Tag.nondeterministic_seeded, torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
)
"""Tags of operators that are not tried: they take numbers from torch's generator, or depend on elements."""


def _tried(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], known: Results) -> Results:
    """The meta kernel's description of the results, corrected by a trial on torch CPU. Raises MetaRejected if torch CPU
    refuses the call.

    Meta kernels accept dtypes, sizes, numbers and words that the CPU's kernels refuse, and they order dimensions
    differently. Therefore the call runs once on torch CPU, on tensors of the same geometry. Their elements are ones,
    and if the CPU refuses these, integers become zeros, because ones may be indices out of range. If the CPU refuses
    both, the elements are not the reason in any call of op_db, except for matrices that must be regular. The CPU then
    gets the call itself, and raises its own error.
    """
    if not is_tried(op, args):
        return known
    sizes = [geometry(t)[:2] for t in tensors_in([*args, *kwargs.values()])]
    sizes += [(s.size, s.stride) for s in known[1] if s is not None]
    if sum(layout.plan(size, stride).extent for size, stride in sizes) > _TRIED:
        known = _like(known, _results_of_few(op, args, kwargs))
        strided = _STRIDES.get(op._schema.name)
        return known if strided is None else strided(known, *args)
    refused = ""  # the text alone: the exception would keep the arguments alive, and so their values
    for fill in (_ones, _zeros):
        try:
            own = _describe(_on_cpu(op, args, kwargs, fill))
        except torch.linalg.LinAlgError:
            return known
        except Exception as error:
            refused = str(error)
        else:
            aliased = any(a.alias_info is not None for a in op._schema.arguments)
            return own if not aliased and _sizes(own) == _sizes(known) else known
    raise MetaRejected(refused)


def _convolved(
    known: Results, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int,
) -> Results:  # fmt: skip
    """A convolution's result, or the gradients of its input and weight, in the memory format of the CPU's kernel.

    The CPU chooses one of its kernels by sizes, dtypes and settings. Some take channels-last images as they are, others
    copy them. torch names the kernel and its memory format for tensors that it does not read.
    """

    def unread(t: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device="cpu")

    image, filters, meta_bias = unread(x), unread(weight), None
    if bias is not None:  # of the right size: the kernel itself refuses another one, with the sizes of the call
        meta_bias = torch.empty(
            weight.size(1) * groups if transposed else weight.size(0), dtype=bias.dtype, device="cpu"
        )
    numbers: tuple[Any, ...] = (stride, padding, dilation, output_padding)
    line = x.dim() == 3
    if line:  # the CPU copies it, and takes it for an image of one row
        image, filters = torch.empty(x.size(), dtype=x.dtype, device="cpu").unsqueeze(2), filters.unsqueeze(2)
        numbers = tuple([row, *v] for row, v in zip((1, 0, 1, 0), numbers, strict=True))
    *walk, more = numbers
    kernel = torch_compat.conv_backend(image, filters, meta_bias, *walk, transposed, more, groups, None)
    order = torch_compat.conv_memory_format(image, filters, kernel)

    def in_order(size: tuple[int, ...]) -> tuple[int, ...]:
        example = torch.empty((*size[:2], 1, *size[2:]) if line else size, memory_format=order, device="meta")
        return (example.squeeze(2) if line else example).stride()

    return known[0], tuple(
        s if s is None or len(s.size) != x.dim() else s._replace(stride=in_order(s.size)) for s in known[1]
    )


_STRIDES: dict[str, Callable[..., Results]] = {
    "aten::convolution": _convolved,
    "aten::convolution_backward": lambda known, grad, x, weight, sizes, *rest: _convolved(
        known, x, weight, None, *rest[:-1]
    ),
}
"""Operators whose strides on the CPU differ from the meta kernel's, and their results by (description, *arguments)."""


def _sizes(results: Results) -> Any:
    return results[0], [None if s is None else s.size for s in results[1]]


def _like(results: Results, few: Sequence[Spec | None]) -> Results:
    """A description of results with the dtypes and the order of dimensions of a call on few elements; without change if
    there is another number of them.
    """
    if len(few) != len(results[1]):
        return results
    return results[0], tuple(
        s if s is None or short is None else s._replace(dtype=short.dtype, stride=_ordered(s, short))
        for s, short in zip(results[1], few, strict=True)
    )


def _ordered(spec: Spec, short: Spec) -> tuple[int, ...]:
    """The strides of a result, or dense strides in the order of the same result with short dimensions."""
    same = short.size == _shortened(spec.size) and short.stride == _dense(short.size, short.stride)
    dense = _dense(spec.size, short.stride)
    as_known = all(a == b for a, b, n in zip(dense, spec.stride, spec.size, strict=False) if n > 1)
    return dense if same and not as_known else spec.stride


def _shortened(size: Sequence[int]) -> tuple[int, ...]:
    return tuple([min(n, _SHRUNK) for n in size])


def _dense(size: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Strides without gaps in the order of other strides; an expanded dimension stays expanded."""
    strides, step = [0] * len(size), 1
    for d in sorted(range(len(size)), key=lambda d: (stride[d], -d)):
        if stride[d]:
            strides[d], step = step, step * size[d]
    return tuple(strides)


_few_known: dict[tuple[Any, ...], tuple[Spec | None, ...] | None] = {}


def _results_of_few(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Spec | None, ...]:
    """The results of a large call, from a trial on few elements; () if its sizes do not suit the call.

    Raises MetaRejected if torch CPU refuses the dtypes.
    """
    key = (op, _kind(args), _kind(tuple(kwargs.items())), global_settings())
    if key not in _few_known:
        try:
            _, specs_ = _describe(_on_cpu(op, args, kwargs, _few))
        except Exception as error:  # the operator may refuse the sizes, so only errors about dtypes count
            if not any(word in str(error) for word in _OF_DTYPES):
                return ()
            _few_known[key] = None
        else:
            aliased = any(a.alias_info is not None for a in op._schema.arguments)
            _few_known[key] = () if aliased else specs_
    known = _few_known[key]
    if known is None:
        raise MetaRejected("the CPU's kernel takes no such dtypes")
    return known


def _kind(x: Any) -> Any:
    """The part of an argument that decides the dtypes of results, and the order of their dimensions."""
    if isinstance(x, torch.Tensor):
        return _key(x, {}, False) if x.device.type != "tiny" else (x.dtype, *_few_of(x))
    if isinstance(x, (list, tuple)):
        return tuple([_kind(y) for y in x])
    return x.__class__ if isinstance(x, (float, complex)) else (x.__class__, x)


def is_tried(op: OpOverload, args: Sequence[Any]) -> bool:
    """Whether a call is tried on torch CPU: there is a kernel to try, and its refusals apply to the device."""
    return _can_be_tried(op) and not BEYOND_CPU.get(op._schema.name, lambda *_: False)(*args)


@functools.cache
def _can_be_tried(op: OpOverload) -> bool:
    """Whether torch has a kernel for the CPU and a meta kernel, and the operator's results depend on its arguments."""

    def has(key: str) -> bool:
        return any(torch_compat.has_kernel(op.name(), k) for k in (key, *_COMPOSITE))

    return has("CPU") and has("Meta") and _NOT_TRIED.isdisjoint(op.tags)


_COMPOSITE = "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd"

BEYOND_CPU: dict[str, Callable[..., bool]] = {
    "aten::histc": lambda x, *_: not x.is_floating_point(),  # counts integers, as on CUDA
    "aten::nansum": lambda x, *_: x.is_complex(),  # sums complex numbers, as on CUDA
    # Takes channels-last images with other strides of dimensions of size 1.
    "aten::native_group_norm": lambda x, *_: not x.is_contiguous(memory_format=torch_compat.suggest_memory_format(x)),
    "aten::convolution_overrideable": lambda *_: True,  # torch CPU does not have it
    "aten::_nested_tensor_from_mask_left_aligned": lambda *_: True,  # False, because there are no nested tensors
}
"""Operators with calls that the device accepts and torch CPU refuses, and whether a call is one, by its arguments."""


_OF_DTYPES = (
    *("dtype", "scalar type", "scalar_type", "same type", "for result,", "be cast", "implemented for"),
    *("bool tensor", "two bool"),
)


def _on_cpu(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], convert: Callable[[Any], Any]) -> Any:
    """The call on torch CPU with substitute tensors."""
    # Resizing an out= of another size would warn the caller, so out tensors are empty.
    outs = {a.name for a in op._schema.arguments if a.is_out}
    named = {k: convert(v) if k not in outs else torch.empty(0, dtype=v.dtype, device="cpu") for k, v in kwargs.items()}
    results: list[Any] = []

    def run(_: float) -> float:
        results.append(widening.run(fallback.callable_with_numbers(op, args), convert(tuple(args)), named, ()))
        return 0.0

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # caused by substitute elements
        # `use_deterministic_algorithms(True, warn_only=True)`: the meta kernel of `put_` does not warn.
        warnings.filterwarnings("always", ".* does not have a deterministic implementation")
        # The user's call collects C++ warnings of the calls inside it, and shows them when it ends. `apply_` is a call
        # of its own that runs Python, so it shows those of the trial here.
        torch.zeros(1, device="cpu").apply_(run)
    return results[0]


def _ones(x: Any, integers: int = 1) -> Any:
    """Arguments on the CPU, tensors in their geometry: floats are ones, integers the given number."""
    if isinstance(x, torch.Tensor) and x.device.type == "tiny":
        size, stride, _ = geometry(x)
        number = 1 if x.is_floating_point() or x.is_complex() else integers
        flat = torch.full((layout.plan(size, stride).extent,), number, dtype=x.dtype, device="cpu")
        return flat.as_strided(size, stride)
    if type(x) in (list, tuple):
        return type(x)([_ones(y, integers) for y in x])
    return torch.device("cpu") if isinstance(x, torch.device) else x


def _zeros(x: Any) -> Any:
    """Arguments on the CPU, integer tensors as zeros in their geometry, others as ones."""
    return _ones(x, 0)


def _few_of(x: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Size and strides of a tensor with short dimensions, without gaps, in the same order in memory."""
    size, stride, _ = geometry(x)
    return _shortened(size), _dense(_shortened(size), stride)


def _few(x: Any) -> Any:
    """Arguments on the CPU, tensors as ones with short dimensions in the same order in memory."""
    if isinstance(x, torch.Tensor):
        size, stride = _few_of(x) if x.device.type == "tiny" else (_shortened(x.size()), None)
        ones = torch.ones(size, dtype=x.dtype, device="cpu")
        return ones if stride is None else ones.flatten()[: layout.plan(size, stride).extent].as_strided(size, stride)
    if type(x) in (list, tuple):
        return type(x)([_few(y) for y in x])
    return _ones(x)


def _describe(result: Any) -> Results:
    if isinstance(result, torch.Tensor):
        return None, (Spec(result.dtype, tuple(result.size()), tuple(result.stride())),)
    return type(result), tuple(
        Spec(r.dtype, tuple(r.size()), tuple(r.stride())) if isinstance(r, torch.Tensor) else None  # type: ignore[misc]
        for r in result
    )


_ENDS = (65504.0, torch.finfo(torch.float32).max, sys.float_info.max)


def number_class(x: float) -> Any:
    """A class of floats that torch CPU accepts or refuses alike: by the sign, and by the dtypes that hold the number.

    The class of small positive numbers is `float`.
    """
    if 0.0 < x <= 65504.0:
        return float
    return "nan" if x != x else ((x > 0) - (x < 0), bisect.bisect_left(_ENDS, abs(x)))


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
        return number_class(x)
    return (x.__class__, x)


def _meta(x: Any, metas: dict[int, torch.Tensor], name: str = "") -> Any:
    if isinstance(x, torch.Tensor):
        if x.device.type != "tiny":
            return x
        lazy = storage_of(x)
        base = metas.get(id(lazy))
        if base is None:
            base = metas[id(lazy)] = torch.empty(lazy.nbytes, dtype=torch.uint8, device="meta")
        tensor = torch.empty(0, dtype=x.dtype, device="meta")
        return tensor.set_(base.untyped_storage(), x.storage_offset(), x.size(), x.stride())  # type: ignore[call-overload]
    if isinstance(x, (list, tuple)):
        return type(x)([_meta(y, metas) for y in x]) if type(x) in (list, tuple) else x
    if name == "device" or (isinstance(x, torch.device) and x.type == "tiny"):
        return torch.device("meta")
    return x


def device_index(args: Iterable[Any], kwargs: dict[str, Any]) -> int:
    """The index of the tiny device of a call; raises RuntimeError if its tensors are on several."""
    number: int | None = None
    for x in tensors_in([*args, *kwargs.values()]):
        if x.device.type == "tiny":
            index = x.device.index or 0
            if number is not None and number != index:
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but found at least two devices, "
                    f"tiny:{number} and tiny:{index}!"
                )
            number = index
    if number is None and isinstance(kwargs.get("device"), torch.device):
        number = kwargs["device"].index
    return number or 0


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
