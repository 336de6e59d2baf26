"""What 'equal' means: `compare` lists where two observations differ, oracle by oracle.

The key insight: each thing that a tensor promises (value, dtype, shape, strides, offset, contiguity, aliasing, the
storage outside the view) can be wrong while the others are right, so each is an oracle with a name of its own.

Tolerances are torch.testing's for the dtype, or the caller's (OpInfo's own); none is invented here. "Not implemented"
never equals anything. This module knows nothing of programs, OpInfo or reports.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from conformance.core.names import ORACLES, SIGNIFICANT_STRIDE
from conformance.core.observation import Observation, Raised
from conformance.core.torch_compat import default_tolerances

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
    # Without values nothing is computed, and whether a result requires grad follows from how it is decomposed.
    attributes = METADATA if "value" in oracles else METADATA[:-1]
    for name in expected.tensors.keys() & actual.tensors.keys():
        want, got = expected.tensors[name], actual.tensors[name]
        bits = exact is True or (exact is not False and name in exact)
        metadata = [
            mismatch
            for oracle, attribute in attributes
            if (mismatch := _attribute(oracle, name, getattr(want, attribute), getattr(got, attribute)))
            and not (oracle == "stride" and loose and want.significant_stride == got.significant_stride)
            and not (oracle == "version" and None in (want.version, got.version))
        ]
        found += metadata
        if want.dtype == got.dtype and want.shape == got.shape:
            found += _values("value", name, want.value, got.value, bits, rtol, atol)
    for alias in expected.storages.keys() & actual.storages.keys():
        bits = exact is True or (exact is not False and alias in exact)
        found += _values("storage", alias, expected.storages[alias], actual.storages[alias], bits, rtol, atol)
    found += _grads(expected.grads, actual.grads, rtol, atol, "value" in oracles)
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
    values: bool,
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
        elif values:
            found += _values("grad", where, want, got, False, rtol, atol)
    return found
