"""Changes of one argument of a call: another kind of argument, or one that torch mostly refuses.

Defines `Change`, `places` and `changed`. `arguments.toml` has the changes as Python expressions, so that a script can
show a change as one line. A change says nothing about torch: torch CPU accepts the changed call or refuses it, and the
judge compares the target with that. This module imports torch only where it evaluates an expression.
"""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.record.names import CHANGED

ONE_SAMPLE = "PYTORCH_OPINFO_SAMPLE_INPUT_INDEX"
"""Environment variable that makes OpInfo draw only one sample."""

Place = tuple[str | int, ...]
"""Path of an argument in a call's tree: `("args", 0)`, `("kwargs", "dim")`, `("input", 0)` for a list's first."""


@dataclass(frozen=True)
class Change:
    """A change of an argument: its variant, its name, and the new argument as a Python expression of `x`."""

    variant: str
    name: str
    to: str
    when: str = "True"
    host: bool = False
    """Whether a new tensor stays on the CPU."""

    def applied(self, x: Any) -> tuple[Any, bool]:
        """Return the new argument, and whether the change applies to `x`."""
        import math

        import numpy
        import torch

        from conformance.standalone.extreme_arguments import emptied, single, with_ends

        scope = {"x": x, "torch": torch, "numpy": numpy, "math": math}
        scope |= {"with_ends": with_ends, "emptied": emptied, "single": single}
        try:
            with torch.no_grad():
                if not eval(self.when, scope):  # noqa: S307 - an expression of arguments.toml
                    return None, False
                new = eval(self.to, scope)  # noqa: S307
        except Exception:  # the expression has no meaning for this argument
            return None, False
        if isinstance(new, torch.Tensor):
            new = new.detach().clone().requires_grad_(bool(getattr(x, "requires_grad", False)) and _has_gradient(new))
        return new, True


@dataclass(frozen=True)
class Origin:
    """The changed argument of a sample: the number of the unchanged sample, the place, the change, and the form of the
    call ("" for the function, or "inplace")."""

    sample: int
    place: Place
    change: Change
    form: str = ""

    def to_json(self) -> str:
        """Return the origin as JSON in one line, for a worker's note."""
        return json.dumps([self.sample, self.place, vars(self.change), self.form])

    @classmethod
    def from_json(cls, text: str) -> Origin:
        """Return the origin that `to_json` wrote."""
        sample, place, change, form = json.loads(text)
        return cls(sample, tuple(place), Change(**change), form)

    def __str__(self) -> str:
        """Return the change in words."""
        return f"{shown(self.place)} -> {self.change.name}" + f" ({self.form})" * bool(self.form)


def _has_gradient(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating_point or tensor.dtype.is_complex)


@functools.cache
def table() -> dict[str, dict[str, tuple[Change, ...]]]:
    """Return the changes by variant and by kind of the argument. Raises ValueError for an unknown variant."""
    data = tomllib.loads((Path(__file__).parent / "arguments.toml").read_text(encoding="utf-8"))
    if {*data} != {*CHANGED}:
        raise ValueError(f"arguments.toml has the variants {', '.join(data)}, and not {', '.join(CHANGED)}")
    return {
        variant: {kind: tuple(Change(variant, **row) for row in rows) for kind, rows in kinds.items()}
        for variant, kinds in data.items()
    }


def kind_of(value: Any) -> str:
    """Return the kind of an argument in the table; "" if no change applies to it."""
    import torch

    if isinstance(value, torch.Tensor):
        return "tensor" if value.layout is torch.strided and not value.is_meta else ""
    if isinstance(value, (list, tuple)):
        return "list"
    return {float: "float", int: "int", bool: "bool", str: "str", torch.dtype: "dtype"}.get(type(value), "")


def places(tree: dict[str, Any]) -> Iterator[tuple[Place, str, Any]]:
    """Yield the place, the kind and the value of each argument of a call; of a list, also of its first tensor."""
    flat: list[tuple[Place, Any]] = [(("input",), tree["input"])]
    flat += [(("args", at), value) for at, value in enumerate(tree["args"])]
    flat += [(("kwargs", key), value) for key, value in tree["kwargs"].items()]
    for place, value in flat:
        kind = kind_of(value)
        if kind:
            yield place, kind, value
        if kind == "list" and value and kind_of(value[0]) == "tensor":
            yield (*place, 0), "tensor", value[0]


def changed(tree: dict[str, Any], place: Place, change: Change) -> tuple[dict[str, Any], Any] | None:
    """Return the call with one argument changed, and the new argument; None if the change does not apply."""
    from conformance.standalone.sample_runtime import replaced

    x: Any = tree
    for part in place:
        x = x[part]
    new, applies = change.applied(x)
    return (replaced(tree, place, new), new) if applies else None


def written(place: Place) -> str:
    """Return the place as the text after `given` in a script: `['args'][0]`."""
    return "".join(f"[{part!r}]" for part in place)


def shown(place: Place) -> str:
    """Return the place in words: `args[0]`, `dim`, `input`."""
    if not place:
        return "all tensors"
    name, *rest = place[1:] if place[0] == "kwargs" else place
    return str(name) + written(tuple(rest))
