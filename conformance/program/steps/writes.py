"""Steps that write in place: arithmetic, copies, setitem, masked and indexed writes, and loops of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.program.steps.draw import Situation, broadcasts, category
from conformance.program.steps.op import AUGMENT, COMPUTE, DEFINED, LOSSY, MOVE, SETITEM, Json, Op, Step, tensor
from conformance.program.steps.views import draw_index, has_dims

Fits = Callable[[torch.Tensor], bool]
Drawn = tuple["list[Json]", "dict[str, Json]"]
Rest = Callable[[Situation, torch.Tensor], "Drawn | None"]


def number_like(t: torch.Tensor) -> bool:
    """Numbers, not bools and not complex."""
    return category(t.dtype) in (1, 2)


def numeric(t: torch.Tensor) -> bool:
    """Numbers, also complex."""
    return category(t.dtype) > 0


def signed(t: torch.Tensor) -> bool:
    """Numbers that may be negative."""
    return number_like(t) and t.dtype.is_signed


def whole(t: torch.Tensor) -> bool:
    """Integers and bools."""
    return category(t.dtype) < 2


def floating(t: torch.Tensor) -> bool:
    """Floats."""
    return t.dtype.is_floating_point


def small_floats(t: torch.Tensor) -> bool:
    """Floats whose exponential is not large."""
    return floating(t) and not bool((t.detach() > 8).any())


def any_dtype(t: torch.Tensor) -> bool:
    """Every dtype."""
    return True


def into(op: str, fits: Fits, rest: Rest) -> Callable[[Situation], Step | None]:
    """A rule: pick a tensor to be written, then draw the other arguments from it."""

    def rule(k: Situation) -> Step | None:
        name = k.pick_writable(fits)
        if name is None:
            return None
        drawn = rest(k, k[name])
        return None if drawn is None else Step(op, (tensor(name), *drawn[0]), drawn[1])

    return rule


def nothing(k: Situation, t: torch.Tensor) -> Drawn:
    """No further arguments."""
    return [], {}


def other(k: Situation, t: torch.Tensor) -> Drawn:
    """A tensor or a number to combine with, at times on the host."""
    return [k.number(t.dtype) if k.chance(1, 3) else k.operand(t.size(), t.dtype)], {}


def other_scaled(k: Situation, t: torch.Tensor) -> Drawn:
    """Like `other`, at times with alpha."""
    return other(k, t)[0], ({"alpha": k.integer(2, 3)} if k.chance(1, 5) and t.dtype is not torch.bool else {})


def exact_other(k: Situation, t: torch.Tensor) -> Drawn | None:
    """A tensor or number to compare with; nothing when rounding could decide the answer."""
    if k.shadow.level(t) > 1:
        return None
    return [k.number(t.dtype) if k.chance(1, 3) else k.operand(t.size(), t.dtype, settled=True)], {}


def settled(k: Situation, t: torch.Tensor) -> Drawn | None:
    """No further arguments, and nothing when rounding could decide the answer."""
    return ([], {}) if k.shadow.level(t) < 2 else None


def divisor(k: Situation, t: torch.Tensor) -> Drawn | None:
    """A number or a tensor to divide by; nothing when rounding could decide the answer."""
    if k.shadow.level(t) > 1:
        return None
    return [k.choice((3, 2)) if k.chance(1, 2) else k.divisor(k.subsize(t.size()), t.dtype)], {}


def bounds(k: Situation, t: torch.Tensor) -> Drawn:
    """A lower bound, an upper bound, or both."""
    low = k.integer(0 if not t.dtype.is_signed else -2, 2)
    return k.choice((([low, low + 3], {}), ([low], {}), ([], {"max": low})))


def source(k: Situation, t: torch.Tensor) -> Drawn:
    """What is copied in: of any dtype whose category fits, broadcast, at times from the host."""
    wide = t.dtype if category(t.dtype) > 1 else torch.float32 if k.chance(1, 3) else t.dtype
    return [k.operand(t.size(), wide, host=True)], {}


def masked(k: Situation, t: torch.Tensor) -> Drawn:
    """A mask that broadcasts, and a number."""
    return [draw_mask(k, t), k.number(t.dtype)], {}


def draw_mask(k: Situation, t: torch.Tensor) -> Json:
    """A mask that broadcasts to the tensor: a bool tensor of the program, or a constant."""
    name = k.pick(lambda m: m.dtype is torch.bool and broadcasts(m.size(), t.size())) if k.chance(1, 3) else None
    return tensor(name) if name else k.mask(k.subsize(t.size()))


def masked_source(k: Situation, t: torch.Tensor) -> Drawn:
    """A mask, and as many values as the tensor could take."""
    return [draw_mask(k, t), k.constant((t.numel(),), t.dtype)], {}


def long_tensor(values: list[int]) -> Json:
    """A constant int64 tensor."""
    return {"tensor": values, "dtype": "int64"}


def along(k: Situation, t: torch.Tensor, distinct: bool) -> tuple[int, list[int]]:
    """A dimension and indices into it."""
    dim = k.dim(t)
    return dim, k.indices(t.size(dim), k.integer(1, 3), distinct)


def index_source(distinct: bool) -> Callable[[Situation, torch.Tensor], Drawn]:
    """A dimension, indices and a source of matching size."""

    def rest(k: Situation, t: torch.Tensor) -> Drawn:
        dim, at = along(k, t, distinct)
        size = list(t.size())
        size[dim] = len(at)
        return [dim, long_tensor(at), k.constant(size, t.dtype)], {}

    return rest


def index_fill(k: Situation, t: torch.Tensor) -> Drawn:
    """A dimension, indices and a number."""
    dim, at = along(k, t, False)
    return [dim, long_tensor(at), k.number(t.dtype)], {}


def scatter(add: bool) -> Callable[[Situation, torch.Tensor], Drawn]:
    """A dimension, an index tensor that is not larger than the target, distinct along the dimension unless adding."""

    def rest(k: Situation, t: torch.Tensor) -> Drawn:
        dim = k.dim(t)
        size = [k.integer(1, n) for n in t.size()]
        lines = torch.empty(size, dtype=torch.int64).movedim(dim, -1)
        rows = [k.indices(t.size(dim), lines.size(-1), not add) for _ in range(lines[..., 0].numel())]
        index = torch.tensor(rows, dtype=torch.int64).reshape(lines.shape).movedim(-1, dim)
        value: Json = k.number(t.dtype) if not add and k.chance(1, 3) else k.constant(size, t.dtype)
        return [dim, {"tensor": index.tolist(), "dtype": "int64"}, value], {}

    return rest


def scatter_reduced(k: Situation, t: torch.Tensor) -> Drawn:
    """Like `scatter` with repeated indices, and a reduction."""
    return scatter(True)(k, t)[0], {"reduce": k.choice(("add", "multiply"))}


def scatter_reduce(k: Situation, t: torch.Tensor) -> Drawn:
    """Like `scatter` with repeated indices, and a reduction, at times without what was there."""
    return (
        [*scatter(True)(k, t)[0], k.choice(("sum", "prod", "amax", "amin"))],
        {"include_self": False} if k.chance(1, 3) else {},
    )


def index_reduce(k: Situation, t: torch.Tensor) -> Drawn:
    """A dimension, indices that may repeat, a source, and the name of a reduction."""
    return [*index_source(False)(k, t)[0], k.choice(("prod", "amax", "amin"))], {}


def index_put(k: Situation, t: torch.Tensor) -> Drawn:
    """Index tensors for the first dims, and values; indices are distinct unless they accumulate."""
    add = k.chance(1, 2) and number_like(t)
    at = negative_at_times(k, k.indices(t.size(0), k.integer(1, 3), not add), t.size(0))
    values = k.constant((len(at), *t.size()[1:]), t.dtype)
    return [{"tuple": [long_tensor(at)]}, values], ({"accumulate": True} if add else {})


def negative_at_times(k: Situation, at: list[int], n: int) -> list[int]:
    """The indices, at times counted from the end."""
    return [one - n for one in at] if k.chance(1, 4) else at


def put(k: Situation, t: torch.Tensor) -> Drawn:
    """Indices into the elements in order, and values; indices are distinct unless they accumulate."""
    add = k.chance(1, 2) and number_like(t)
    at = k.indices(t.numel(), k.integer(1, 3), not add)
    return [long_tensor(at), k.constant((len(at),), t.dtype)], ({"accumulate": True} if add else {})


def product(k: Situation, t: torch.Tensor) -> Drawn:
    """Two matrices whose product has the tensor's size, at times with alpha and beta."""
    rows, columns = t.size()
    return (
        [k.constant((rows, 2), t.dtype), k.constant((2, columns), t.dtype)],
        {"beta": 2, "alpha": 3} if k.chance(1, 3) else {},
    )


def set_basic(k: Situation, t: torch.Tensor) -> Drawn:
    """A basic index, and a number, a constant on either side, or a tensor that broadcasts to what is indexed."""
    index = draw_index(k, t)
    size = t.detach()[basic(index)].size()
    return [index, k.number(t.dtype) if k.chance(1, 3) else k.operand(size, t.dtype, host=True)], {}


def basic(index: Json) -> Any:
    """The Python index that a basic index stands for."""
    if isinstance(index, dict) and "tuple" in index:
        return tuple(basic(part) for part in index["tuple"])
    if isinstance(index, dict):
        return slice(*index["slice"]) if "slice" in index else Ellipsis
    return index


def set_masked(k: Situation, t: torch.Tensor) -> Drawn:
    """A mask over the first dims, and a number or a value for each element that it chooses."""
    dims = k.integer(1, t.dim())
    mask = k.mask(t.size()[:dims])
    count = int(torch.tensor(mask["tensor"], dtype=torch.bool).sum())
    values = k.constant((count, *t.size()[dims:]), t.dtype) if k.chance(1, 3) else k.number(t.dtype)
    return [mask, values], {}


def set_indexed(k: Situation, t: torch.Tensor) -> Drawn:
    """Distinct indices of one dimension beside slices of the others, and values."""
    dim = k.integer(0, t.dim() - 1)
    at = negative_at_times(k, k.indices(t.size(dim), k.integer(1, 3), True), t.size(dim))
    index: list[Json] = [{"slice": [None, None, None]}] * dim + [at if k.chance(1, 2) else long_tensor(at)]
    size = [len(at) if j == dim else n for j, n in enumerate(t.size())]
    return [{"tuple": index}, k.number(t.dtype) if k.chance(1, 2) else k.constant(size, t.dtype)], {}


def set_pairs(k: Situation, t: torch.Tensor) -> Drawn:
    """Distinct pairs of indices of the first two dimensions, and a number or a value for each."""
    rows, columns = t.size()[:2]
    at = k.indices(rows * columns, k.integer(1, 3), True)
    index: Json = {"tuple": [long_tensor([one // columns for one in at]), long_tensor([one % columns for one in at])]}
    return [index, k.number(t.dtype) if k.chance(1, 2) else k.constant((len(at), *t.size()[2:]), t.dtype)], {}


def filled(t: torch.Tensor) -> bool:
    """Tensors with a dimension and an element."""
    return t.dim() > 0 and t.numel() > 0


def filled_numbers(t: torch.Tensor) -> bool:
    """Such tensors of numbers."""
    return filled(t) and number_like(t)


def matrix(t: torch.Tensor) -> bool:
    """2-d tensors that are not empty."""
    return t.dim() == 2 and t.numel() > 0


def two_rows(k: Situation, t: torch.Tensor) -> Drawn:
    """Two rows."""
    return [k.integer(0, t.size(0) - 1), k.integer(0, t.size(0) - 1)], {}


def loopable(t: torch.Tensor) -> bool:
    """What a loop of setitems can run over."""
    return filled_numbers(t) and not t.requires_grad


def draw_loop(k: Situation) -> Step | None:
    """A loop of setitems over the first dimension, which may read what an earlier turn wrote."""
    name = k.pick_writable(loopable)
    if name is None:
        return None
    t, own = k[name], tensor(name)
    kind = k.choice(("number", "add", "previous", "column"))
    if kind == "previous" and t.size(0) > 1:
        body = (
            Step("getitem", (own, {"i": [1, 0]}), out=("before",)),
            Step("add", (tensor("before"), 1), out=("after",)),
            Step("setitem", (own, {"i": [1, 1]}, tensor("after"))),
        )
        return Step("loop", body=body, times=t.size(0) - 1)
    if kind == "column" and t.dim() > 1 and t.size(1):
        where: Json = {"tuple": [{"slice": [None, None, None]}, {"i": [1, 0]}]}
        return Step("loop", body=(Step("setitem", (own, where, {"i": [2, 1]})),), times=t.size(1))
    if kind == "add":
        return Step("loop", body=(Step("augment", (own, {"i": [1, 0]}, {"i": [1, 1]})),), times=t.size(0))
    return Step("loop", body=(Step("setitem", (own, {"i": [1, 0]}, {"i": [1, 1]})),), times=t.size(0))


def row(name: str, family: str, effect: str, fits: Fits, rest: Rest, **options: object) -> Op:
    """A row that writes its first argument; where CPU rejects the write, that error is the answer."""
    return Op(name, family, effect, into(name, fits, rest), writes=0, may_raise=True, fits=fits, **options)  # type: ignore[arg-type]


def arithmetic(name: str, rest: Rest = other, fits: Fits = number_like, effect: str = COMPUTE, **options: object) -> Op:
    """A pointwise row."""
    return row(name, "arithmetic", effect, fits, rest, pointwise=True, **options)


def addressed(name: str, rest: Rest, fits: Fits = any_dtype, effect: str = MOVE, **options: object) -> Op:
    """A row that writes where a mask or indices say."""
    return row(name, "indexed write", effect, fits, rest, **options)


ROWS = [
    arithmetic("add_", other_scaled, numeric, weight=4),
    arithmetic("sub_", other_scaled, numeric),
    arithmetic("mul_", fits=numeric, weight=2),
    arithmetic("div_", lambda k, t: ([k.choice((2, 4, 1))], {}), floating, LOSSY),
    arithmetic("neg_", nothing, lambda t: t.is_complex() or signed(t)),
    arithmetic("conj_physical_", nothing, torch.is_complex),
    arithmetic("abs_", nothing, signed),
    arithmetic("sign_", settled),
    arithmetic("floor_", settled, floating),
    arithmetic("trunc_", settled, floating),
    arithmetic("round_", settled, floating),
    arithmetic("pow_", lambda k, t: ([2], {})),
    arithmetic("sqrt_", nothing, floating, LOSSY),
    arithmetic("reciprocal_", nothing, floating, LOSSY),
    arithmetic("nan_to_num_", lambda k, t: ([7.0, 5.0, -5.0], {}), floating),
    arithmetic("square_", nothing),
    arithmetic("relu_", nothing),
    arithmetic("sigmoid_", nothing, floating, LOSSY),
    arithmetic("exp_", nothing, small_floats, LOSSY),
    arithmetic("clamp_", bounds),
    arithmetic(
        "addcmul_",
        lambda k, t: (
            [k.operand(t.size(), t.dtype, same=True) for _ in range(2)],
            {"value": 2} if k.chance(1, 3) else {},
        ),
    ),
    arithmetic(
        "addcdiv_",
        lambda k, t: ([k.operand(t.size(), t.dtype, same=True), {"tensor": [2.0], "dtype": str(t.dtype)[6:]}], {}),
        floating,
        LOSSY,
    ),
    arithmetic("lerp_", lambda k, t: ([k.operand(t.size(), t.dtype, same=True), 0.5], {}), floating, LOSSY),
    arithmetic("remainder_", divisor),
    arithmetic("fmod_", divisor),
    arithmetic("floor_divide_", divisor),
    arithmetic("bitwise_and_", fits=whole),
    arithmetic("bitwise_or_", fits=whole),
    arithmetic("bitwise_xor_", fits=whole),
    arithmetic("bitwise_not_", nothing, whole),
    arithmetic("logical_not_", settled, any_dtype),
    arithmetic("logical_and_", exact_other),
    arithmetic("logical_xor_", exact_other),
    arithmetic("eq_", exact_other),
    arithmetic("ne_", exact_other),
    arithmetic("lt_", exact_other),
    arithmetic("ge_", exact_other),
    arithmetic("clamp_min_", lambda k, t: ([k.integer(0, 3)], {})),
    arithmetic("clamp_max_", lambda k, t: ([k.integer(0, 3)], {})),
    row("copy_", "copy", MOVE, any_dtype, source, pointwise=True, weight=5),
    row("fill_", "copy", MOVE, any_dtype, lambda k, t: ([k.number(t.dtype)], {}), constant=True, weight=2),
    row("zero_", "copy", MOVE, any_dtype, nothing, constant=True, weight=2),
    row("setitem", "setitem", MOVE, any_dtype, set_basic, form=SETITEM, pointwise=True, weight=8),
    row(
        "augment",
        "setitem",
        COMPUTE,
        number_like,
        lambda k, t: ([draw_index(k, t), k.number(t.dtype)], {}),
        form=AUGMENT,
        weight=3,
    ),
    row("setitem.mask", "setitem", MOVE, has_dims(1), set_masked, form=SETITEM, weight=2),
    row("setitem.index", "setitem", MOVE, filled, set_indexed, form=SETITEM, weight=2),
    row("setitem.pairs", "setitem", MOVE, lambda t: t.dim() > 1 and t.numel() > 0, set_pairs, form=SETITEM),
    row("swap_rows_", "setitem", MOVE, filled, two_rows, form=DEFINED),
    addressed("masked_fill_", masked, weight=2),
    addressed("masked_scatter_", masked_source),
    addressed("index_fill_", index_fill, filled),
    addressed("index_copy_", index_source(True), filled),
    addressed("index_add_", index_source(False), filled_numbers, COMPUTE),
    addressed("index_reduce_", index_reduce, filled_numbers, COMPUTE),
    addressed("scatter_", scatter(False), filled_numbers),
    addressed("scatter_.reduce", scatter_reduced, filled_numbers, COMPUTE, call="scatter_"),
    addressed("scatter_reduce_", scatter_reduce, filled_numbers, COMPUTE),
    addressed("scatter_add_", scatter(True), filled_numbers, COMPUTE),
    addressed("index_put_", index_put, filled, weight=2),
    addressed("put_", put, filled),
    addressed(
        "fill_diagonal_",
        lambda k, t: ([k.number(t.dtype)], {"wrap": True} if t.size(0) > t.size(1) or k.chance(1, 2) else {}),
        matrix,
        weight=3,
    ),
    addressed("tril_", lambda k, t: ([k.integer(-1, 1)], {}), has_dims(2)),
    addressed("triu_", lambda k, t: ([k.integer(-1, 1)], {}), has_dims(2)),
    addressed("cumsum_", lambda k, t: ([k.dim(t)], {}), filled_numbers, COMPUTE),
    addressed("cumprod_", lambda k, t: ([k.dim(t)], {}), filled_numbers, COMPUTE),
    addressed("addmm_", product, lambda t: matrix(t) and number_like(t), COMPUTE),
]

LOOPS = [Op("loop", "setitem loop", MOVE, draw_loop, weight=3, results=0, fits=loopable)]
