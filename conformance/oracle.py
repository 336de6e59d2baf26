"""What 'equal' means: an `Observation` is all that can be seen of an outcome, `compare` lists where two of them differ.

The key insight: a value is the least of what a tensor promises. Its dtype, shape, strides, offset, contiguity, who else
sees its storage, and what lies in the storage *outside* the view can each be wrong while the value is right, so each is
an oracle with a name of its own. An observation lives on the host and holds no device tensor.

Tolerances are torch.testing's for the dtype, or the caller's (OpInfo's own); none is invented here. "Not implemented"
never equals anything. This module knows nothing of programs, OpInfo or reports.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.testing._comparison import default_tolerances

from conformance.target import (
    ORACLES,
    SIGNIFICANT_STRIDE,
    Target,
    copied_to_host,
    map_tensors,
    rebuild,
    storage_key,
    whole_storage,
)

MAX_SHOWN = 64
"""Values of at most this many elements are shown whole in a mismatch."""

BITS = "bits"
"""The rule of what was only moved, in a mismatch's detail."""


@dataclass(frozen=True)
class Mismatch:
    """One difference: which oracle saw it, on what (`out[0]`, `grad of a`), CPU's answer, the target's, and why."""

    oracle: str
    where: str
    expected: str
    actual: str
    detail: str = ""

    @property
    def by_bits(self) -> bool:
        """Whether it is one of values that had to agree to the bit."""
        return f"({BITS})" in self.detail

    def __str__(self) -> str:
        text = f"{self.oracle} of {self.where}: expected {self.expected}, got {self.actual}"
        return f"{text} ({self.detail})" if self.detail else text


@dataclass(frozen=True)
class Raised:
    """An exception as it was seen: its type's name, the names of the type's ancestors, and its text."""

    kind: str
    ancestors: tuple[str, ...]
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Raised:
        """What was seen of this exception."""
        return cls(type(error).__name__, tuple(base.__name__ for base in type(error).__mro__), str(error))

    @property
    def not_implemented(self) -> bool:
        """Whether it says that the operation is missing, which is a `RuntimeError` but no right answer."""
        return "NotImplementedError" in self.ancestors


@dataclass(frozen=True)
class Seen:
    """One tensor on the host. `value` is detached and has the original's geometry; `alias` is the first name seen with
    the same storage; `version` counts in-place writes since the start that was given to `observe`, if one was."""

    value: torch.Tensor
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int
    contiguity: str
    alias: str
    requires_grad: bool
    version: int | None

    @property
    def significant_stride(self) -> tuple[int, ...]:
        """The strides that say where an element lies."""
        return tuple(st for n, st in zip(self.shape, self.stride) if n != 1) if 0 not in self.shape else ()


@dataclass(frozen=True)
class Observation:
    """All that was seen: tensors and plain values by name, whole storages by their alias name, gradients by leaf."""

    tensors: Mapping[str, Seen] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)
    storages: Mapping[str, torch.Tensor] = field(default_factory=dict)
    grads: Mapping[str, torch.Tensor | None] = field(default_factory=dict)
    error: Raised | None = None
    kernels: int | None = None


def names_of(tree: Any, root: str) -> dict[str, Any]:
    """The tree's leaves by name: `out`, `out[0]`, `out['key'][1]`; an empty container is a leaf."""
    if isinstance(tree, (tuple, list)) and tree:
        parts: Any = enumerate(tree)
    elif isinstance(tree, dict) and tree:
        parts = tree.items()
    else:
        return {root: tree}
    return {name: leaf for key, part in parts for name, leaf in names_of(part, f"{root}[{key!r}]").items()}


def versions_of(tree: Any) -> dict[int, int]:
    """The version counters of the tree's tensors now, to be given to `observe` as the start of counting."""
    versions: dict[int, int] = {}
    map_tensors(tree, lambda tensor: versions.setdefault(id(tensor), tensor._version))
    return versions


def observe(
    outcome: Any = None,
    inputs: Any = (),
    *,
    target: Target | None = None,
    error: BaseException | None = None,
    kernels: int | None = None,
    versions: Mapping[int, int] | None = None,
) -> Observation:
    """Everything that can be seen of an outcome and of its inputs after it, fetched with one copy a storage.

    `outcome` and `inputs` are trees of tensors and plain values; a `Raised` among them is an error that was expected.
    As a dict at its root, a tree's keys are the names; otherwise the names start with `out` and `in`. Storages that an
    input lies in are kept whole, for the oracle 'storage'; what a fresh result holds outside its views is nobody's
    promise. Gradients are those of leaf inputs.
    `target` is None for torch CPU. Errors that the device raises while it computes are raised here.
    """
    named = {**_rooted(outcome, "out"), **_rooted(inputs, "in")} if error is None else _rooted(inputs, "in")
    tensors = {name: leaf for name, leaf in named.items() if isinstance(leaf, torch.Tensor)}
    others = {name: leaf for name, leaf in named.items() if not isinstance(leaf, torch.Tensor)}
    kept = {name for name, leaf in _rooted(inputs, "in").items() if isinstance(leaf, torch.Tensor)}
    leaves = {name: tensors[name] for name in kept if tensors[name].is_leaf and tensors[name].requires_grad}
    grads = {name: leaf.grad for name, leaf in sorted(leaves.items())}
    fetched, host_grads = target.fetch((tensors, grads)) if target else rebuild((tensors, grads), copied_to_host)
    return _seen(
        tensors,
        fetched,
        kept,
        others,
        host_grads,
        Raised.of(error) if error else None,
        kernels,
        versions,
        target.key if target else storage_key,
    )


def _rooted(tree: Any, root: str) -> dict[str, Any]:
    if isinstance(tree, dict):
        return {name: leaf for key, part in tree.items() for name, leaf in names_of(part, str(key)).items()}
    return names_of(tree, root) if not (isinstance(tree, (tuple, list)) and not tree) else {}


def _seen(
    tensors: dict[str, torch.Tensor],
    fetched: dict[str, torch.Tensor],
    kept: set[str],
    others: dict[str, Any],
    grads: dict[str, torch.Tensor | None],
    error: Raised | None,
    kernels: int | None,
    versions: Mapping[int, int] | None,
    key_of: Callable[[torch.Tensor], int],
) -> Observation:
    first: dict[int, str] = {}
    seen: dict[str, Seen] = {}
    storages: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        alias = first.setdefault(key_of(tensor), name)
        host = fetched[name].detach()
        seen[name] = Seen(
            host,
            tensor.dtype,
            tuple(tensor.shape),
            tuple(tensor.stride()),
            int(tensor.storage_offset()),
            contiguity(tensor),
            alias,
            tensor.requires_grad,
            tensor._version - versions.get(id(tensor), 0) if versions is not None else None,
        )
        if name in kept:
            storages.setdefault(alias, _flat(host))
    return Observation(seen, others, storages, grads, error, kernels)


def _flat(host: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return whole_storage(host)


def contiguity(tensor: torch.Tensor) -> str:
    """The layout flags that torch derives from the geometry, and the lazy conj and neg bits, as words."""
    flags = {
        "contiguous": tensor.is_contiguous(),
        "channels_last": tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last),
        "channels_last_3d": tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d),
        "conj": tensor.is_conj(),
        "neg": tensor.is_neg(),
    }
    return " ".join(word for word, holds in flags.items() if holds) or "strided"


def compare(
    expected: Observation,
    actual: Observation,
    *,
    oracles: Collection[str] = ORACLES,
    exact: Collection[str] | bool = (),
    rtol: float | None = None,
    atol: float | None = None,
) -> list[Mismatch]:
    """The differences between CPU's observation and the target's, in the order of `ORACLES`.

    `exact` names the tensors whose bits must agree (pure data movement), or is True for all; NaNs agree whatever their
    payload. `rtol` and `atol` replace torch.testing's tolerances for the dtype. `kernels` compares the target's count
    with CPU's: fusion must never be worse than eager.
    """
    found = [*_errors(expected.error, actual.error), *_structure(expected, actual)]
    loose = SIGNIFICANT_STRIDE in oracles
    oracles = {*oracles, "stride"} if loose else oracles
    for name in expected.tensors.keys() & actual.tensors.keys():
        want, got = expected.tensors[name], actual.tensors[name]
        bits = exact is True or (exact is not False and name in exact)
        metadata = [
            mismatch
            for oracle, attribute in METADATA
            if (mismatch := _attribute(oracle, name, getattr(want, attribute), getattr(got, attribute)))
            and not (oracle == "stride" and loose and want.significant_stride == got.significant_stride)
        ]
        found += metadata
        if want.dtype == got.dtype and want.shape == got.shape:
            found += _values("value", name, want.value, got.value, bits, rtol, atol)
    for alias in expected.storages.keys() & actual.storages.keys():
        bits = exact is True or (exact is not False and alias in exact)
        found += _values("storage", alias, expected.storages[alias], actual.storages[alias], bits, rtol, atol)
    found += _grads(expected.grads, actual.grads, rtol, atol)
    if expected.kernels is not None and actual.kernels is not None and actual.kernels > expected.kernels:
        found.append(
            Mismatch(
                "kernels",
                "the whole run",
                f"at most {expected.kernels}",
                str(actual.kernels),
                "more kernels than aten ops on CPU",
            )
        )
    order = {oracle: rank for rank, oracle in enumerate(ORACLES)}
    names = {name: rank for rank, name in enumerate((*expected.tensors, *expected.others))}
    return sorted(
        (mismatch for mismatch in found if mismatch.oracle in oracles),
        key=lambda mismatch: (order[mismatch.oracle], names.get(mismatch.where, len(names))),
    )


def arbitrate(
    found: list[Mismatch],
    expected: Observation,
    actual: Observation,
    truth: Observation,
    *,
    rtol: float | None = None,
    atol: float | None = None,
) -> list[Mismatch]:
    """The differences that are left of `found` once a run in wider floating dtypes, `truth`, has said who is right.

    None is left when all of `found` are floating values, gradients or storages in which the target agrees with the
    truth by the very rule and tolerances of `compare`, and CPU is no nearer to it in its worst element. Otherwise all
    are left, with both errors beside them. The truth is first rounded to the dtype that was asked for, so that a value
    which overflows there must overflow, and one that overflows only on the way must not.
    """
    judged = []
    for mismatch in found:
        if mismatch.oracle not in ARBITRATED:
            return found
        sides = [subject(mismatch, observation) for observation in (expected, actual, truth)]
        if any(side is None for side in sides):
            return found
        want, got, wide = (side.resolve_conj().resolve_neg() for side in sides if side is not None)
        if (
            (want.dtype, want.shape) != (got.dtype, got.shape)
            or want.shape != wide.shape
            or wide.dtype != widened(want.dtype)
            or wide.dtype == want.dtype
        ):
            return found
        right = wide.to(want.dtype)
        tolerances = zip((rtol, atol), _defaults(want.dtype), strict=True)
        allowed = [default if granted is None else granted for granted, default in tolerances]
        errors = [_error(right, side, *allowed) for side in (want, got)]
        agrees = not bool(differing(right, got, False, rtol, atol).any())
        note = "from the answer in float64 CPU is off by {:.2g} and the target by {:.2g} tolerances".format(*errors)
        judged.append(
            (
                agrees and errors[1] <= errors[0],
                replace(mismatch, detail="; ".join(filter(None, (mismatch.detail, note)))),
            )
        )
    return [] if all(right for right, _ in judged) else [mismatch for _, mismatch in judged]


ARBITRATED = frozenset({"value", "grad", "storage"})
"""The oracles whose differences may be a matter of rounding."""


def widened(dtype: torch.dtype) -> torch.dtype:
    """float64 for a floating dtype, complex128 for a complex one, any other as it is."""
    return torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else dtype


def subject(mismatch: Mismatch, observation: Observation) -> torch.Tensor | None:
    """The tensor that the mismatch is about; None for a plain value or a gradient that is not there."""
    if mismatch.oracle == "grad":
        return observation.grads.get(mismatch.where.removeprefix("grad of "))
    if mismatch.oracle == "storage":
        return observation.storages.get(mismatch.where)
    seen = observation.tensors.get(mismatch.where)
    return seen.value if seen is not None else None


def _error(right: torch.Tensor, got: torch.Tensor, rtol: float, atol: float) -> float:
    """How far the worst element is from the right one, in multiples of what the tolerances allow there."""
    right, got = right.to(widened(right.dtype)), got.to(widened(got.dtype))
    same = (right == got) | right.isnan() & got.isnan()
    ratio = ((got - right).abs() / (atol + rtol * right.abs())).nan_to_num(nan=torch.inf, posinf=torch.inf)
    return ratio.where(~same, 0).max().item() if ratio.numel() else 0.0


METADATA = (
    ("dtype", "dtype"),
    ("shape", "shape"),
    ("stride", "stride"),
    ("storage_offset", "storage_offset"),
    ("contiguity", "contiguity"),
    ("alias", "alias"),
    ("version", "version"),
    ("grad", "requires_grad"),
)
"""Oracle -> the attribute of `Seen` that must be equal."""


def _attribute(oracle: str, name: str, want: Any, got: Any) -> Mismatch | None:
    return None if want == got else Mismatch(oracle, name, str(want), str(got), DETAIL.get(oracle, ""))


DETAIL = {
    "alias": "the first tensor seen with the same storage",
    "version": "in-place writes counted",
    "grad": "requires_grad",
}


def _errors(want: Raised | None, got: Raised | None, where: str = "the whole run") -> list[Mismatch]:
    if got is not None and got.not_implemented:
        return [
            Mismatch(
                "error",
                where,
                want.kind if want else "no error",
                got.kind,
                f"not implemented is never a pass: {_line(got.text)}",
            )
        ]
    if (want.kind if want else None) == (got.kind if got else None):
        return []
    text = " | ".join(_line(raised.text) for raised in (want, got) if raised)
    return [Mismatch("error", where, want.kind if want else "no error", got.kind if got else "no error", text)]


def _line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _structure(expected: Observation, actual: Observation) -> list[Mismatch]:
    found = []
    for name in dict.fromkeys((*expected.tensors, *expected.others, *actual.tensors, *actual.others)):
        want, got = _kind(expected, name), _kind(actual, name)
        if "nothing" in (want, got) and (expected.error or actual.error):
            continue
        if "Raised" in (want, got):
            found += _errors(_raised(expected, name), _raised(actual, name), name)
        elif want != got:
            found.append(Mismatch("structure", name, want, got))
        elif name in expected.others and not _same_plain(expected.others[name], actual.others[name]):
            found.append(Mismatch("value", name, repr(expected.others[name]), repr(actual.others[name])))
    return found


def _raised(observation: Observation, name: str) -> Raised | None:
    answer = observation.others.get(name)
    return answer if isinstance(answer, Raised) else None


def _kind(observation: Observation, name: str) -> str:
    if name in observation.tensors:
        return "Tensor"
    return type(observation.others[name]).__name__ if name in observation.others else "nothing"


def _same_plain(want: Any, got: Any) -> bool:
    if isinstance(want, float | complex) and not isinstance(want, bool):
        dtype = torch.complex128 if isinstance(want, complex) else torch.float64
        one, two = (torch.tensor(number, dtype=dtype) for number in (want, got))
        return not differing(one, two, False, *default_tolerances(torch.float32)).any()
    return bool(want == got)


def differing(
    want: torch.Tensor, got: torch.Tensor, bits: bool, rtol: float | None, atol: float | None
) -> torch.Tensor:
    """A bool tensor, true where two CPU tensors of one shape and dtype disagree under the rules of `compare`."""
    if not (want.dtype.is_floating_point or want.dtype.is_complex):
        return want != got
    default = _defaults(want.dtype)
    if want.element_size() == 1 or want.dtype == torch.complex32:
        wide = torch.complex64 if want.dtype.is_complex else torch.float32
        want, got = want.to(wide), got.to(wide)
    if bits:
        return ~((want == got) & same_sign(want, got) | want.isnan() & got.isnan())
    rtol, atol = default[0] if rtol is None else rtol, default[1] if atol is None else atol
    return ~torch.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True)


def _defaults(dtype: torch.dtype) -> tuple[float, float]:
    """(rtol, atol) of torch.testing for a floating or complex dtype; a number of one byte has none and must agree."""
    return (0.0, 0.0) if dtype.itemsize == 1 else default_tolerances(dtype)


_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128)


def same_sign(want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """True where the sign bits agree, so that 0.0 and -0.0 differ; complex numbers part by part."""
    if want.is_complex():
        return same_sign(want.real, got.real) & same_sign(want.imag, got.imag)
    return want.signbit() == got.signbit()


def _values(
    oracle: str, name: str, want: torch.Tensor, got: torch.Tensor, bits: bool, rtol: float | None, atol: float | None
) -> list[Mismatch]:
    if want.shape != got.shape or want.dtype != got.dtype:
        return [
            Mismatch(
                oracle,
                name,
                f"{want.numel()} x {want.dtype}",
                f"{got.numel()} x {got.dtype}",
                "the storages differ in size",
            )
        ]
    want, got = (tensor.resolve_conj().resolve_neg() for tensor in (want, got))
    if not bits and want.dtype in _FLOATS and torch.equal(want, got):
        return []  # a hundred times faster than isclose, for what agrees to the bit anyway
    wrong = differing(want, got, bits, rtol, atol)
    count = int(wrong.sum())
    if not count:
        return []
    at = tuple(wrong.nonzero()[0].tolist())
    where = f"at {at}: expected {want[at].item()}, got {got[at].item()}" if at else "of a 0-dim tensor"
    rule = BITS if bits else "tolerance"
    return [
        Mismatch(
            oracle, name, show(want), show(got), f"{count} of {wrong.numel()} elements differ ({rule}), first {where}"
        )
    ]


def show(tensor: torch.Tensor) -> str:
    """The values as nested lists, or a summary when there are more than `MAX_SHOWN`."""
    if tensor.numel() <= MAX_SHOWN:
        return str(tensor.tolist())
    return f"{tensor.numel()} elements, first {tensor.reshape(-1)[:8].tolist()}"


def _grads(
    expected: Mapping[str, torch.Tensor | None],
    actual: Mapping[str, torch.Tensor | None],
    rtol: float | None,
    atol: float | None,
) -> list[Mismatch]:
    found = []
    for name in sorted(expected.keys() | actual.keys()):
        want, got = expected.get(name), actual.get(name)
        where = f"grad of {name}"
        if want is None or got is None:
            if (want is None) != (got is None):
                found.append(
                    Mismatch(
                        "grad", where, "none" if want is None else show(want), "none" if got is None else show(got)
                    )
                )
        elif (want.dtype, want.shape) != (got.dtype, got.shape):
            found.append(Mismatch("grad", where, *(f"{grad.dtype} {tuple(grad.shape)}" for grad in (want, got))))
        else:
            found += _values("grad", where, want, got, False, rtol, atol)
    return found
