"""Operators that lie, one for each check of `conformance.check`, and correct operators that it must pass.

`LIES` maps the name of a check to a request: the operator, its reference, and the inputs. `CORRECT` has requests of
correct operators: pointwise, a reduction, in place, a view, with autograd, with several results.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch.nn.functional import silu

LIBRARY = torch.library.Library("lies", "DEF")
LIES: dict[str, dict[str, Any]] = {}
CORRECT: dict[str, dict[str, Any]] = {}

VECTOR = {"x": "float32[n]", "sizes": {"n": "0..70"}}
MATRIX = {"x": "float32[n, m]", "sizes": {"n": "1..20", "m": "1..20"}}


def custom(
    function: Callable[..., Any], fake: Callable[..., Any] | None = None, mutates: tuple[str, ...] = (), name: str = ""
) -> Any:
    """Register a custom operator of the library `lies`."""
    operator = torch.library.custom_op(f"lies::{name or function.__name__}", function, mutates_args=mutates)
    operator.register_fake(fake or (lambda x, *rest, **more: torch.empty_like(x)))
    return operator


def defined(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any] | None = None) -> Any:
    """Define an operator with a schema that nothing enforces."""
    name = schema.partition("(")[0]
    LIBRARY.define(schema)
    LIBRARY.impl(name, kernel, "CPU")
    torch.library.register_fake(f"lies::{name}", fake or (lambda x, *rest: torch.empty_like(x)), lib=LIBRARY)
    return getattr(torch.ops.lies, name)


def _values(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.01 * x)


def _layouts(x: torch.Tensor) -> torch.Tensor:
    """Reads the elements in the order of memory."""
    flat = x.as_strided((x.numel(),), (1,), x.storage_offset())
    return (flat * torch.sigmoid(flat)).view(x.shape)


def _empty(x: torch.Tensor) -> torch.Tensor:
    """Scales by the largest element."""
    top = x.abs().amax()
    return x * torch.sigmoid(x) + 0 * top.nan_to_num(0, 0, 0)


def _scalars(x: torch.Tensor) -> torch.Tensor:
    """Works row by row."""
    return torch.stack([row * torch.sigmoid(row) for row in x]) if len(x) else x.clone()


def _blocks(x: torch.Tensor) -> torch.Tensor:
    """Forgets the elements behind the last full block of 16."""
    result, flat = torch.zeros(x.numel(), dtype=x.dtype), x.flatten()
    full = x.numel() // 16 * 16 or x.numel()
    result[:full] = flat[:full] * torch.sigmoid(flat[:full])
    return result.view(x.shape)


def _specials(x: torch.Tensor) -> torch.Tensor:
    return (x * torch.sigmoid(x)).nan_to_num(nan=0.0)


def _mixed(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Reads the bytes of another dtype as its own."""
    if input.dtype != other.dtype:
        other = other.contiguous().flatten().view(torch.uint8)[: other.numel()].view(other.shape)
    return input * other.to(input.dtype)


def structure(x: torch.Tensor) -> list[torch.Tensor]:
    """Returns one part too few."""
    return [*x.chunk(2)][:1]


def _dtype(x: torch.Tensor) -> torch.Tensor:
    return (x * torch.sigmoid(x)).double()


def _shape(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1, keepdim=True)


def _strides(x: torch.Tensor) -> torch.Tensor:
    return silu(x).t().contiguous().t() if x.dim() == 2 else silu(x)


def _aliasing(x: torch.Tensor) -> torch.Tensor:
    """Returns the input if there is nothing to do."""
    return x if bool((x >= 0).all()) else x.relu()


def _mutation(x: torch.Tensor) -> torch.Tensor:
    """Uses the input as its scratch space."""
    return x.exp_() + 1


def _version(x: torch.Tensor) -> None:
    x.detach().numpy()[...] *= 2


def _accuracy(x: torch.Tensor) -> torch.Tensor:
    return x.exp() * (1 + 8e-7)


def _magnitudes(x: torch.Tensor) -> torch.Tensor:
    """Overflows, where the reference does not."""
    return x * x.exp() / (1 + x.exp())


_RESULTS: dict[torch.Size, torch.Tensor] = {}


def _replay(x: torch.Tensor) -> torch.Tensor:
    """Keeps results by shape."""
    return _RESULTS.setdefault(x.shape, x * torch.sigmoid(x)).clone()


def _contexts(x: torch.Tensor) -> torch.Tensor:
    """Is another function in inference mode."""
    return x * torch.sigmoid(x) * (2 if torch.is_inference_mode_enabled() else 1)


def _globals(x: torch.Tensor) -> torch.Tensor:
    """Leaves autograd off."""
    torch.set_grad_enabled(False)
    return x * torch.sigmoid(x)


def _writes(x: torch.Tensor) -> torch.Tensor:
    """Writes the byte behind the result, as it was."""
    result = torch.empty_like(x).copy_(x * torch.sigmoid(x))
    if result.numel():
        end = (ctypes.c_char * 1).from_address(result.data_ptr() + result.untyped_storage().nbytes())
        end[0] = b"\0" if end[0] == b"\0" else end[0]
    return result


def _reads(x: torch.Tensor) -> torch.Tensor:
    """Reads the number behind the last element."""
    if x.numel():
        last = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride()))
        ctypes.c_float.from_address(x.data_ptr() + 4 * (last + 1)).value  # noqa: B018
    return x * torch.sigmoid(x)


def _unwritten(x: torch.Tensor) -> torch.Tensor:
    result = torch.empty_like(x)
    result[x > 0] = x[x > 0]
    return result


_CALLS = [0]


def _repetition(x: torch.Tensor) -> torch.Tensor:
    _CALLS[0] += 1
    return x * torch.sigmoid(x) * (1 + 2e-7 * (_CALLS[0] % 2))


def _batch(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x) * (1 + 2e-7 * (x.shape[0] % 2 if x.dim() else 0))


def _right(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


def _saved(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])


def _silu_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    (x,) = ctx.saved_tensors
    s = torch.sigmoid(x)
    return grad * (s * (1 + x * (1 - s)))


def _wrong_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    (x,) = ctx.saved_tensors
    return grad * torch.sigmoid(x)


def _dense_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    """Reads the gradient as if it were contiguous."""
    return _silu_backward(ctx, grad if grad.is_contiguous() else grad.flatten().roll(1).view(grad.shape))


def _square(x: torch.Tensor) -> torch.Tensor:
    return x * x


def square_of_numpy(x: torch.Tensor) -> torch.Tensor:
    """Reference without a gradient."""
    return torch.from_numpy(x.detach().numpy() ** 2)


def _only_for_ints(x: torch.Tensor) -> torch.Tensor:
    """Fake kernel with another answer for symbolic sizes."""
    plain = all(type(n) is int for n in x.shape)
    return torch.empty_like(x) if plain else x.new_empty(*x.shape, 2)


def compiled(x: torch.Tensor) -> torch.Tensor:
    """Computes something else under a compiler."""
    return x * torch.sigmoid(x) * (2 if torch.compiler.is_compiling() else 1)


def dynamic(x: torch.Tensor) -> torch.Tensor:
    """Depends on the number of elements that a fake kernel gives wrongly for symbolic sizes."""
    result = torch.ops.lies.helper(x)
    return result * (result.numel() / max(x.numel(), 1) if x.numel() else 1)


def _transposing(x: torch.Tensor) -> torch.Tensor:
    """Returns other strides than its fake kernel."""
    return silu(x).t().contiguous().t() if x.dim() == 2 else silu(x)


def _product(x: torch.Tensor) -> torch.Tensor:
    """Calls `mm`, which autocast changes to bfloat16."""
    return x @ x.t()


def _refusals(input: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """Answers calls that make no sense with zeros."""
    try:
        return torch.gather(input, dim, index)
    except (RuntimeError, IndexError):
        return input.new_zeros(index.shape)


def crash(x: torch.Tensor) -> torch.Tensor:
    """Follows a null pointer for long inputs."""
    return torch.tensor(ctypes.string_at(0)) if x.numel() > 60 else _right(x)


def hang(x: torch.Tensor) -> torch.Tensor:
    """Waits for ever for long inputs."""
    while x.numel() > 60:
        time.sleep(0.01)
    return _right(x)


def memory(x: torch.Tensor) -> torch.Tensor:
    """Needs a square of the memory."""
    return _right(x) + torch.empty(10**7 * x.numel() ** 2 if x.numel() > 60 else 1).sum() * 0


def _doubled_(x: torch.Tensor) -> None:
    """Writes each element once for each place in the tensor, also where places share memory."""
    flat = x.detach().numpy()
    for index in range(flat.size):
        flat[numpy.unravel_index(index, flat.shape)] *= 2
    torch.autograd.graph.increment_version(x)


def double(x: torch.Tensor) -> torch.Tensor:
    """Reference of `declared`."""
    return 2 * x


def negative(x: torch.Tensor) -> torch.Tensor:
    """Reads memory without the sign that a negative view has."""
    memory = torch.empty(0).set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())
    return memory.detach() * torch.sigmoid(memory.detach())


def dropout(x: torch.Tensor) -> torch.Tensor:
    """Reference of `distribution`."""
    return torch.nn.functional.dropout(x, 0.5, True)


def distribution(x: torch.Tensor) -> torch.Tensor:
    """Drops too few elements, with numbers of its own."""
    keeps = torch.rand(x.shape, generator=torch.Generator().manual_seed(next(_SEEDS))) < 0.7
    return x * keeps / 0.7


_SEEDS = itertools.count()


def _dtypes(x: torch.Tensor) -> torch.Tensor:
    """Has a result in float32 for each dtype."""
    return (x.float() * torch.sigmoid(x.float())).clone()


def outer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Reference of `subsets`."""
    return x * y.exp()


class Outer(torch.autograd.Function):
    """Takes the gradients in the wrong order if only one is needed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, y)
        return x * y.exp()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        if all(ctx.needs_input_grad):
            return grad * y.exp(), grad * x * y.exp()
        return (grad * y.exp(), None) if ctx.needs_input_grad[0] else (None, grad * y.exp())


class Second(torch.autograd.Function):
    """Computes its gradient from detached values."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return silu(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return (
            _silu_backward(ctx, grad) if not torch.is_grad_enabled() else grad * _slope(ctx.saved_tensors[0].detach())
        )


class Forward(torch.autograd.Function):
    """Has a wrong derivative in forward mode."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return silu(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return _silu_backward(ctx, grad)

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
        return tangent * torch.sigmoid(ctx.saved_tensors[0])


class Backward(torch.autograd.Function):
    """Adds to its buffer in each pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.slope = _slope(x)
        return silu(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        ctx.slope.mul_(grad)
        return ctx.slope.clone()


def subsets(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return Outer.apply(x, y)


def second(input: torch.Tensor) -> torch.Tensor:
    return Second.apply(input)


def forward_mode(input: torch.Tensor) -> torch.Tensor:
    return Forward.apply(input)


def backward(input: torch.Tensor) -> torch.Tensor:
    return Backward.apply(input)


def _slope(x: torch.Tensor) -> torch.Tensor:
    s = torch.sigmoid(x)
    return s * (1 + x * (1 - s))


def forbid(x: torch.Tensor) -> torch.Tensor:
    """Calls the operator that it should replace, for long inputs."""
    return silu(x) if x.numel() > 60 else _right(x)


def halves(x: torch.Tensor) -> list[torch.Tensor]:
    """Reference of `structure`."""
    return [*x.chunk(2)]


def row_sums(x: torch.Tensor) -> torch.Tensor:
    """Reference of `shape`."""
    return x.sum(-1)


def exp_plus_one(x: torch.Tensor) -> torch.Tensor:
    """Reference of `mutation`."""
    return x.exp() + 1


def double_(x: torch.Tensor) -> None:
    """Reference of `version`."""
    x.mul_(2)


def gram(x: torch.Tensor) -> torch.Tensor:
    """Reference of `autocast`."""
    return x @ x.t()


def multiply_(x: torch.Tensor, by: float) -> None:
    """Reference of an operator in place."""
    x.mul_(by)


def select(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Reference of an operator with an index."""
    return x.index_select(0, index)


def _plant() -> None:
    for name in (
        "values",
        "layouts",
        "empty",
        "scalars",
        "blocks",
        "specials",
        "repetition",
        "batch",
        "globals",
        "replay",
        "contexts",
        "writes",
        "reads",
    ):
        LIES[name] = {"operator": custom(globals()[f"_{name}"], name=name), "like": silu}
    LIES["batch"]["batch"] = {"x": 0}
    of_two = lambda input, other: torch.empty_like(input)  # noqa: E731
    LIES["mixed"] = {"operator": custom(_mixed, of_two, name="mixed"), "like": torch.mul}
    LIES["structure"] = {"operator": structure, "reference": halves, "inputs": MATRIX}
    LIES["dtype"] = {"operator": custom(_dtype, lambda x: torch.empty_like(x).double(), name="dtype"), "like": silu}
    LIES["shape"] = {
        "operator": custom(_shape, lambda x: x.new_empty(*x.shape[:-1], 1), name="shape"),
        "reference": row_sums,
        "inputs": MATRIX,
    }
    strided = lambda x: x.new_empty(x.shape[::-1]).t() if x.dim() == 2 else torch.empty_like(x)  # noqa: E731
    LIES["strides"] = {
        "operator": custom(_strides, strided, name="strides"),
        "reference": silu,
        "inputs": MATRIX,
        "checks": ["strides"],
    }
    LIES["aliasing"] = {"operator": defined("aliasing(Tensor x) -> Tensor", _aliasing), "like": torch.relu}
    LIES["mutation"] = {
        "operator": defined("mutation(Tensor x) -> Tensor", _mutation),
        "reference": exp_plus_one,
        "inputs": VECTOR,
    }
    LIES["version"] = {
        "operator": defined("version(Tensor(a!) x) -> ()", _version, lambda x: None),
        "reference": double_,
        "inputs": VECTOR,
    }
    LIES["magnitudes"] = {"operator": custom(_magnitudes, name="magnitudes"), "reference": silu, "inputs": VECTOR}
    LIES["accuracy"] = {"operator": custom(_accuracy, name="accuracy"), "like": torch.exp}
    LIES["unwritten"] = {"operator": custom(_unwritten, name="unwritten"), "like": torch.relu}
    LIES["gradients"] = {"operator": custom(_right, name="gradients"), "like": silu}
    LIES["gradients"]["operator"].register_autograd(_wrong_backward, setup_context=_saved)
    LIES["cotangents"] = {"operator": custom(_right, name="cotangents"), "like": silu}
    LIES["cotangents"]["operator"].register_autograd(_dense_backward, setup_context=_saved)
    LIES["gradcheck"] = {"operator": custom(_square, name="gradcheck"), "reference": square_of_numpy, "inputs": VECTOR}
    LIES["gradcheck"]["operator"].register_autograd(_wrong_backward, setup_context=_saved)
    LIES["fake"] = {"operator": custom(_right, lambda x: x.new_empty(x.shape[::-1]), name="fake"), "like": silu}
    LIES["symbolic"] = {"operator": custom(_right, _only_for_ints, name="symbolic"), "like": silu}
    LIES["compile"] = {"operator": compiled, "like": silu}
    custom(_right, _only_for_ints, name="helper")
    LIES["dynamic"] = {"operator": dynamic, "like": silu}
    LIES["inductor"] = {
        "operator": custom(_transposing, name="inductor"),
        "reference": silu,
        "inputs": MATRIX,
        "checks": ["inductor"],
    }
    LIES["vmap"] = {"operator": custom(_right, name="vmap"), "like": silu}
    LIES["vmap"]["operator"].register_vmap(lambda info, dims, x: (_right(x) * info.batch_size, dims[0]))
    square = lambda x: x.new_empty(x.shape[0], x.shape[0])  # noqa: E731
    LIES["autocast"] = {"operator": custom(_product, square, name="autocast"), "reference": gram, "inputs": MATRIX}
    shape = lambda x, dim, index: x.new_empty(index.shape)  # noqa: E731
    LIES["refusals"] = {
        "operator": custom(_refusals, shape, name="refusals"),
        "like": torch.gather,
        "checks": ["refusals"],
    }
    LIES["overlap"] = {
        "operator": custom(_doubled_, lambda x: None, ("x",), "overlap"),
        "reference": double_,
        "inputs": VECTOR,
    }
    LIES["declared"] = {
        "operator": custom(double, mutates=("x",), name="declared"),
        "reference": double,
        "inputs": VECTOR,
    }
    LIES["negative"] = {"operator": negative, "reference": silu, "inputs": VECTOR, "checks": ["negative"]}
    LIES["distribution"] = {"operator": distribution, "reference": dropout, "inputs": VECTOR, "random": True}
    LIES["dtypes"] = {"operator": custom(_dtypes, lambda x: torch.empty_like(x).float(), name="dtypes"), "like": silu}
    of_input = {"input": "float32[n]", "sizes": {"n": "0..70"}}
    two = {"x": "float32[n]", "y": "float32[n]", "sizes": {"n": "1..20"}}
    LIES["subsets"] = {"operator": subsets, "reference": outer, "inputs": two}
    for function in (second, forward_mode, backward):
        LIES[function.__name__] = {"operator": function, "reference": silu, "inputs": of_input}
    LIES["forbid"] = {"operator": forbid, "reference": silu, "inputs": VECTOR, "forbid": ["aten::silu"]}
    for function in (crash, hang, memory):
        LIES[function.__name__] = {"operator": function, "reference": silu, "inputs": VECTOR, "seconds": 3.0}


_plant()


@torch.library.custom_op("right::silu", mutates_args=())
def right_silu(x: torch.Tensor) -> torch.Tensor:
    """Pointwise, with a derivative."""
    return x * torch.sigmoid(x)


@torch.library.custom_op("right::rms_norm", mutates_args=())
def right_rms_norm(
    input: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """A reduction and a scale, without a derivative."""
    dims = tuple(range(-len(normalized_shape), 0))
    wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
    least = torch.finfo(wide.dtype).eps if eps is None else eps
    normalized = wide * torch.rsqrt(wide.pow(2).mean(dims, keepdim=True) + least)
    scaled = normalized if weight is None else normalized * weight
    return scaled.to(input.dtype).contiguous()


@torch.library.custom_op("right::scale_", mutates_args=("x",))
def right_scale_(x: torch.Tensor, by: float) -> None:
    """In place."""
    x.mul_(by)


def right_view(x: torch.Tensor) -> torch.Tensor:
    """Plain Python that returns a view."""
    return x.transpose(0, 1)


@torch.library.custom_op("right::moments", mutates_args=())
def right_moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two results."""
    return x.mean(-1), x.var(-1, correction=0)


@torch.library.custom_op("right::take", mutates_args=())
def right_take(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Gathers rows by an index."""
    return x[index]


def reference_moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The moments in plain torch."""
    mean = x.mean(-1)
    return mean, ((x - mean.unsqueeze(-1)) ** 2).mean(-1)


@torch.library.custom_op("right::softmax", mutates_args=())
def library_softmax(x: torch.Tensor) -> torch.Tensor:
    """Calls torch's own operator."""
    return x.softmax(-1)


def right_numpy(x: torch.Tensor) -> torch.Tensor:
    """Plain Python that computes with numpy."""
    import numpy

    return torch.from_numpy(numpy.maximum(x.detach().numpy(), 0))


def right_attention(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Plain Python that casts to float32 first, so autocast casts at other places than in the reference."""
    scores = q.float() @ k.float().transpose(-1, -2) / q.shape[-1] ** 0.5
    return (scores.softmax(-1) @ k.float()).to(q.dtype)


def attention(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Reference of `right_attention`."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, k)


def _correct() -> None:
    right_silu.register_fake(torch.empty_like)
    right_silu.register_autograd(_silu_backward, setup_context=_saved)
    CORRECT["pointwise"] = {"operator": right_silu, "like": silu}
    right_rms_norm.register_fake(lambda input, *rest, **more: torch.empty(input.shape, dtype=input.dtype))
    CORRECT["reduction"] = {"operator": right_rms_norm, "like": torch.nn.functional.rms_norm}
    right_scale_.register_fake(lambda x, by: None)
    CORRECT["in place"] = {
        "operator": right_scale_,
        "reference": multiply_,
        "inputs": {**MATRIX, "by": "float in 0.5..2"},
    }
    tokens = {"q": "float32[b, m, d]", "k": "float32[b, n, d]"}
    sizes = {"b": "1..2", "m": "1..20", "n": "1..40", "d": "8..32 step 8"}
    CORRECT["composite"] = {"operator": right_attention, "reference": attention, "inputs": {**tokens, "sizes": sizes}}
    CORRECT["view"] = {"operator": right_view, "reference": torch.t, "inputs": MATRIX}
    right_moments.register_fake(lambda x: (x.new_empty(x.shape[:-1]), x.new_empty(x.shape[:-1])))
    CORRECT["several results"] = {"operator": right_moments, "reference": reference_moments, "inputs": MATRIX}
    right_take.register_fake(lambda x, index: x.new_empty(index.shape[0], x.shape[1]))
    CORRECT["index"] = {
        "operator": right_take,
        "reference": select,
        "inputs": {
            "x": "float32/bfloat16[n, m]",
            "index": "int64[k] in 0..n-1",
            "sizes": {"n": "1..20", "m": "0..20", "k": "0..n"},
        },
    }
    CORRECT["numpy"] = {"operator": right_numpy, "reference": torch.relu, "inputs": VECTOR}
    CORRECT["numpy"]["exclude"] = {"gradients": "it is for inference only"}


_correct()
