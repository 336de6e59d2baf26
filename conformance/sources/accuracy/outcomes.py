"""Reasons why a case has no measurement: it cannot be measured, or the target raises where torch CPU answers.

A case that cannot be measured is skipped with its reason. An error of the target alone is a finding.
"""

from __future__ import annotations

import re

from conformance.engine.executor import Execution
from conformance.record.footprint import SHORT
from conformance.record.measurements import NOT_COMPILED
from conformance.run.worker import memory_limit, step
from conformance.standalone.observation import Raised, out_of_memory

ALLOCATION = re.compile(r"alloc\w*[ _](fail|err)|out_of_(host_)?memory|out_of_resources", re.IGNORECASE)
"""Messages by which device runtimes report a failed allocation of host memory."""


class Unmeasured(Exception):
    """The case cannot be measured, and the target is not the cause; the text says why."""


class Raises(Exception):
    """The target raises where torch CPU answers. `oracle` is "error", or "memory" if the target ran out of memory."""

    def __init__(self, raised: Raised) -> None:
        text = f"{raised.kind}: {raised.text}"
        super().__init__(text)
        self.oracle = "memory" if out_of_memory(text) else "error"


def short_of_memory(needed: int) -> str:
    """Return the reason if this worker has less memory than `needed` bytes, else "". The reason is also noted as a
    step, since the call may kill the worker.
    """
    limit = memory_limit()
    if limit is None or needed <= limit * 2**30:
        return ""
    reason = f"{SHORT} {limit:g}: the call may take {needed / 2**30:.1f} GiB"
    step(reason)
    return reason


def _of_the_host(error: Raised) -> bool:
    """Whether the host may be out of memory, not an accelerator, whose errors are torch.OutOfMemoryError."""
    text = f"{error.kind}: {error.text}"
    return error.kind != "OutOfMemoryError" and (out_of_memory(text) or ALLOCATION.search(text) is not None)


def raised_on_cpu(error: Raised) -> Unmeasured:
    """Return the Unmeasured of a case for which torch CPU itself raises."""
    text = f"torch CPU raises {error.kind}: {(error.text.splitlines() or [''])[0][:150]}"
    return Unmeasured(f"{SHORT} {memory_limit() or 0:g}: {text}" if memory_limit() and out_of_memory(text) else text)


def require_answer(execution: Execution, short: str = "") -> None:
    """Raise Unmeasured or Raises if the target has no answer. `short` says why the worker may have too
    little memory.
    """
    if execution.unavailable:
        raise Unmeasured(f"the device has no way to make {execution.unavailable}")
    if execution.last.error is not None:
        error = execution.last.error
        raise Unmeasured(short) if short and _of_the_host(error) else Raises(error)
    if execution.capture is not None and execution.capture.extent == NOT_COMPILED:
        raise Unmeasured(f"{NOT_COMPILED}: the compiler received nothing")
