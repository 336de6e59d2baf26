"""Functions that steps call and torch does not have. Standalone scripts carry their source, so they need torch only."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import io
import threading
import types
import warnings
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch

from conformance.standalone.torch_compat import TorchDispatchMode


def empty_filled(size: list[int], stride: list[int], dtype: torch.dtype, device: str, start: int) -> torch.Tensor:
    """Return a tensor of `empty_strided` with its whole storage, gaps included, filled from `start` upwards."""
    result = torch.empty_strided(size, stride, dtype=dtype, device=device)
    cells = result.untyped_storage().nbytes() // result.element_size()
    values = torch.arange(start, start + cells).remainder(100).to(dtype)
    result.as_strided((cells,), (1,), 0).copy_(values)
    return result


def resize_filled_(tensor: torch.Tensor, size: list[int]) -> None:
    """Resize in place and fill the new part of the storage with zeros."""
    before = tensor.untyped_storage().nbytes() // tensor.element_size()
    tensor.resize_(size)
    cells = tensor.untyped_storage().nbytes() // tensor.element_size()
    if cells > before:
        torch.as_strided(tensor.detach(), (cells - before,), (1,), before).zero_()


def through_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of the tensor made by way of the host."""
    return tensor.detach().cpu().clone().to(tensor.device)


def host_view(host: torch.Tensor, start: int, kind: str) -> torch.Tensor:
    """Return a view of a host tensor: transposed, strided or expanded, from `start` of its last dimension."""
    start = min(start, host.size(-1) - 1)
    if kind == "t":
        return host[..., start:].transpose(0, -1)
    return host[..., start::2] if kind == "step" else host[..., start : start + 1].expand(*host.shape[:-1], 3)


def from_host_view(tensor: torch.Tensor, start: int, kind: str) -> torch.Tensor:
    """Return a copy on the device of a view on the host."""
    return host_view(tensor.detach().cpu().clone(), start, kind).to(tensor.device, copy=True)


def into_host_view(tensor: torch.Tensor, start: int, kind: str) -> torch.Tensor:
    """Write the tensor into a view on the host, and return the view's base on the device."""
    host = torch.zeros(2 * tensor.size(0) + start, *tensor.shape[1:], dtype=tensor.dtype)
    host[start::2].copy_(tensor.detach())
    return (host.t() if kind == "t" and host.dim() == 2 else host).to(tensor.device, copy=True)


def swap_rows_(tensor: torch.Tensor, i: int, j: int) -> None:
    """Swap two rows through a copy of one of them."""
    kept = tensor[i].clone()
    tensor[i] = tensor[j]
    tensor[j] = kept


def set_view_(tensor: torch.Tensor, source: torch.Tensor, offset: int, size: list[int], stride: list[int]) -> None:
    """Make `tensor` a view of the storage of `source`."""
    tensor.set_(source.untyped_storage(), offset, size, stride)


def same_base(tensor: torch.Tensor, other: torch.Tensor) -> list[bool]:
    """Return torch's answers on the relation of two tensors."""
    return [
        tensor.is_set_to(other),
        tensor._is_view(),
        tensor.is_leaf,
        tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() and tensor.numel() > 0,
    ]


def mode_values(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the values of `mode`; PyTorch does not define its indices."""
    return tensor.mode(dim)[0]


def of_many(tensor: torch.Tensor, name: str, count: int) -> torch.Tensor:
    """Return the method's result for `count` elements, which repeat the tensor's."""
    flat = tensor.flatten()
    many = flat.repeat(-(-count // flat.numel()))[:count]
    return getattr(many, name)(0) if name in ("cumsum", "sum", "amax") else getattr(many, name)()


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set the default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def default_device(device: Any) -> Iterator[None]:
    """Set the default device."""
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Enable deterministic algorithms. Torch then fills new memory with nan or the largest number."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextlib.contextmanager
def flush_denormal() -> Iterator[None]:
    """Make the CPU treat subnormal floats as zero, if it can."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the number of threads within an op."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def function_mode() -> Any:
    """Return a mode that intercepts torch functions and changes nothing."""

    class Passing(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    return Passing()


def dispatch_mode() -> Any:
    """Return a mode that intercepts aten ops and changes nothing."""

    class Passing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    return Passing()


def in_thread(call: Callable[[], Any]) -> Any:
    """Return the result of the call in a new thread."""
    results, raised = [], []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return results[0]


def in_vmap(call: Callable[[], Any]) -> Any:
    """Return the result of the call in a level of vmap in which no tensor has a batch dimension."""
    results = []

    def level(tensor: torch.Tensor) -> torch.Tensor:
        results.append(call())
        return tensor

    torch.vmap(level)(torch.zeros(1))
    return results[0]


def in_vjp(call: Callable[[], Any]) -> Any:
    """Return the result of the call in a level of grad in which no tensor is a primal."""
    results = []

    def level(tensor: torch.Tensor) -> Any:
        results.append(call())
        tensors = results[0] if isinstance(results[0], (tuple, list)) else (results[0],)
        return results[0] if all(isinstance(part, torch.Tensor) for part in tensors) else tensor

    result = torch.func.vjp(level, torch.zeros(()))[0]
    tensors = results[0] if isinstance(results[0], (tuple, list)) else (results[0],)
    return result if all(isinstance(part, torch.Tensor) for part in tensors) else results[0]


def global_state() -> list[Any]:
    """Return the global state, which no call may leave changed."""
    return [
        str(torch.get_default_dtype()),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_num_threads(),
        torch.is_warn_always_enabled(),
    ]


def new_tensors_lie(device: Any) -> list[bool]:
    """Make new tensors under several default devices, and return for each whether it lies there."""
    result = []
    for default in (device, "meta", device, "cpu"):
        with torch.device(default):
            tensors = [torch.full((2,), 1.5), torch.arange(3), torch.tensor([1.0]), torch.empty(2)]
        result += [tensor.device.type == torch.device(default).type for tensor in tensors]
    return result


def subnormals(tensor: torch.Tensor) -> torch.Tensor:
    """Scale the numbers to subnormal ones and back, after a call under `flush_denormal`."""
    with flush_denormal():
        tensor * 2.0**-130
    return tensor * 2.0**-130 * 2.0**100 * 2.0**30


def pickled(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor after saving and loading."""
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)


def pickled_together(tensor: torch.Tensor, other: torch.Tensor) -> Any:
    """Save and load two tensors together, or one and a view of it. Shared memory stays shared."""
    file = io.BytesIO()
    torch.save((tensor, other.detach() if other is tensor else other), file)
    file.seek(0)
    return torch.load(file)


def deepcopied(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's deep copy."""
    return copy.deepcopy(tensor)


def deepcopied_together(tensor: torch.Tensor, other: torch.Tensor) -> Any:
    """Return the deep copies of two tensors, or of one and a view of it. Shared memory stays shared."""
    return copy.deepcopy((tensor, other.detach() if other is tensor else other))


def collected(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of the tensor, after the collection of a reference cycle with a view and a result."""
    cycle: list[Any] = [tensor.detach().view_as(tensor), tensor.detach().clone()]
    cycle.append(cycle)
    del cycle
    gc.collect(1)  # the young generations
    return tensor.clone()


def seeded(kind: str, seed: int, device: Any) -> list[bool]:
    """Return whether a seed repeats its random numbers, another seed does not, and neither depends on earlier draws."""

    def draw(seed: int) -> list[Any]:
        torch.manual_seed(seed)
        if kind == "randperm":
            return torch.randperm(64, device=device).tolist()
        if kind == "randint":
            return torch.randint(0, 1000, (64,), device=device).tolist()
        if kind in ("rand", "randn"):
            return getattr(torch, kind)(64, device=device).tolist()
        if kind == "bernoulli":
            return torch.bernoulli(torch.full((256,), 0.5, device=device)).tolist()
        if kind == "dropout":
            return torch.nn.functional.dropout(torch.ones(256, device=device)).tolist()
        return getattr(torch.ones(64, device=device), kind)().tolist()

    with torch.random.fork_rng(devices=[]):
        first, second, other, again = draw(seed), draw(seed), draw(seed + 1), draw(seed)
    return [first == second, first != other, first == again]


def generated(seed: int, device: Any) -> list[bool]:
    """Return the same checks for the device's own generator, including saving and restoring its state."""
    first, second = torch.Generator(device=device), torch.Generator(device=device)

    def draw(generator: Any) -> list[float]:
        return torch.rand(64, generator=generator, device=device).tolist()

    drawn, repeated = draw(first.manual_seed(seed)), draw(second.manual_seed(seed))
    state, other = first.get_state(), draw(first)
    first.set_state(state)
    return [drawn == repeated, drawn != other, draw(first) == other, first.initial_seed() == seed]


def warned(kind: str, device: Any) -> list[str]:
    """Return the warnings of a call that must warn each time: their categories and first words."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ones = torch.ones(2, 2, 2, device=device)
            if kind == "real":
                ones.to(torch.complex64).to(torch.float32)
            elif kind == "resize":
                torch.add(ones, ones, out=torch.ones(1, device=device))
            elif kind == "freedom":
                ones[0, 0, :1].var()
            elif kind == "transpose":
                _ = ones.T
            elif kind == "mask":
                _ = ones[torch.ones(2, dtype=torch.uint8, device=device)]
            elif kind == "grad":
                _ = (ones.requires_grad_() * 2).grad
            elif kind == "loss":
                torch.nn.functional.mse_loss(ones, ones[:1])
            elif kind == "meshgrid":
                torch.meshgrid(ones[0, 0], ones[0, 0])
    finally:
        torch.set_warn_always(before)
    texts = (f"{warning.category.__name__}: {' '.join(str(warning.message).split()[:4])}" for warning in caught)
    return sorted(text for text in texts if not text.startswith("ResourceWarning"))


def random_zeros(kind: str, size: list[int], device: Any) -> torch.Tensor:
    """Return zeros with the dtype, shape and strides of a random operator's result."""
    if kind == "randperm":
        drawn = torch.randperm(size[0], device=device)
    elif kind == "randint":
        drawn = torch.randint(0, 9, size, device=device)
    elif kind in ("rand", "randn"):
        drawn = getattr(torch, kind)(size, device=device)
    elif kind == "rand_like":
        drawn = torch.rand_like(
            torch.ones(size, device=device).t() if len(size) < 3 else torch.ones(size, device=device)
        )
    elif kind == "bernoulli":
        drawn = torch.bernoulli(torch.full(size, 0.5, device=device))
    elif kind == "dropout":
        drawn = torch.nn.functional.dropout(torch.ones(size, device=device))
    else:
        drawn = getattr(torch.ones(size, device=device), kind)()
    return torch.zeros_like(drawn)


@torch.library.custom_op("conformance::add_to", mutates_args=("to",), schema="(Tensor(a!) to, Tensor other) -> ()")
def add_to(to: torch.Tensor, other: torch.Tensor) -> None:
    """Add in place: a custom operator that mutates its first argument."""
    to.add_(other)


@torch.library.custom_op("conformance::exchange", mutates_args=("pair",), schema="(Tensor(a!)[] pair) -> ()")
def exchange(pair: list[torch.Tensor]) -> None:
    """Exchange the values of two tensors: a custom operator that mutates both."""
    kept = pair[0].clone()
    pair[0].copy_(pair[1])
    pair[1].copy_(kept)


@torch.library.custom_op(
    "conformance::add_to_all", mutates_args=("every",), schema="(Tensor(a!)[] every, Tensor other) -> ()"
)
def add_to_all(every: list[torch.Tensor], other: torch.Tensor) -> None:
    """Add to each tensor of a list: a custom operator that mutates a list, and reads a tensor."""
    for tensor in every:
        tensor.add_(other)


def shares_memory(first: torch.Tensor, second: torch.Tensor) -> list[bool]:
    """Return whether two names are one tensor, and whether they have one storage."""
    return [first is second, first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()]


def derived(tensor: torch.Tensor, transform: str, calls: list[str]) -> Any:
    """Return a transform of torch.func of a small function at the tensor. `calls` are the function's operations."""

    def function(x: torch.Tensor) -> torch.Tensor:
        result = x
        for call in calls:
            if call in ("sum", "prod", "mean", "amax"):
                result = getattr(x, call)() + result
            elif call == "mm":
                result = result @ (x.sum() + x)
            elif call == "mul":
                result = result * x
            elif call in ("cumsum", "softmax"):
                result = getattr(result, call)(-1)
            else:
                result = getattr(result, call)()
        return result

    def scalar(x: torch.Tensor) -> torch.Tensor:
        return function(x).sum()

    if transform in ("grad", "hessian"):
        return getattr(torch.func, transform)(scalar)(tensor)
    if transform == "vmap(grad)":
        return torch.func.vmap(torch.func.grad(scalar))(tensor)
    if transform == "jvp":
        return torch.func.jvp(function, (tensor,), (torch.ones_like(tensor),))[1]
    if transform == "vjp":
        pulled = torch.func.vjp(function, tensor)
        return pulled[1](torch.ones_like(pulled[0]))[0]
    return getattr(torch.func, transform)(function)(tensor)


def transformed(name: str, mode: str, start: float, /, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Return a derivative of torch's function along a line through its floating-point operands, at `start` of the line.

    `mode` names a transform of `torch.func` for each order of the derivative, outermost first. "autograd" in place of a
    transform is plain autograd."""
    function: Any = functools.reduce(getattr, name.split("."), torch)

    def wave(like: torch.Tensor, phase: float) -> torch.Tensor:
        steps = torch.arange(like.numel(), dtype=torch.float64).reshape(like.shape)
        return torch.cos(steps * 2.3 + phase).to(like.dtype)

    def value(at: torch.Tensor) -> torch.Tensor:
        def moved(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return type(value)(moved(part) for part in value)
            floats = isinstance(value, torch.Tensor) and value.is_floating_point()
            return value.detach() + at.to(value.dtype) * wave(value, 0.5) if floats else value

        result = function(*map(moved, args), **kwargs)
        parts = result if isinstance(result, (tuple, list)) else (result,)
        sums = [(part * wave(part, 1.1)).sum() for part in parts if part.is_floating_point()]
        return torch.stack(sums).sum()

    def derivative(
        of: Callable[[torch.Tensor], torch.Tensor], transform: str
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        if transform == "jvp":
            return lambda at: torch.func.jvp(of, (at,), (torch.ones_like(at),))[1]
        if transform == "grad":
            return torch.func.grad(of)

        def by_autograd(at: torch.Tensor) -> torch.Tensor:
            at = at if at.requires_grad else at.detach().requires_grad_()
            result = of(at)
            if not result.requires_grad:  # constant along the line
                return torch.zeros_like(at)
            return torch.autograd.grad(result, at, create_graph=True, materialize_grads=True)[0]

        return by_autograd

    wanted: Callable[..., torch.Tensor] = value
    for transform in reversed(mode.rstrip(")").split("(")):
        wanted = derivative(wanted, transform)
    return wanted(torch.tensor(start, dtype=torch.float64)).detach()


def sized(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """Return a tensor that depends on the size of another one. `kind` names the Python code that reads the size."""
    size, x = tensor.size(), tensor.detach()
    if kind in ("Tensor", "FloatTensor", "LongTensor", "BoolTensor"):
        return torch.zeros_like(getattr(torch, kind)(size))
    if kind == "new":
        return torch.zeros_like(x.new(size))
    if kind == "numbers":
        return torch.Tensor([*size])
    if kind == "tensor":
        return torch.tensor(size)
    if kind == "stride":
        return torch.tensor(x.stride())
    if kind == "full":
        return torch.full(size, x.dim())
    if kind == "new_full":
        return x.new_full(size[:1], x.numel() % 7)
    if kind == "arange":
        return torch.arange(x.numel()).view(size)
    if kind == "rows":
        result = torch.zeros(size[1:])
        for at in range(size[0]):
            result = result + x[at] * (at + 1)
        return result
    if kind == "half":
        return x[: size[0] // 2].sum(0) + (1 if size[0] > 2 else 2)
    if kind == "product":
        return torch.ones(size.numel()).cumsum(0)
    if kind == "pieces":
        return torch.cat([part.sum(0, keepdim=True) for part in x.split(max(size[0] // 2, 1))])
    if kind == "unpacked":
        first, *others = x.shape
        return torch.zeros(first, *others) + len(others)
    if kind == "compared":
        return x + 1 if x.shape == torch.Size(list(size)) and isinstance(size, tuple) else x + 2
    if kind == "concatenated":
        return torch.zeros((*size, 2)) + len((*size[1:], 3))
    return x.reshape(-1, size[-1]).sum(0) / size[-1]


def recorders() -> tuple[dict[str, Callable[[int], None]], Callable[[], str]]:
    """Return functions that record a number in Python objects, by kind, and a function that reads and empties these
    objects."""
    seen: list[int] = []
    known: dict[str, Any] = {}
    left: list[Any] = []
    count = 0

    class Local:
        last, calls = 0, 0

        def note(self, number: int) -> None:
            seen.append(number)

        @staticmethod
        def note_static(number: int) -> None:
            seen.append(number)

        @classmethod
        def note_class(cls, number: int) -> None:
            cls.calls += number

        def __call__(self, number: int) -> None:
            seen.append(number)

        def __setitem__(self, key: str, number: int) -> None:
            known[key] = number

        def __enter__(self) -> None:
            seen.append(1)

        def __exit__(self, *error: Any) -> None:
            seen.append(2)

        @property
        def value(self) -> int:
            return self.last

        @value.setter
        def value(self, number: int) -> None:
            self.last = number
            seen.append(self.last)

    kept = Local()

    def appended(number: int) -> None:
        seen.append(number)

    def by_method(number: int) -> None:
        Local().note(number)

    def called(number: int) -> None:
        Local()(number)

    def counted(number: int) -> None:
        nonlocal count
        count += number

    def with_default(number: int, to: list[int] = seen) -> None:
        to.append(number)

    def generated(number: int) -> None:
        def numbers() -> Iterator[int]:
            for at in range(3):
                seen.append(at)
                yield at + number

        known["sum"] = sum(numbers())

    def caught(number: int) -> None:
        try:
            seen.append(number)
            raise ValueError(number)
        except ValueError:
            seen.append(-number)
        finally:
            seen.append(0)

    def inside(number: int) -> None:
        with kept:
            seen.append(number)

    def decorated(number: int) -> None:
        def wrapper(call: Callable[[int], None]) -> Callable[[int], None]:
            def wrapped(number: int) -> None:
                call(number)
                seen.append(0)

            return wrapped

        wrapper(with_default)(number)

    def rearranged(number: int) -> None:
        seen.extend([number, 3, 1])
        seen.sort()
        seen.insert(1, seen.pop())
        seen[:1] = [7, 8]
        seen.reverse()

    def kept_by_key(number: int) -> None:
        known.setdefault("list", []).append(number)
        known.update({"b": number, "a": 1})
        known["c"] = known.pop("b")

    def set_attribute(number: int) -> None:
        kept.last = number

    def set_property(number: int) -> None:
        kept.value = number

    def set_item(number: int) -> None:
        kept["item"] = number

    def left_generator(number: int) -> None:
        def numbers() -> Generator[int, None, int]:
            yield number
            return number + 1

        left.append(numbers())

    def left_view(number: int) -> None:
        left.append({"a": number, "b": 2}.items())

    def left_closure(number: int) -> None:
        left.append(lambda: number)

    def left_iterators(number: int) -> None:
        left.append(enumerate([number, 3]))
        left.append(map(abs, [number, -3]))
        left.append(range(number)[1:])

    def consumed(value: Any) -> str:
        kind, end = type(value).__name__, None
        if callable(value):
            return f"{kind} {value()}"
        iterator, parts = iter(value), []
        while True:
            try:
                parts.append(next(iterator))
            except StopIteration as stop:
                end = stop.value
                break
        return f"{kind} {parts} {end}"

    def looped(number: int) -> None:
        for at, value in enumerate(reversed([number, 2, 3])):
            seen.append(at * value)

    def read() -> str:
        nonlocal count
        result = f"{seen} {count} {kept.last} {Local.calls} {known} {[*map(consumed, left)]}"
        seen.clear()
        left.clear()
        known.clear()
        count, kept.last, Local.calls = 0, 0, 0
        return result

    calls: dict[str, Callable[[int], None]] = {
        "append": appended,
        "append by a method": by_method,
        "append by a kept object": kept.note,
        "append by a staticmethod": Local.note_static,
        "classmethod": Local.note_class,
        "append by a call": called,
        "nonlocal": counted,
        "default": with_default,
        "generator": generated,
        "exception": caught,
        "context": inside,
        "decorator": decorated,
        "rearranged": rearranged,
        "dict": kept_by_key,
        "attribute": set_attribute,
        "property": set_property,
        "item": set_item,
        "loop": looped,
        "generator that leaves": left_generator,
        "dict view that leaves": left_view,
        "closure that leaves": left_closure,
        "iterators that leave": left_iterators,
    }
    return calls, read


RECORDERS = recorders()


def note(tensor: torch.Tensor, kind: str, number: int) -> torch.Tensor:
    """Record a number in a Python object of this kind, and return a new tensor."""
    RECORDERS[0][kind](number)
    return tensor.detach() * 2


def noted() -> str:
    """Return all that is recorded, and empty the objects."""
    return RECORDERS[1]()


def objects() -> dict[str, tuple[Callable[[], Any], Callable[[], Callable[[], None]]]]:
    """Return the properties of Python objects that a compiled function depends on, by kind: a function that reads the
    property, and one that changes it and returns a function that restores it."""

    class Kept:
        scale = 2

        def __init__(self) -> None:
            self.value, self.parts, self.named = 2, [2, 3], {"key": 2}
            self.first, self.second = object(), object()
            self.now = self.first
            self.chosen, self.library, self.kind, self.sequence = max, library, Kept, [2]

        def method(self) -> int:
            return 2

        def with_default(self, number: int = 2) -> int:
            return number

        @property
        def computed(self) -> int:
            return self.value + 1

    class Other(Kept):
        def method(self) -> int:
            return 3

    class Layer(torch.nn.Module):
        def __init__(self, factor: int) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

    class Holder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Layer(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) + (1 if self.training else 2)

    def three(self: Kept) -> int:
        return 3

    library, other_library = types.ModuleType("library"), types.ModuleType("other_library")
    kept, holder, enclosed = Kept(), Holder(), 2

    def setting(of: Any, name: str, value: Any) -> Callable[[], Callable[[], None]]:
        def change() -> Callable[[], None]:
            before = getattr(of, name)
            setattr(of, name, value)
            return lambda: setattr(of, name, before)

        return change

    def exchanging(of: Any, key: Any, value: Any) -> Callable[[], Callable[[], None]]:
        def change() -> Callable[[], None]:
            before = of[key]
            of[key] = value

            def restore() -> None:
                of[key] = before

            return restore

        return change

    def longer() -> Callable[[], None]:
        kept.parts.append(4)
        return lambda: kept.parts.remove(4)

    def another_key() -> Callable[[], None]:
        kept.named["other"] = 3
        return lambda: kept.named.__delitem__("other")

    def another_closure() -> Callable[[], None]:
        nonlocal enclosed
        enclosed = 3

        def restore() -> None:
            nonlocal enclosed
            enclosed = 2

        return restore

    def shadowed() -> Callable[[], None]:
        holder.__dict__["layer"] = Layer(3)
        return lambda: holder.__dict__.__delitem__("layer")

    def shadowed_method() -> Callable[[], None]:
        kept.__dict__["method"] = lambda: 3
        return lambda: kept.__dict__.__delitem__("method")

    def of_layers() -> torch.nn.Module:
        return holder

    def called() -> int:
        return kept.method()

    def called_with_default() -> int:
        return kept.with_default()

    return {
        "attribute": (lambda: kept.value, setting(kept, "value", 3)),
        "class attribute": (lambda: kept.scale, setting(Kept, "scale", 3)),
        "identity": (lambda: 2 if kept.now is kept.first else 3, setting(kept, "now", kept.second)),
        "item": (lambda: kept.parts[0], exchanging(kept.parts, 0, 3)),
        "length": (lambda: len(kept.parts), longer),
        "key": (lambda: kept.named["key"], exchanging(kept.named, "key", 3)),
        "keys": (lambda: sum(kept.named.values()), another_key),
        "closure": (lambda: enclosed, another_closure),
        "method": (called, setting(Kept, "method", three)),
        "method of the object": (called, shadowed_method),
        "code of a method": (called, setting(Kept.method, "__code__", three.__code__)),
        "default": (called_with_default, setting(Kept.with_default, "__defaults__", (3,))),
        "property": (lambda: kept.computed, setting(kept, "value", 3)),
        "class": (called, setting(kept, "__class__", Other)),
        "another class": (lambda: 2 if isinstance(kept, kept.kind) else 3, setting(kept, "kind", Other)),
        "module": (lambda: 2 if kept.library is library else 3, setting(kept, "library", other_library)),
        "builtin": (lambda: kept.chosen(2, 3), setting(kept, "chosen", min)),
        "type": (lambda: 2 if isinstance(kept.sequence, list) else 3, setting(kept, "sequence", (2,))),
        "training": (of_layers, setting(holder, "training", False)),
        "attribute of a layer": (of_layers, setting(holder.layer, "factor", 3)),
        "layer": (of_layers, setting(holder, "layer", Layer(3))),
        "layer of the object": (of_layers, shadowed),
    }


OBJECTS = objects()


def reads_object(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """Return a tensor that depends on this property of a Python object."""
    value = OBJECTS[kind][0]()
    return value(tensor.detach()) if isinstance(value, torch.nn.Module) else tensor.detach() * value


@contextlib.contextmanager
def changed_object(kind: str) -> Iterator[None]:
    """Change this property of a Python object."""
    restore = OBJECTS[kind][1]()
    try:
        yield
    finally:
        restore()
