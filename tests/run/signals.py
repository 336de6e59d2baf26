"""Signals sent to a command one after another, each after the one before was answered."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path


def send(running: subprocess.Popen[str], numbers: Sequence[signal.Signals]) -> None:
    """The first signal, and when it was answered the others. Of signals that wait together Python answers the one of
    the lowest number first: on a busy machine SIGTERM, with SIGINT 0.1 s after it, ended with SIGINT's exit code."""
    running.send_signal(numbers[0])
    while running.poll() is None and not _ignores(running.pid):
        time.sleep(0.01)
    for number in numbers[1:]:
        running.send_signal(number)


def _ignores(pid: int) -> bool:
    """Whether a process ignores SIGINT and SIGTERM, as a command does once it has answered one of them."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = [int(line.split()[1], 16) for line in status if line.startswith("SigIgn")]
    return all(mask >> (number - 1) & 1 for mask in masks for number in (signal.SIGINT, signal.SIGTERM))
