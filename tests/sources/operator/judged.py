"""Verdicts on operators, without the search for a small call with which `conformance.check` reports a difference.

    assert wrong_checks(torch.neg, reference=torch.abs, inputs={"x": "float32[3]"}, checks=["values"]) == {"values"}

That search takes up to 120 trials, each in two forks: more than all the rest of a test that does not read the script.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from conformance.sources.operator.examine import CheckRequest, examination, verdicts
from conformance.sources.operator.verdict import CheckVerdict


def judge(operator: Callable[..., Any], **request: Any) -> dict[str, CheckVerdict]:
    """The verdicts on an operator, by check."""
    asked = CheckRequest(operator, **request, near=operator.__module__)
    return {verdict.check: verdict for verdict in verdicts(examination(asked), asked)}


def wrong_checks(operator: Callable[..., Any], **request: Any) -> set[str]:
    """The checks that find a difference."""
    return {name for name, verdict in judge(operator, **request).items() if verdict.finding}


def print_in_new_process(code: str, words: Sequence[str]) -> str:
    """What code prints in a process of its own, with `words` in `sys.argv[1:]`. Checks that run autograd need one: it
    refuses to run in a fork of a process whose backward pass has used a device, as that of other tests does."""
    line = [sys.executable, "-W", "ignore", "-c", code, *words]
    done = subprocess.run(line, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()
