"""The tables: which operators the device computes itself, one module a family.

Importing this package fills `registry.ROWS`. `KERNELS` holds the few operators whose results are no function of values
alone (random numbers, data-dependent shapes); `NOT_DECOMPOSED` and `REFERENCES` adjust which of torch's decompositions
are used.
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

# Operators whose decomposition is a reference (torch._refs) and is used all the same: it does not recurse.
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
