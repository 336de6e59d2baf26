"""What the device needs beside torch, asked for first, so that a missing package is one sentence with its remedy.

Defines `require`, which the package calls before it imports anything else.
"""

from __future__ import annotations

import importlib.util


def require() -> None:
    """Raises ImportError, in one sentence, where tinygrad is not installed."""
    if importlib.util.find_spec("tinygrad") is None:
        raise ImportError(
            "the tiny device needs tinygrad, which is not installed: `pip install 'tinygrad>=0.14,<0.15' ziglang`",
            name="tinygrad",
        )


require()
