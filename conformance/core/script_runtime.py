"""What a standalone script carries: it runs its program on torch CPU and on the target and prints what differs.

The key insight: a script's own code is read by whoever gets the report, so it is code here as well, checked like any
other, and travels as its source. It needs torch only; what it compares is what the target is judged by, given as data.

It knows neither programs nor targets: a `run` is a function of a device that yields names and what they stand for, the
inputs first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch

from conformance.core.observation import contiguity

Run = Callable[[str], Iterable[tuple[str, Any]]]
"""From a device to the program's tensors and answers by name, the inputs first."""
Place = tuple[tuple[int, ...], tuple[int, ...], int, int]
"""Size, strides and offset, and the cells of the storage; 0 where the target shows no storages."""


def answers(
    run: Run, device: str, inputs: Collection[str], judged: Collection[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the run yields, by name: of a tensor the facts that are judged, of an error its text; and where the tensors
    lie in their storages, the inputs also before the first step."""
    seen: dict[str, Any] = {}
    places: dict[str, Any] = {}
    before: dict[int, int] = {}
    owner: dict[int, str] = {}
    try:
        for name, value in run(device):
            if name in inputs and name not in seen:
                before[id(value)] = value._version
                places[f"{name} at the start"] = place(value, judged)
            seen[name] = value
        for name in sorted(seen, key=lambda name: name in inputs):  # results first
            value = seen[name]
            if isinstance(value, torch.Tensor):
                places[name] = place(value, judged)
                seen[name] = dict(facts(value, name in inputs, judged))
                if "version" in judged:
                    seen[name]["in-place writes"] = value._version - before.get(id(value), 0)
                if not {"alias", "storage"}.isdisjoint(judged):
                    first = owner.setdefault(value.untyped_storage()._cdata, name)
                if "alias" in judged:
                    seen[name]["lies in the storage of"] = first
                if name in inputs and "storage" in judged:
                    seen[name][f"storage of {first}"] = on_host(whole_storage(value))
    except Exception as error:
        seen = {"error": f"{type(error).__name__}: {error}".partition("\n")[0]}
    return seen, places


def facts(tensor: torch.Tensor, is_input: bool, judged: Collection[str]) -> Iterator[tuple[str, Any]]:
    """What is judged of a tensor; of an input also its gradient."""
    if "dtype" in judged:
        yield "dtype", tensor.dtype
    if "shape" in judged:
        yield "size", tuple(tensor.size())
    if "stride" in judged:
        yield "stride", tensor.stride()
    if "significant_stride" in judged and 0 not in tensor.size():
        yield "stride", [st for n, st in zip(tensor.size(), tensor.stride()) if n != 1]
    if "storage_offset" in judged:
        yield "offset", tensor.storage_offset()
    if "contiguity" in judged:
        yield "layout", contiguity(tensor)
    if "grad" in judged:
        yield "requires_grad", tensor.requires_grad
    if "value" in judged:
        yield "values", on_host(tensor)
    if is_input and {"grad", "value"} <= {*judged} and tensor.is_leaf and tensor.grad is not None:
        yield "grad", on_host(tensor.grad)


def whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    """All cells of the storage that the tensor lies in."""
    cells = tensor.untyped_storage().nbytes() // tensor.element_size()
    whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return whole.set_(tensor.untyped_storage(), 0, (cells,), (1,))


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's values on the CPU."""
    return tensor.detach().cpu().resolve_conj().resolve_neg()


def place(tensor: torch.Tensor, judged: Collection[str]) -> Place:
    """Where the tensor lies in its storage: its size, its strides, its offset, and all cells, counted in elements."""
    shown = "alias" in judged or tensor.device.type == "cpu"
    cells = tensor.untyped_storage().nbytes() // tensor.element_size() if shown else 0
    return tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset()), cells


def same(one: Any, two: Any, bits: bool) -> bool:
    """Whether two answers agree: tensors within torch.testing's tolerances for their dtype, or to the bit; a Python
    number within those for float32, since most are read off such a tensor."""
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        if bits:
            return (one.dtype, repr(one.tolist())) == (two.dtype, repr(two.tolist()))
        try:
            torch.testing.assert_close(two, one, equal_nan=True)
        except AssertionError:
            return False
        return True
    if isinstance(one, (float, complex)) and type(one) is type(two):
        dtype = torch.complex128 if isinstance(one, complex) else torch.float64
        left, right = (torch.tensor(number, dtype=dtype) for number in (one, two))
        return bool(torch.isclose(right, left, rtol=1.3e-6, atol=1e-5, equal_nan=True))
    return repr(one) == repr(two)


def picture(rows: dict[str, Place], most: int = 48) -> str:
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
    run: Run,
    target_run: Run,
    device: str,
    inputs: Sequence[Sequence[str]],
    judged: Collection[str],
    exact: Collection[str] = (),
) -> None:
    """Run both, and print all values, every answer that differs, and where the inputs and what differs lie in their
    storages. `inputs` are grouped by storage; `exact` names what must agree to the bit."""
    names = [name for group in inputs for name in group]
    (cpu, places), (target, others) = answers(run, "cpu", names, judged), answers(target_run, device, names, judged)
    device = "target" if device == "cpu" else device
    assert "error" not in cpu, cpu["error"]
    differs: dict[str, None] = {}
    if "error" in target:
        print(f"{device} raises, and cpu does not: {target['error']}   <-- DIFFERS")
    for name in dict.fromkeys([*cpu, *target]) if "error" not in target else ():
        one, two = cpu.get(name, "nothing"), target.get(name, "nothing")
        if not isinstance(one, dict) or not isinstance(two, dict):
            one, two = {"answer": one}, {"answer": two}
        for key in dict.fromkeys([*one, *two]):
            if key.startswith("storage") and not (key in one and key in two):
                continue  # shared with another tensor there: that is a difference of its own, where it is judged
            bits = name in exact or key.removeprefix("storage of ") in exact
            agrees = same(one.get(key), two.get(key), bits)
            left, right = (x.tolist() if isinstance(x, torch.Tensor) else x for x in (one.get(key), two.get(key)))
            if not agrees or key in ("values", "answer"):
                print(f"{name} {key}: cpu {left}")
            if not agrees:
                print(f"  {device}: {right}   <-- DIFFERS")
                differs[name] = None
    for group in inputs:
        print(f"where the elements of {', '.join(group)} lie in their storage before the first step:")
        print(picture({name: places[f"{name} at the start"] for name in group}))
    for name in differs:
        rows = {where: at[name] for where, at in (("cpu", places), (device, others)) if name in at}
        if {"stride", "significant_stride"}.isdisjoint(judged) or len({*rows.values()}) == 1:  # one row says it
            rows = {where: at for where, at in rows.items() if where == "cpu"}
        if rows and {*rows.values()} != {places.get(f"{name} at the start")}:
            print(f"where the elements of {name} lie after the last step:")
            print(picture(rows))
    if not differs and "error" not in target:
        print(
            f"no difference here: {device} answers as cpu does, so either it is mended, or what was found lies in "
            "what a script lacks, such as kernel counts, a planted fault and a target's own moves"
        )


SOURCES = (contiguity, whole_storage, on_host, place, facts, answers, same, picture, compare)
"""What a script carries, in this order."""
