"""`warn` and `warn_once`: a warning at the line that called torch, the place at which torch's own kernels warn.

The place matters: Python shows a warning once for each line, and an error filter may name a module.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch

_PACKAGE = str(Path(__file__).parents[1])


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost frame outside of this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


_once: set[str] = set()


def warn_once(text: str) -> None:
    """Warn in the first call only, unless `torch.set_warn_always` says otherwise."""
    if text not in _once or torch.is_warn_always_enabled():
        _once.add(text)
        warn(text)
