"""Tables of the operators that the device computes itself, one module for each family.

Importing this package fills `registry.ROWS`. `KERNELS` holds the operators that need a complete kernel, because a value
function is not enough: random numbers, data-dependent shapes, results with special metadata. `NOT_DECOMPOSED` and
`REFERENCES` adjust the choice of torch's decompositions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import (
    activation,
    attention,
    bessel,
    complex,
    complex_products,
    conv,
    distance,
    division,
    dynamic,
    factory,
    fft,
    gamma,
    grid,
    grouped,
    indexing,
    linalg,
    loss,
    matmul,
    norm,
    optimizers,
    padding,
    pointwise,
    polynomial,
    pool,
    qr,
    ragged,
    random,
    reduction,
    rnn,
    scan,
    scatter,
    shape,
    sort,
    special,
    upsample,
)

KERNELS: dict[str, Callable[..., Any]] = {
    **complex.KERNELS,
    **complex_products.KERNELS,
    **dynamic.KERNELS,
    **factory.KERNELS,
    **grouped.KERNELS,
    **norm.KERNELS,
    **optimizers.KERNELS,
    **pointwise.KERNELS,
    **qr.KERNELS,
    **random.KERNELS,
    **rnn.KERNELS,
}

# Operators whose torch decomposition is not used: it calls back into the operator, or costs more than the fallback.
NOT_DECOMPOSED: frozenset[str] = frozenset({"alias", "copy", "detach", "lift", "lift_fresh"})

# Operators that use a decomposition from torch._refs although it is a reference: it does not recurse.
REFERENCES: frozenset[str] = frozenset()

__all__ = [
    "KERNELS",
    "NOT_DECOMPOSED",
    "REFERENCES",
    "activation",
    "attention",
    "bessel",
    "complex",
    "complex_products",
    "conv",
    "distance",
    "division",
    "dynamic",
    "factory",
    "fft",
    "gamma",
    "grid",
    "grouped",
    "indexing",
    "linalg",
    "loss",
    "matmul",
    "norm",
    "optimizers",
    "padding",
    "pointwise",
    "polynomial",
    "pool",
    "qr",
    "ragged",
    "random",
    "reduction",
    "rnn",
    "scan",
    "scatter",
    "shape",
    "sort",
    "special",
    "upsample",
]
