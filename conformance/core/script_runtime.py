"""What a standalone script carries: run the calls on torch CPU and on the target, print both answers and what differs.

The key insight: a script is judged by the very rules of the harness, so the rules (`differing`, `contiguity`) travel as
their own source, and this module adds only the walk over names and the printing. It needs torch only; `compare` also
returns what differs, so that a test can hold it against `oracles.compare`.

`inputs` is a function of a device that returns the inputs by name, `program` a function of them that returns the
results by name; names are those of `observe`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import Any

import torch

from conformance.core.moving import whole_storage
from conformance.core.observation import contiguity, names_of
from conformance.core.oracles import differing


class Facts(dict[tuple[str, str], Any]):
    """What is judged of one tensor, by oracle and label; and where it lies."""

    place: tuple[Any, ...] = ()


def leaves(tree: dict[str, Any]) -> dict[str, Any]:
    """The leaves of a tree by name."""
    return {name: leaf for key, part in tree.items() for name, leaf in names_of(part, key).items()}


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's values on the CPU."""
    return tensor.detach().cpu().resolve_conj().resolve_neg()


def observed(
    inputs: Any, program: Any, device: str, run: Any, apart: Any, transform: Any, unjudged: Collection[str]
) -> tuple[dict[str, Any], dict[Any, dict[str, Any]]]:
    """The judged facts of a run by name, and where its inputs lay in their storages before, storage by storage."""
    given: dict[str, torch.Tensor] = {}
    start: dict[Any, dict[str, Any]] = {}
    versions: dict[int, int] = {}
    results: dict[str, Any] = {}
    owner: dict[int, str] = {}
    error = None

    def storage(tensor: torch.Tensor) -> int:
        shown = device == "cpu" or not {"alias", "storage"} <= {*unjudged}
        return tensor.untyped_storage()._cdata if shown else id(tensor)

    try:
        made = inputs(device)
        given = {name: leaf for name, leaf in leaves(apart(made)).items() if isinstance(leaf, torch.Tensor)}
        for name, tensor in given.items():
            start.setdefault((storage(tensor), tensor.dtype), {})[name] = place(tensor, unjudged)
            versions[id(tensor)] = tensor._version
        torch.manual_seed(1234)
        results = leaves(apart(run(transform(program) if transform else program, made)))
    except NameError:  # a fault of the script, which would be the same on both sides
        raise
    except Exception as raised:
        error = raised
    seen = {"the whole run": error, **results, **given}
    try:
        for name, tensor in seen.items():
            if isinstance(tensor, torch.Tensor):
                first = owner.setdefault(storage(tensor), name)
                seen[name] = facts(tensor, name in given, first, versions.get(id(tensor), 0), unjudged)
    except Exception as raised:  # of a device that computes when it is looked at
        seen = {"the whole run": error or raised}
    return seen, start


def place(tensor: torch.Tensor, unjudged: Collection[str]) -> tuple[Any, ...]:
    """Size, strides, offset, and the cells of the storage; 0 where the target shows no storages."""
    shown = tensor.device.type == "cpu" or "alias" not in unjudged
    cells = tensor.untyped_storage().nbytes() // tensor.element_size() if shown else 0
    return tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset()), cells


def facts(tensor: torch.Tensor, given: bool, first: str, before: int, unjudged: Collection[str]) -> Facts:
    """What is judged of a tensor; of an input also its gradient and all of its storage."""
    grad = tensor.grad if tensor.is_leaf and tensor.requires_grad else None
    rows: list[tuple[str, str, Callable[[], Any]]] = [
        ("dtype", "dtype", lambda: tensor.dtype),
        ("shape", "size", lambda: tuple(tensor.size())),
        ("stride", "stride", lambda: tuple(tensor.stride())),
        ("storage_offset", "offset", lambda: int(tensor.storage_offset())),
        ("contiguity", "layout", lambda: contiguity(tensor)),
        ("alias", "lies in the storage of", lambda: first),
        ("value", "values", lambda: on_host(tensor)),
        ("version", "in-place writes", lambda: tensor._version - before),
    ]
    values = "value" not in unjudged
    if values:
        rows.append(("grad", "requires_grad", lambda: tensor.requires_grad))
    if given:
        rows.append(("storage", f"storage of {first}", lambda: on_host(whole_storage(tensor))))
        seen = on_host if values else lambda one: (one.dtype, tuple(one.shape))
        rows.append(("grad", "grad", lambda: None if grad is None else seen(grad)))
    found = Facts({(oracle, label): fact() for oracle, label, fact in rows if oracle not in unjudged})
    found.place = place(tensor, unjudged)
    return found


def plain_difference(want: Any, got: Any) -> str:
    """The oracle by which two answers differ that are no tensors; nothing where they agree."""
    if isinstance(want, Exception) or isinstance(got, Exception):
        same = type(want).__name__ == type(got).__name__ and not isinstance(got, NotImplementedError)
        return "" if same else "error"
    if type(want) is not type(got):
        return "structure"
    if isinstance(want, (float, complex)):
        one, two = (torch.tensor(number, dtype=torch.complex128) for number in (want, got))
        return "value" if differing(one, two, False, 1.3e-6, 1e-5).any() else ""
    return "" if want == got else "value"


def first_difference(want: Any, got: Any, *rule: Any) -> int | None:
    """The first element in which two facts differ, 0 for what has no elements; None where they agree."""
    if not (isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor)):
        return None if want is got or (not isinstance(want, torch.Tensor) and want == got) else 0
    if (want.dtype, want.shape) != (got.dtype, got.shape):
        return 0
    return next(iter(differing(want, got, *rule).flatten().nonzero().flatten().tolist()), None)


def significant(place: tuple[Any, ...]) -> list[int]:
    """The strides that say where an element lies."""
    return [st for n, st in zip(place[0], place[1]) if n != 1] if 0 not in place[0] else []


def text(value: Any, start: int | None = 0) -> str:
    """An answer in a line: of a large tensor eight elements, of an exception its type and first line."""
    if isinstance(value, Facts):
        return "a tensor"
    if isinstance(value, torch.Tensor) and value.numel() > 64:
        return f"{value.numel()} elements, from {start or 0} on {value.flatten()[start or 0 :][:8].tolist()}"
    if isinstance(value, Exception):
        value = f"{type(value).__name__}: {value}".partition("\n")[0]
    return "".join(c if c.isprintable() else "?" for c in str(getattr(value, "tolist", lambda: value)()))


def picture(rows: dict[str, Any], most: int = 48) -> str:
    """The cells of a storage in a row, and beneath for each tensor which of its elements lies where: `.` is none, `0+3`
    two of them. Only the first `most` cells are drawn."""
    table: dict[str, dict[int, str]] = {"cell": {}}
    for name, (size, stride, offset, _) in rows.items():
        cells = torch.tensor(offset)
        for n, st in zip(size, stride):
            cells = cells.unsqueeze(-1) + torch.arange(n) * st
        line = table.setdefault(f"{name} {size}", {})
        for element, cell in enumerate(cells.flatten().tolist()):
            line[cell] = f"{line[cell]}+{element}" if cell in line else str(element)
    count = max([cells for *_, cells in rows.values()] + [cell + 1 for line in table.values() for cell in line])
    table["cell"] = {cell: str(cell) for cell in range(count)}
    left = max(map(len, table))
    width = [max(len(line.get(cell, ".")) for line in table.values()) for cell in range(min(count, most))]
    lines = [
        f"    {name:<{left}}  " + " ".join(line.get(cell, ".").rjust(n) for cell, n in enumerate(width))
        for name, line in table.items()
    ]
    return "\n".join([*lines, *([f"    and {count - most} cells more"] if count > most else [])])


def compare(
    inputs: Callable[[str], dict[str, Any]],
    program: Callable[..., dict[str, Any]],
    device: str,
    *,
    unjudged: Collection[str] = (),
    exact: Collection[str] = (),
    undefined: tuple[str, ...] = (),
    rtol: float | None = None,
    atol: float | None = None,
    transform: Callable[[Any], Any] | None = None,
    mode: Any = None,
    run: Callable[[Any, dict[str, Any]], Any] = lambda program, made: program(*made.values()),
    apart: Callable[[Any], Any] = lambda tree: tree,
) -> list[tuple[str, str]]:
    """Run `program` on the CPU, then on the device or transformed; print all values, each answer that differs, and
    where the inputs and what differs lie in their storages. Returns the oracle and name of all that differs.

    `unjudged` are oracles; `exact` names must agree to the bit; facts that begin like one of `undefined` have no value;
    `rtol` and `atol` are OpInfo's; `run` makes the call, where the call is not all that is to be done; `apart` is for
    sparse tensors."""
    cpu, start = observed(inputs, program, "cpu", run, apart, None, unjudged)
    with mode or contextlib.nullcontext():
        target, _ = observed(inputs, program, "cpu" if transform else device, run, apart, transform, unjudged)
    device, mark = "target" if device == "cpu" else device, "   <-- DIFFERS"
    found: list[tuple[str, str]] = []

    def tell(oracle: str, name: str, label: str, left: Any, right: Any, at: int | None) -> None:
        wrong = at is not None and oracle not in unjudged
        if wrong or label in ("values", "answer"):
            print(f"{name} {label}: cpu {text(left, at)}")
        if wrong:
            print(f"  {device}: {text(right, at)}{mark}")
            found.append((oracle, name))

    want, got = (side["the whole run"] for side in (cpu, target))
    failed = "error" not in unjudged and plain_difference(want, got) != ""
    if want and got:
        print(f"cpu raises {text(want)}\n  {device} raises {text(got)}{mark * failed}")
    elif want or got:
        sides = ("cpu", device) if want else (device, "cpu")
        print("{} raises, and {} does not: {}{}".format(*sides, text(want or got), mark * failed))
    found += [("error", "the whole run")] * failed
    for name in [] if failed else [name for name in {**cpu, **target} if name != "the whole run"]:
        one, two = cpu.get(name, "nothing"), target.get(name, "nothing")
        if not isinstance(one, Facts) or not isinstance(two, Facts):
            oracle = plain_difference(one, two) if name in cpu and name in target else "structure"
            if not (want or got) or oracle != "structure":  # what was not reached says nothing
                tell(oracle, name, "answer", one, two, 0 if oracle else None)
            continue
        for oracle, label in [key for key in one if key in two]:
            left, right = one[oracle, label], two[oracle, label]
            first = label.removeprefix("storage of ")
            bits = first in exact or (label == "values" and name in exact)
            at = first_difference(left, right, bits, rtol, atol)
            if label == "values" and (left.dtype, left.shape) != (right.dtype, right.shape):
                at = None  # which is told by itself
            if label == "stride" and "insignificant stride" in unjudged:
                at = None if significant(one.place) == significant(two.place) else at
            if not (label if first != label else f"{label} of {name}").startswith(undefined):
                tell(oracle, name, label, left, right, at)
    for group in start.values():
        print(f"where the elements of {', '.join(group)} lie in their storage before the first step:\n{picture(group)}")
    began = {name: place for group in start.values() for name, place in group.items()}
    for name in dict.fromkeys(name for _, name in found):
        one, two = cpu.get(name), target.get(name)
        if isinstance(one, Facts) and isinstance(two, Facts):
            rows = {"cpu": one.place, device: two.place}
            if "stride" in unjudged or one.place == two.place:  # one row says it
                del rows[device]
            if {*rows.values()} != {began.get(name)}:
                print(f"where the elements of {name} lie after the last step:\n{picture(rows)}")
    if not found:
        print(
            f"no difference here: {device} answers as cpu does, so either it is mended, or what was found lies in "
            "what a script lacks, such as kernel counts, a planted fault and a target's own moves"
        )
    return found
