"""How long a process has waited for a processor, so that a busy machine does not make a slow call a hang.

Defines `waiting_time_of`.
"""

from __future__ import annotations

import contextlib
import os


def waiting_time_of(process: int) -> float:
    """Return the time for which the threads of a process were ready to run and had no processor, in seconds: the sum
    of all threads, as Linux counts it in schedstat; 0 where the system does not tell."""
    waited = 0
    with contextlib.suppress(OSError, ValueError, IndexError):  # a thread may end meanwhile
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/schedstat") as file:
                waited += int(file.read().split()[1])
    return waited / 1e9
