"""Why a case has no measure: it cannot be measured, or the target raises where torch CPU answers.

The key insight: the first is nobody's fault and is skipped with its reason, the second is a finding.
"""

from __future__ import annotations

from conformance.core.executor import Execution
from conformance.core.observation import Raised, out_of_memory
from conformance.core.target import NOT_COMPILED


class Unmeasured(Exception):
    """The case cannot be measured; the text says why, which is not the target's fault."""


class Raises(Exception):
    """The target raises where torch CPU answers; `oracle` is "error", or "memory" where it ran out of that."""

    def __init__(self, raised: Raised) -> None:
        text = f"{raised.kind}: {raised.text}"
        super().__init__(text)
        self.oracle = "memory" if out_of_memory(text) else "error"


def require_answer(execution: Execution) -> None:
    """Raises Unmeasured, or Raises, where the target has not answered."""
    if execution.unavailable:
        raise Unmeasured(f"the device has no way to make {execution.unavailable}")
    if execution.last.error is not None:
        raise Raises(execution.last.error)
    if execution.capture is not None and execution.capture.extent == NOT_COMPILED:
        raise Unmeasured(f"{NOT_COMPILED}: the compiler was handed nothing")
