"""Decompositions of a matrix whose order, sign or basis is free, judged by what defines them.

Defines `without_free_choices`. Eigenvalues have no order, eigenvectors and singular vectors no sign or phase, and the
vectors of equal values no basis. So another answer than torch CPU's is right if it satisfies the definition, for
example A V = V diag(w), as well as the dtype allows. The bounds are those of backward stable algorithms: the error is a
small multiple of the matrix's norm, its size and the dtype's precision (Golub and Van Loan, Matrix Computations).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from conformance.standalone.observation import Observation
from conformance.standalone.oracles import Mismatch

if TYPE_CHECKING:
    from conformance.engine.judge import Judged
    from conformance.engine.rules import Arguments

TIMES = 20.0
"""Factor of an error's bound beyond the size of the matrix and the precision of its dtype."""

Results = Sequence[Tensor]


def without_free_choices(
    subject: Judged, mismatches: list[Mismatch], want: Observation, got: Observation
) -> list[Mismatch]:
    """Return the mismatches without those of a decomposition that is right by its definition. Both sides answered.

    Gradients of the results follow from the choice, so they are left out too. OpInfo converts the results of some
    samples first, for example to the absolute values of the vectors: such gradients do not, and stay."""
    inputs = subject.names_of_inputs()
    results = [name for name in want.tensors if name.partition("[")[0] not in inputs]
    if not any(mismatch.oracle == "value" and mismatch.where in results for mismatch in mismatches):
        return mismatches
    arguments = subject.arguments()
    defined, sides = DEFINED.get(arguments.op), [[side.tensors.get(name) for name in results] for side in (want, got)]
    if defined is None or any(seen is None for side in sides for seen in side):
        return mismatches
    expected, actual = ([seen.value for seen in side if seen is not None] for side in sides)
    if not all((one.shape, one.dtype) == (two.shape, two.dtype) for one, two in zip(expected, actual, strict=True)):
        return mismatches
    if not all(bool(tensor.isfinite().all()) for tensor in (arguments.input, *actual)):
        return mismatches
    try:
        right = defined(arguments, expected, actual)
    except RuntimeError:  # a result of another rank than the definition's
        return mismatches
    if not right:
        return mismatches
    follows = subject.terms.process is None
    return [one for one in mismatches if not (_is_of(one, results) or (follows and one.where.startswith("grad of ")))]


def _is_of(mismatch: Mismatch, results: Sequence[str]) -> bool:
    """Whether a mismatch is about the content of one of these results."""
    return mismatch.oracle in ("value", "storage") and mismatch.where in results


def _wide(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.complex128)


def _small(error: Tensor, matrix: Tensor, dtype: torch.dtype) -> bool:
    """Whether the entries of an error are as small as a backward stable algorithm in this dtype leaves them."""
    rows, columns = matrix.shape[-2:]
    precision = TIMES * max(rows, columns, 1) * torch.finfo(dtype).eps
    bound = precision * torch.linalg.matrix_norm(matrix).clamp(min=torch.finfo(dtype).tiny)
    return bool((error.abs().flatten(-2).amax(-1) <= bound).all()) if error.numel() else True


def _orthonormal(vectors: Tensor, dtype: torch.dtype) -> bool:
    """Whether the columns have length 1 and are orthogonal."""
    unit = torch.eye(vectors.shape[-1], dtype=vectors.dtype)
    return _small(vectors.mH @ vectors - unit, unit, dtype)


def _spectrum(matrix: Tensor, want: Tensor, got: Tensor) -> bool:
    """Whether the eigenvalues are the same up to their order. Rounding moves those of a defective matrix by the root of
    the precision, so each must also make A - v I singular."""
    dtype = got.dtype
    a, expected, actual = _wide(matrix), _wide(want), _wide(got)
    unit = torch.eye(a.shape[-1], dtype=a.dtype)
    least = torch.linalg.svdvals(a.unsqueeze(-3) - actual[..., None, None] * unit)[..., -1:]
    if not _small(least, a, dtype):
        return False
    bound = torch.finfo(dtype).eps ** 0.5 * torch.linalg.matrix_norm(a).reshape(-1)
    rows = (values.reshape(-1, values.shape[-1]) for values in (expected, actual))
    for left, right, most in zip(*rows, bound, strict=True):
        rest = right.tolist()
        for value in left.tolist():
            nearest = min(rest, key=lambda other: abs(other - value))
            if abs(nearest - value) > float(most):
                return False
            rest.remove(nearest)
    return True


def _eigvals(arguments: Arguments, want: Results, got: Results) -> bool:
    return _spectrum(arguments.input, want[0], got[0])


def _eig(arguments: Arguments, want: Results, got: Results) -> bool:
    matrix, (values, vectors) = _wide(arguments.input), map(_wide, got)
    lengths = torch.linalg.vector_norm(vectors, dim=-2) - 1
    satisfied = _small(matrix @ vectors - vectors * values.unsqueeze(-2), matrix, got[0].dtype)
    unit = torch.eye(matrix.shape[-1], dtype=matrix.dtype)
    return satisfied and _small(lengths.unsqueeze(-1), unit, got[0].dtype) and _eigvals(arguments, want, got)


def _eigh(arguments: Arguments, want: Results, got: Results) -> bool:
    """The eigenvalues ascend, so they must be in place. Only one triangle of the matrix is read."""
    given, dtype = _wide(arguments.input), got[1].dtype
    half = arguments.kwargs.get("UPLO", arguments.args[0] if arguments.args else "L")
    triangle = given.tril(-1) if half == "L" else given.triu(1)
    diagonal = torch.diag_embed(given.diagonal(dim1=-2, dim2=-1).real).to(given.dtype)
    matrix, (values, vectors) = triangle + triangle.mH + diagonal, map(_wide, got)
    in_place = _small((values - _wide(want[0])).unsqueeze(-1), matrix, dtype)
    satisfied = _small(matrix @ vectors - vectors * values.unsqueeze(-2), matrix, dtype)
    return in_place and satisfied and _orthonormal(vectors, dtype)


def _svd(arguments: Arguments, want: Results, got: Results) -> bool:
    matrix, dtype = _wide(arguments.input), got[1].dtype
    left, values, right = map(_wide, got)
    right = right.mH if arguments.op == "svd" else right  # the older function returns V
    count = values.shape[-1]
    product = (left[..., :count] * values.unsqueeze(-2)) @ right[..., :count, :]
    in_place = _small((values - _wide(want[1])).unsqueeze(-1), matrix, dtype)
    orthonormal = _orthonormal(left, dtype) and _orthonormal(right.mH, dtype)
    return in_place and orthonormal and _small(product - matrix, matrix, dtype)


def _qr(arguments: Arguments, want: Results, got: Results) -> bool:
    matrix, dtype, (q, r) = _wide(arguments.input), got[1].dtype, map(_wide, got)
    if not _small(r.tril(-1), matrix, dtype):
        return False
    if not q.numel() and matrix.numel():  # the mode without Q
        return _small(r.mH @ r - matrix.mH @ matrix, matrix.mH @ matrix, dtype)
    return _small(q @ r - matrix, matrix, dtype) and _orthonormal(q, dtype)


DEFINED: dict[str, Callable[[Arguments, Results, Results], bool]] = {
    "linalg.eigvals": _eigvals,
    "linalg.eig": _eig,
    "linalg.eigh": _eigh,
    "linalg.svd": _svd,
    "svd": _svd,
    "linalg.qr": _qr,
    "qr": _qr,
}
"""By op, whether the second results are a decomposition of the op's input, given torch CPU's results."""
