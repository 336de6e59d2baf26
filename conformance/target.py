"""Former module of the target protocol: import from `conformance.core.target` and `conformance.core.names`."""

from __future__ import annotations

import warnings

from conformance.core.errors import TargetError
from conformance.core.loading import describe_target, load_target
from conformance.core.names import ORACLES, SIGNIFICANT_STRIDE
from conformance.core.target import KernelCount, Target

__all__ = ["ORACLES", "SIGNIFICANT_STRIDE", "KernelCount", "Target", "TargetError", "describe_target", "load_target"]

warnings.warn(
    "conformance.target has become conformance.core.target (names of oracles: conformance.core.names)",
    DeprecationWarning,
    stacklevel=2,
)
