"""`conformance.check`: one call that judges an operator and raises the minimized script of what is wrong."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from conformance.record.errors import UsageError
from conformance.sources.operator.causes import also_in, by_cause
from conformance.sources.operator.examine import (
    BUDGET,
    SECONDS,
    Budget,
    CheckRequest,
    examination,
    nothing_compared,
    unfinished,
    verdicts,
)
from conformance.sources.operator.finding import SECONDS as LONGEST
from conformance.sources.operator.finding import minimized
from conformance.sources.operator.script import headline, script
from conformance.sources.operator.verdict import CheckVerdict, Verdicts, WrongOperator

SHRINKING = 3.0
"""The part of the budget, in seconds, that is kept for shrinking a difference."""


def check(
    operator: Callable[..., Any],
    *,
    like: Any = None,
    reference: Callable[..., Any] | None = None,
    inputs: Mapping[str, Any] | None = None,
    dtypes: Sequence[str] | None = None,
    checks: Iterable[str] | None = None,
    exclude: Mapping[str, str] | None = None,
    batch: Mapping[str, int] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    seconds: float = SECONDS,
    budget: float = BUDGET,
    strict: bool = False,
    device: str | None = None,
    seed: int = 0,
    forbid: Sequence[str] = (),
    reference_on_device: bool = False,
    ties: str | None = None,
    random: bool = False,
) -> Verdicts:
    """Judge an operator, and return the verdict of each check: a table as text, and JSON with versions by `as_json()`.

    `like` is a function of torch, or a name in op_db, whose samples and tolerances apply in these `dtypes`, by default
    those of `conformance opinfo`: float32, a half dtype, int64 and bool, of which the operator may refuse the others.
    `reference` is a function with the same arguments, and `inputs` describes them (see
    `conformance/sources/operator/inputs.py`). `checks` names the checks that run, or is "all"; `exclude` maps checks,
    or special values such as "specials_inf", to the reason why they do not run. `batch` maps arguments to the dimension
    that the check `batch` splits. `rtol` and `atol` replace the tolerances. `seconds` limits one call, and no call
    begins after `budget` seconds of processor time: a warning then names the checks with fewer inputs, and with
    `strict` an AssertionError does. `device` is the name of a device of torch, or the spec of a target: the operator
    gets its inputs there, and the reference runs on torch CPU, or there with `reference_on_device`. Another `seed`
    draws other described inputs. `forbid` names operators that the operator may not call, for example "aten::_softmax".
    `ties="any"` accepts an index of any of several equal elements. A `random` operator draws from a stream of its own:
    its results must have the distribution of the reference's, in place of its values. With `strict`, a check for which
    there was no input fails, too, unless it is excluded.

    Raises WrongOperator, an AssertionError, with the minimized script of the first difference, and UsageError for a
    request that cannot be carried out, or if no call was compared.
    """
    __tracebackhide__ = True  # pytest shows the line of the test, then the script
    near = sys._getframe(1).f_globals.get("__name__", "")
    request = CheckRequest(
        operator,
        like,
        reference,
        inputs,
        dtypes,
        tuple(checks) if isinstance(checks, Iterable) and not isinstance(checks, str) else checks,
        exclude or {},
        batch or {},
        rtol,
        atol,
        seconds,
        near,
        budget,
        strict,
        device,
        seed,
        forbid,
        reference_on_device,
        ties,
        random,
    )
    trial, left = examination(request), Budget.of(request)
    found = keep_time_to_shrink(verdicts(trial, request, left), left)
    result = Verdicts(found, trial.operator.name, trial.reference.name, trial.device, request.seed)
    if groups := by_cause(trial, [each.finding for each in reversed(result) if each.finding]):
        result = result.with_causes(groups)
        (first, *_), *others = groups.values()
        small = minimized(trial, first, min(max(left.left, 0.0) + SHRINKING, LONGEST))
        also = [f"# {said[0].upper()}{said[1:]}"] if (said := also_in(next(iter(groups.values())))) else []
        for group in others:
            also.append("# Also " + "; ".join(filter(None, (headline(group[0]), also_in(group)))))
        also += [f"# {said}"] if (said := unfinished(result, request, small)) else []
        raise WrongOperator("\n".join(["", script(trial, small, carry=False).rstrip("\n"), *also]), result)
    late = unfinished(result, request)
    if late and strict:
        raise WrongOperator(late, result)
    if empty := nothing_compared(result, request):
        raise UsageError(empty)
    if late:
        warnings.warn(late, stacklevel=2)
    return result


def keep_time_to_shrink(found: Iterable[CheckVerdict], left: Budget) -> Iterator[CheckVerdict]:
    """Yield verdicts. After the first difference, the later checks have less time: it is kept for a smaller script."""
    kept = False
    for verdict in found:
        if verdict.finding and not kept:
            left.left, kept = left.left - SHRINKING, True
        yield verdict
