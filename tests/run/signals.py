"""Signals sent to a command in sequence, each after the command has handled the previous one."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path


def send(running: subprocess.Popen[str], numbers: Sequence[signal.Signals]) -> None:
    """Send the first signal, and the others after the command has handled it. Of several pending signals, Python
    handles the lowest number first. On a busy machine, SIGTERM followed by SIGINT after 0.1 s ended with SIGINT's exit
    code."""
    running.send_signal(numbers[0])
    while running.poll() is None and not ignores(running.pid, signal.SIGINT, signal.SIGTERM):
        time.sleep(0.01)
    for number in numbers[1:]:
        running.send_signal(number)


def ignores(pid: int, *numbers: signal.Signals) -> bool:
    """Whether a process ignores these signals, as a command ignores both after it has handled one of them."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = [int(line.split()[1], 16) for line in status if line.startswith("SigIgn")]
    return all(mask >> (number - 1) & 1 for mask in masks for number in numbers)
