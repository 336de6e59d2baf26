"""The tasks of `conformance repros`: try one repro on a target and return its result.

The process that collects results refers to these functions by name without importing torch. Each function therefore
imports its dependencies itself.
"""

from __future__ import annotations

import importlib.util
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

from conformance.record.errors import TargetError
from conformance.record.names import REPRO
from conformance.record.result import Failure, Outcome, Result
from conformance.run.messages import COMPILING
from conformance.run.worker import environment, loaded, step, unit
from conformance.sources.repros.table import MODULES as PACKAGES
from conformance.sources.repros.table import ReproCase

if TYPE_CHECKING:
    from conformance.engine.target import Target
    from conformance.standalone.repro import Verdict

MODULES = (__name__, "conformance.sources.repros.script", "conformance.standalone.repro")
REPRO_STEP = "the repro"
"""Step of a worker that runs a repro, on torch CPU and on the target."""


def describe_environment(target: str) -> tuple[dict[str, str], None]:
    """Return the target's environment. Raises TargetError if it cannot be used."""
    return environment(target), None


def run(target: str, case: ReproCase) -> Result:
    """Return the result of a case: FAIL if the bug shows, PASS if not, and SKIP with the reason if the target cannot
    run it."""
    from conformance.sources.repros.script import standalone
    from conformance.standalone.repro import CANNOT_RUN, NOT_SHOWN

    under_test, begin = loaded(target), time.perf_counter()
    with unit(case.id), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step(REPRO_STEP, COMPILING if under_test.facts.compiles else REPRO_STEP)
        unfit = reason_not_to_run(case, under_test)
        verdict, expected, actual = (CANNOT_RUN, unfit, "") if unfit else judge(case, under_test)
    if verdict == CANNOT_RUN:
        result = case.result(Outcome.SKIP, skipped=1, reason=expected)
    elif verdict == NOT_SHOWN:
        result = case.result(Outcome.PASS, samples=1)
    else:
        script = standalone(case, under_test.script())
        failure = Failure(
            REPRO,
            case.op,
            case.right.replace("`", "") or expected,
            actual,
            case.repro.title,
            call=case.call,
            script=script,
        )
        result = case.result(Outcome.FAIL, samples=1, failed=1, failures=(failure,))
    return result.replace(seconds=time.perf_counter() - begin)


def judge(case: ReproCase, target: Target) -> Verdict:
    """Return the verdict about a case on a target that can run it."""
    from conformance.standalone.repro import judge_program, judge_script

    if case.prints:
        compiled, options = compiler_of(target)
        return judge_script(case.code, case.prints, compiled, options, device_of(target))
    import torch

    names: dict[str, Any] = {"torch": torch}
    exec(case.code, names)  # noqa: S102 - text of this package's own index
    transform = target.transform if target.facts.transforms_program else None
    return judge_program(names, case.repro.kind, transform, device_of(target), "value" in target.facts.oracles)


def reason_not_to_run(case: ReproCase, target: Target) -> str:
    """Return why a case says nothing about a target, or ""."""
    from conformance.standalone.repro import named_backend

    if case.needs:
        module = PACKAGES.get(case.needs, "")
        if not module or importlib.util.find_spec(module) is None:
            return f"needs {case.needs}"
    if not case.prints:
        return ""
    if case.repro.layer.startswith("tinygrad") and "tinygrad" not in sys.modules:
        return "a bug of tinygrad, which this target does not use"
    if compiler_of(target)[0]:
        return "" if named_backend(case.code) else "does not call torch.compile, so it does not reach the compiler"
    if target.facts.transforms_program or not target.facts.shows_values:
        return "a script of its own, which only a device or a compiler can run"
    return ""


def compiler_of(target: Target) -> tuple[str, dict[str, Any]]:
    """Return the backend of torch.compile that a target is, and its further arguments; "" for any other target."""
    if not target.facts.compiles:
        return "", {}
    dynamic = getattr(target, "dynamic", None)
    return str(getattr(target, "backend", "")), {} if dynamic is None else {"dynamic": dynamic}


def device_of(target: Target) -> str:
    """Return the device of a target's tensors."""
    device = target.facts.on if target.facts.transforms_program else str(target.device)
    if device == "meta":
        raise TargetError("target 'meta' has no values that a repro could show")
    return device
