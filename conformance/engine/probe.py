"""Trials of a device's features: `TRIALS`, one small experiment per feature; `declare/probed.py` holds the results.

No flag is reliable. `_has_storage`, `is_meta`, `_is_view`, `data_ptr()` and the identity of a storage are each wrong on
some published device. So every trial performs the operation with numbers and checks the outcome. A trial may raise,
hang or end its process, so a worker runs the trials one by one, each noted before it begins (`run/probe.py`). A probe
decides only how the harness makes inputs and which oracles it judges. An operator that fails is still a finding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.declare.probed import UNTRIED_DTYPES, ProbedFeature, TrialAnswer
from conformance.engine.target import Target
from conformance.record.error_text import text_of
from conformance.standalone.torch_compat import add_to_list, storage_id, version_of


class Differs(Exception):
    """A trial ran and its outcome differs from torch CPU's."""


def _same(actual: torch.Tensor, expected: list[Any], action: str = "read back") -> None:
    seen = actual.cpu().tolist()
    if seen != expected:
        raise Differs(f"{action}: {expected} became {seen}"[:200])


def _flat(target: Target, count: int = 6) -> torch.Tensor:
    with torch.no_grad():
        return target.upload([torch.arange(float(count))])[0]


def _moves(target: Target) -> None:
    _same(_flat(target), [0, 1, 2, 3, 4, 5])


def _copies(target: Target) -> None:
    there = _flat(target)
    there.copy_(torch.ones(6))
    _same(there, [1] * 6, "copy_ from the CPU")
    here = torch.zeros(6)
    here.copy_(there)
    _same(here, [1] * 6, "copy_ to the CPU")


def _item(target: Target) -> None:
    if _flat(target)[3].item() != 3:
        raise Differs(f"item() gives {_flat(target)[3].item()} for 3.0")


def _tolist(target: Target) -> None:
    if _flat(target, 3).tolist() != [0, 1, 2]:
        raise Differs(f"tolist() gives {_flat(target, 3).tolist()}")


def _written_through(target: Target, view: Callable[[torch.Tensor], torch.Tensor], index: list[int]) -> None:
    """Check that a write through the view lands in these cells of six, and in no other."""
    base = _flat(target)
    view(base).copy_(torch.full(tuple(view(torch.arange(6.0)).shape), 9.0))
    _same(base, [9 if cell in index else cell for cell in range(6)], "a write through it, seen in its base")


def _set(target: Target) -> None:
    flat = _flat(target)
    tensor = torch.empty(0, device=flat.device).set_(flat.untyped_storage(), 1, (2, 2), (1, 2))
    _same(tensor, [[1, 3], [2, 4]])
    _written_through(
        target,
        lambda base: torch.empty(0, device=base.device).set_(base.untyped_storage(), 1, (2, 2), (1, 2)),
        [1, 2, 3, 4],
    )


def _as_strided(target: Target) -> None:
    _same(_flat(target).as_strided((2, 2), (1, 2), 1), [[1, 3], [2, 4]])
    _same(_flat(target).as_strided((2, 2), (1, 1), 2), [[2, 3], [3, 4]], "cells that overlap, read")
    _written_through(target, lambda base: base.as_strided((2, 2), (1, 2), 1), [1, 2, 3, 4])
    _written_through(target, lambda base: base.as_strided((2, 1), (4, 1), 1), [1, 5])
    _written_through(target, lambda base: base.as_strided((2, 2), (3, 1), 1), [1, 2, 4, 5])


def _view_dtype(target: Target) -> None:
    _same(_flat(target, 2).view(torch.int32), [0, 1065353216])


def _data(target: Target) -> None:
    _written_through(target, lambda base: base[1:3].data, [1, 2])


VIEWS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], list[int]]] = {
    "[1:]": (lambda t: t[1:], [1, 2, 3, 4, 5]),
    "[::2]": (lambda t: t[::2], [0, 2, 4]),
    "[3]": (lambda t: t[3], [3]),
    "view": (lambda t: t.view(2, 3)[1], [3, 4, 5]),
    "t": (lambda t: t.view(2, 3).t()[:1], [0, 3]),
    "unsqueeze": (lambda t: t.unsqueeze(0)[0, :2], [0, 1]),
    "permute": (lambda t: t.view(1, 2, 3).permute(2, 0, 1)[1], [1, 4]),
}
"""Ordinary views, and the cells of six that a write through each view reaches."""


def _views(target: Target) -> None:
    wrong = []
    for name, (view, cells) in VIEWS.items():
        try:
            _written_through(target, view, cells)
        except Exception as error:
            wrong.append(f"{name} ({type(error).__name__})" if not isinstance(error, Differs) else name)
    if wrong:
        raise Differs(f"writes through {', '.join(wrong)} are not seen in the base")


def _unfold(target: Target) -> None:
    _same(_flat(target).unfold(0, 3, 2), [[0, 1, 2], [2, 3, 4]])
    _written_through(target, lambda base: base.unfold(0, 2, 3)[:, 1:], [1, 4])


def _storages(target: Target) -> None:
    flat, other = _flat(target), _flat(target)
    whole, part = flat.untyped_storage(), flat[2:].untyped_storage()
    if storage_id(whole) != storage_id(part):
        raise Differs("a view says that it has another storage than its base")
    if storage_id(whole) == storage_id(other.untyped_storage()):
        raise Differs("two tensors say that they have the same storage")
    if whole.nbytes() != 24:
        raise Differs(f"six float32 have a storage of {whole.nbytes()} bytes")
    with torch.no_grad():
        for view in (flat[2:4], flat.view(2, 3)[1]):
            _same(target.flatten(view), [0, 1, 2, 3, 4, 5], "a whole storage, read through a view")


def _data_ptr(target: Target) -> None:
    flat = _flat(target)
    apart = flat[2:].data_ptr() - flat.data_ptr()
    if apart != 8 or not flat.untyped_storage().data_ptr():
        raise Differs(f"two float32 are {apart} bytes apart, from address {flat.untyped_storage().data_ptr()}")


def _strides(target: Target) -> None:
    there, here = _flat(target).view(2, 3), torch.arange(6.0).view(2, 3)
    refused, shown = None, 0
    for view in (lambda t: t.t(), lambda t: t[1:, ::2], lambda t: t[:, 1:], lambda t: t[:, :1].expand(2, 3)):
        wanted = view(here)
        try:
            seen = view(there)
        except Exception as error:  # a refused view shows no strides
            refused = error
            continue
        shown += 1
        geometry, expected = (seen.stride(), seen.storage_offset()), (wanted.stride(), wanted.storage_offset())
        if geometry != expected:
            raise Differs(f"strides and offset of a view are {expected} on the CPU and {geometry} here")
    if refused is not None and not shown:
        raise refused


def _strides_kept(target: Target) -> None:
    for here in (torch.arange(6.0).view(2, 3).t(), torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)):
        there = here.to(target.device)
        if there.stride() != here.stride():
            raise Differs(f"strides {here.stride()} become {there.stride()}")


def _version(target: Target) -> None:
    flat = _flat(target)
    view, before = flat[1:], version_of(flat)
    view.add_(1)
    if (version_of(flat) - before, version_of(view) - before) != (1, 1):
        raise Differs(f"one write through a view counts {version_of(flat) - before} on its base")
    before = version_of(flat)
    add_to_list([flat], 1)  # torch counts no write of a list operator under a dispatch mode
    if version_of(flat) - before != 1:
        raise Differs(f"one write of a list operator counts {version_of(flat) - before}")


def _autograd(target: Target) -> None:
    leaf = _flat(target, 3).requires_grad_()
    (leaf * leaf).sum().backward()
    if leaf.grad is None:
        raise Differs("backward() leaves no gradient")
    _same(leaf.grad, [0, 2, 4], "the gradient of x * x")


def _generator(target: Target) -> None:
    torch.Generator(device=target.device).manual_seed(1)


def _random(target: Target) -> None:
    seen = []
    for device in ("cpu", target.device):
        torch.manual_seed(0)
        seen.append(torch.rand(4, device=device).cpu().tolist())
    if seen[0] != seen[1]:
        raise Differs(f"after manual_seed(0) rand gives {seen[0][0]:.4f} on the CPU and {seen[1][0]:.4f} here")


def _devices(target: Target) -> None:
    second = torch.device(target.device.type, 1)
    tensor = torch.ones(1).to(second)
    if tensor.device != second:
        raise Differs(f"a tensor sent to {second} says that it is on {tensor.device}")


TRIALS: dict[str, Callable[[Target], None]] = {
    "moves": _moves,
    "copy_": _copies,
    "item": _item,
    "tolist": _tolist,
    "views": _views,
    "unfold": _unfold,
    "data": _data,
    "view_dtype": _view_dtype,
    "as_strided": _as_strided,
    "set_": _set,
    "storages": _storages,
    "data_ptr": _data_ptr,
    "strides": _strides,
    "strides_kept": _strides_kept,
    "version": _version,
    "autograd": _autograd,
    "generator": _generator,
    "random": _random,
    "devices": _devices,
}
"""The trials in order of execution; later ones rely on features that earlier ones tested."""


def trial(target: Target, name: str) -> ProbedFeature:
    """Run one trial; a device's exception of any kind is an answer."""
    try:
        with target.entered():
            TRIALS[name](target)
    except Differs as error:
        return ProbedFeature(name, TrialAnswer.WRONG, text_of(error))
    except Exception as error:
        text = " ".join(text_of(error).split())
        return ProbedFeature(name, TrialAnswer.NO, f"{type(error).__name__}: {text}"[:200])
    return ProbedFeature(name, TrialAnswer.YES)


def dtype_survives(target: Target, name: str) -> bool:
    """Whether values of this dtype survive a round trip to the device unchanged."""
    dtype = getattr(torch, name, None)
    if dtype is None or name in UNTRIED_DTYPES:
        return False
    try:
        here = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1], dtype=torch.uint8).to(dtype)
        with target.entered():
            there = target.upload([here])[0]
            back = there.cpu()
        return (
            there.dtype is dtype and back.dtype is dtype and torch.equal(back.view(torch.uint8), here.view(torch.uint8))
        )
    except Exception:  # any error means no
        return False
