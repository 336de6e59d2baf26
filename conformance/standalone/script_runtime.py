"""The comparison part of a script: the calls on torch CPU and on the target, judged by the harness's rules.

The judge (`oracles.differences`) takes a table of facts, so a script needs no judge of its own, only a table built from
its tensors. Scripts carry the source of this module and need torch only.

`inputs` is a function of a device that returns the inputs by name. `program` is a function of the inputs that returns
the results by name. `observe` defines the names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import Any

import torch

from conformance.standalone.modes import without_modes
from conformance.standalone.moving import whole_storage
from conformance.standalone.observation import LATER_JVP, Raised, metadata_of, names_of
from conformance.standalone.oracles import WHOLE, Facts, Mismatch, Tolerance, differences, plain_facts
from conformance.standalone.torch_compat import leave_forward_ad, raising_inner

device = "cpu"
"""The device of the calls, which may refer to it by this name."""

Places = dict[str, tuple[Any, ...]]
"""Placement of tensors by name: size, strides, offset, number of cells of the storage, and the storage's identity."""


def leaves_by_name(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the leaves of a tree by name."""
    return {name: leaf for key, part in tree.items() for name, leaf in names_of(part, key).items()}


def plain_call(program: Callable[..., Any], inputs: dict[str, Any]) -> Any:
    """Run a program on its inputs. A script may define another `call`, for example with gradients."""
    return program(*inputs.values())


def facts_of_run(
    inputs: Any, program: Any, on: str, call: Any, apart: Any, oracles: Collection[str], by_set: bool
) -> tuple[Facts, Places, Places]:
    """Return the facts of a run, the placement of its inputs before the run, and the placement of all its tensors after
    it."""
    global device
    device = on
    facts: Facts = {}
    tensors: dict[str, Any] = {}
    results: dict[str, Any] = {}
    before: Places = {}
    versions: dict[int, int] = {}
    leave_forward_ad()  # the script has already made the calls once
    try:
        tree = inputs(on)
        tensors = {name: leaf for name, leaf in leaves_by_name(apart(tree)).items() if isinstance(leaf, torch.Tensor)}
        versions = {id(leaf): leaf._version for leaf in tensors.values()}
        before = places(tensors, oracles)
        torch.manual_seed(1234)
        results = leaves_by_name(apart(call(program, tree)))
    except NameError:  # a fault of the script, which would be the same on both sides
        raise
    except Exception as error:
        facts["error", WHOLE] = Raised.of(error)
    stuck = leave_forward_ad()
    facts |= {} if stuck is None or facts else {("error", LATER_JVP): Raised.of(stuck)}
    after: Places = {}
    try:
        after = places({**results, **tensors}, oracles)
        owner: dict[int, str] = {}
        for name, leaf in {**results, **tensors}.items():
            if isinstance(leaf, torch.Tensor):
                first = owner.setdefault(after[name][-1], name)
                facts |= tensor_facts(leaf, name, first, versions.get(id(leaf)))
                if "value" in oracles:
                    facts["value", name] = on_host(leaf)
                if name in tensors and "storage" in oracles:
                    facts["storage", first] = on_host(whole_storage(leaf.detach(), by_set))
                if name in tensors and leaf.is_leaf and leaf.requires_grad:
                    grad = leaf.grad
                    if grad is not None and torch._is_zerotensor(grad):  # a zero tensor has no memory to read
                        grad = grad.clone()
                    facts["grad", f"grad of {name}"] = None if grad is None else on_host(grad)
            else:
                facts |= plain_facts(name, Raised.of(leaf) if isinstance(leaf, Exception) else leaf)
    except Exception as error:  # raised by a device that computes only when a value is read
        facts = {("error", WHOLE): facts.get(("error", WHOLE), Raised.of(error))}
    return facts, before, after


def tensor_facts(tensor: torch.Tensor, name: str, first: str, before: int | None) -> Facts:
    """Return the metadata facts of a tensor, without its values. `first` is the name of the first tensor on its
    storage, and `before` the version counter of an input at the start."""
    return {
        ("structure", name): "Tensor",
        **{(oracle, name): fact for oracle, fact in metadata_of(tensor).items()},
        ("alias", name): first,
        ("version", name): None if before is None else tensor._version - before,
        ("grad", name): tensor.requires_grad,
    }


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's values on the CPU; a meta tensor is returned as it is."""
    return (tensor if tensor.is_meta else tensor.detach().cpu()).resolve_conj().resolve_neg()


def places(tensors: dict[str, Any], oracles: Collection[str]) -> Places:
    """Return the placement of tensors. If the target does not expose storages, each tensor gets a separate storage of
    size 0."""
    result: Places = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor):
            count, storage = 0, id(tensor)
            if tensor.device.type == "cpu" or "alias" in oracles:
                whole = tensor.untyped_storage()
                count, storage = whole.nbytes() // tensor.element_size(), whole._cdata
            offset = int(tensor.storage_offset())
            result[name] = tuple(tensor.size()), tuple(tensor.stride()), offset, count, storage
    return result


def picture(rows: dict[str, Any], most: int = 48) -> str:
    """Draw the cells of a storage in a row. Below, one row per tensor shows which element lies in each cell: `.` for
    none, `0+3` for two elements. Only the first `most` cells appear."""
    table: dict[str, dict[int, str]] = {"cell": {}}
    for name, (size, strides, offset, *_) in rows.items():
        cells = torch.tensor(offset)
        for n, stride in zip(size, strides):
            cells = cells.unsqueeze(-1) + torch.arange(n) * stride
        line = table.setdefault(f"{name} {size}", {})
        for element, cell in enumerate(cells.flatten().tolist()):
            line[cell] = f"{line[cell]}+{element}" if cell in line else str(element)
    count = max([place[3] for place in rows.values()] + [cell + 1 for line in table.values() for cell in line])
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
    oracles: Collection[str],
    exact: Collection[str] = (),
    undefined: tuple[str, ...] = (),
    tolerance: Tolerance | None = None,
    transform: Callable[[Any], Any] | None = None,
    on: str = "cpu",
    mode: Any = None,
    call: Callable[[Any, dict[str, Any]], Any] = plain_call,
    apart: Callable[[Any], Any] = lambda tree: tree,
    by_set: bool = True,
    related: Any = None,
) -> list[Mismatch]:
    """Run `program` on the CPU, then on the device, transformed, or under the mode. Print the differences, and where
    the inputs and the differing tensors lie in their storages. Return the differences.

    A transformed program receives inputs `on` this device. `exact` names must agree to the bit. Mismatches that start
    with an entry of `undefined` are ignored. `tolerance` is OpInfo's. `call` runs the program. `apart` splits sparse
    tensors into their parts. `by_set` says that the device has `set_`. A `related`
    program runs on the device too, and its answers are expected in place of the CPU's.
    """
    if related is None:
        with without_modes():  # a device may have pushed modes permanently
            want, before, expected = facts_of_run(inputs, program, "cpu", call, apart, oracles, True)
    else:
        with mode or contextlib.nullcontext():
            run, at = (raising_inner(transform(related)), on) if transform else (related, device)
            want, before, expected = facts_of_run(inputs, run, at, call, apart, oracles, by_set)
    with mode or contextlib.nullcontext():
        run, at = (raising_inner(transform(program)), on) if transform else (program, device)
        got, _, actual = facts_of_run(inputs, run, at, call, apart, oracles, by_set)
    if related is not None:  # it may leave out results
        missing = {name for kind, name in got.keys() - want.keys() if kind == "structure"}
        got = {key: fact for key, fact in got.items() if key[1] not in missing}
    result = differences(want, got, oracles=oracles, exact=exact, tolerance=tolerance)
    result = [mismatch for mismatch in result if not f"{mismatch.oracle} of {mismatch.where}".startswith(undefined)]
    # If a side raised, its missing results are no second bug.
    result = [mismatch for mismatch in result if (mismatch.oracle, mismatch.where) == ("error", WHOLE)] or result
    for mismatch in result:
        print("".join(c if c.isprintable() else "?" for c in str(mismatch)))
    if not result:
        print(
            "no difference here: either it is mended, or what was found lies in what a script lacks, such as kernel "
            "counts, a planted fault and a target's own moves"
        )
    for storage in dict.fromkeys(place[-1] for place in before.values()):
        group = {name: place for name, place in before.items() if place[-1] == storage}
        print(f"where the elements of {', '.join(group)} lie in their storage before the first step:\n{picture(group)}")
    for name in dict.fromkeys(mismatch.where for mismatch in result):
        if name in expected and name in actual and expected[name][:-1] != actual[name][:-1]:
            rows = {"cpu": expected[name], "target": actual[name]}
            print(f"where the elements of {name} lie at the end:\n{picture(rows)}")
    return result
