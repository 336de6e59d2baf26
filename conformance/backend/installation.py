"""Check that tinygrad is installed.

Defines `require`, which the package calls before any other import. A missing package is then one sentence with its
remedy.
"""

from __future__ import annotations

import importlib.util


def require() -> None:
    """Raise ImportError, in one sentence, if tinygrad is not installed."""
    if importlib.util.find_spec("tinygrad") is None:
        raise ImportError(
            "the tiny device needs tinygrad, which is not installed: `pip install 'tinygrad>=0.14,<0.15' ziglang`",
            name="tinygrad",
        )


require()
