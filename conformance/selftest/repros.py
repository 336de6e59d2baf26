"""The repro of a reported bug as a process: does the bug show on the installed torch?

Defines `script` and `runs`. A repro is code of the index (`record/upstream.toml`) that defines `program` and `inputs`.
Its answers on the target are compared with eager PyTorch (`standalone/repro.py`). `calls` in place of `inputs` makes
several calls of one compiled function, and `state` returns further facts. On torch CPU there is no other side:
`control` is the same call with arguments that torch computes rightly.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from conformance.engine.layers import Layered, part_named
from conformance.engine.loading import load_target
from conformance.record.upstream import Bug
from conformance.run.script_process import Forks, run_alone
from conformance.standalone.repro import NOT_SHOWN, Verdict, judge_program

LIMIT = 120.0
"""Time of a repro in seconds, with the import of torch and with compilation."""

ANY_KIND = "error"
"""The kind of bug for which an error of the target counts as a difference, as any other does."""

SHOWS, AGREES = 11, 10
"""Exit codes of a repro. A negative code is a crash, and any other is an error of the repro itself."""


def script(bug: Bug, part: str = "", fixed: bool = False) -> str:
    """Return the repro as a script. `part` names a part of the compiler that is switched off. `fixed` runs the side
    that must not show the bug in place of the target: eager PyTorch, or the control."""
    spec = "" if fixed else bug.targets[0]
    return (
        f"import torch\n{bug.repro.strip()}\n\nfrom conformance.selftest.repros import shows\n"
        f"raise SystemExit(shows(globals(), {spec!r}, {part!r}))\n"
    )


def runs(bug: Bug, part: str = "", fixed: bool = False, forks: Forks | None = None) -> bool:
    """Run the repro in a process and return whether the bug shows. Raises AssertionError with its last lines if it
    neither shows nor agrees."""
    ended = run_alone(script(bug, part, fixed), LIMIT, forks=forks)
    if ended.code is not None and ended.code < 0 and bug.property == "crash":
        return True
    assert ended.code in (SHOWS, AGREES), f"{bug.name} ends with {ended.code}: {' / '.join(ended.last)}"
    return ended.code == SHOWS


def shows(names: Mapping[str, Any], spec: str, part: str = "") -> int:
    """Compare both sides of a repro, given its names, and return the exit code. An empty `spec` is the fixed side."""
    warnings.simplefilter("ignore")
    if not spec:
        fixed = {**names, "program": names.get("control") or names["program"]}
        return _code(judge_program(fixed, ANY_KIND))
    target = load_target(spec)
    with ExitStack() as stack:
        if part:
            assert isinstance(target, Layered)  # the index names parts of compilers only
            stack.enter_context(target.switched_off(*part_named(part)))
        transform = target.transform if target.facts.transforms_program else None
        return _code(judge_program(names, ANY_KIND, transform, target.device, "value" in target.facts.oracles))


def _code(verdict: Verdict) -> int:
    return AGREES if verdict[0] == NOT_SHOWN else SHOWS
