"""Python objects that a compiled function reads or changes, and sizes as Python numbers."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch


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

    class Sum:
        """A descriptor."""

        factor = 2

        def __get__(self, of: Any, owner: Any = None) -> int:
            return of.value + self.factor

    class Slotted:
        __slots__ = ("value",)
        value: int

    class Falling:
        def __getattr__(self, name: str) -> int:
            return fallen[name]

    class Kept:
        scale, described = 2, Sum()

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
    kept, holder, enclosed, slotted, falling = Kept(), Holder(), 2, Slotted(), Falling()
    slotted.value, fallen = 2, {"absent": 2}

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
        "descriptor": (lambda: kept.described, setting(Sum, "factor", 3)),
        "slot": (lambda: slotted.value, setting(slotted, "value", 3)),
        "absent attribute": (lambda: falling.absent, exchanging(fallen, "absent", 3)),
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
