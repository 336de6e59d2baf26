"""An examination of an operator: the calls, the checks, and their verdicts.

Defines `CheckRequest`, `examination`, `verdicts`, `CheckVerdict`, `Judging` and `Budget`. `conformance.check`, the
command and the pytest fixture share them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import re
import reprlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from conformance.record.errors import UsageError, UserError
from conformance.record.names import DTYPES, nearest, with_article
from conformance.record.shortfall import FINDINGS, Shortfall, describe
from conformance.run.messages import Death, ExitReason
from conformance.sources.operator import inputs as descriptions
from conformance.sources.operator.answers import UnknownAnswer
from conformance.sources.operator.calls import EVERY_DTYPE, NEGATIVE, DrawnCall, entry_of, from_description, from_op_db
from conformance.sources.operator.checks import (
    EVERY,
    PROCEDURES,
    REFUSED,
    Examination,
    OperatorProcess,
    checked_call,
    refusal_of,
)
from conformance.sources.operator.devices import loaded, prepared_device
from conformance.sources.operator.forks import ForkDied, Send, forked, processor_time, processor_time_of
from conformance.sources.operator.subject import Operator, operator_of, with_parts
from conformance.sources.operator.table import (
    CHECKS,
    EXPLAIN,
    FATAL,
    NOT_SHOWN,
    SLOW_COMPILER,
    TIERS,
    usual,
    with_fatal,
)
from conformance.sources.operator.verdict import CheckVerdict, Difference, span_of_sizes
from conformance.standalone.derivative_checks import DETACHED
from conformance.standalone.moving import leaves
from conformance.standalone.operator_checks import PROCESS, NotJudged, writes_beyond
from conformance.standalone.oracles import Mismatch
from conformance.standalone.torch_compat import has_kernel
from conformance.standalone.transform_checks import NO_FAKE_KERNEL

SECONDS = 20.0
"""Limit on one call of a check; compiling included."""

SAMPLES = 40
"""Samples of op_db that are tried."""

BUDGET = 30.0
"""Processor time for all checks of an operator, in seconds. A loaded machine needs more of a clock's time, but the same
inputs are compared."""

PATIENCE = 25
"""Limit on the judging process, in multiples of the limit on a call: it waits for the operator, which may take longer
by a clock than by its processor time."""

NO_ACCESS = re.compile("SIGSEGV|SIGBUS")
"""Signals of an access to memory that a process may not use."""

SWITCHES = ("strict", "reference_on_device", "random")
"""Arguments of a request that are True or False."""

KINDS: Mapping[str, Any] = {
    "batch": Mapping,
    "checks": (list, tuple),
    "forbid": (list, tuple),
    "seed": int,
    "ties": str,
    **dict.fromkeys(("rtol", "atol", "budget", "seconds"), (int, float)),
}
"""Types of arguments of which not every value is right: of one of them, a sentence says that the value is wrong."""

INCOMPARABLE = frozenset({"structure", "dtype", "shape"})
"""Checks of facts without which the values of two results cannot be compared."""

NO_SIGN = "it reads the memory of negative views without their sign: pass it x.resolve_neg()"
"""Reason of a function by address, unless the user asks for the check `negative`. For an operator of `torch.library`,
torch resolves such views before it calls the kernel."""

OVER, NO_MEMORY = "the time was over", "the operator needs more memory than there is"
"""Reasons of a call that did not begin. Memory that a call fills takes seconds, and the next call fills it again."""


@dataclass(frozen=True)
class CheckRequest:
    """A user's request: the operator, its reference, the inputs, and the checks. `exclude` maps checks to the reason
    why they do not run. `seconds` limits a call. After `budget` seconds of processor time no call begins. With
    `strict`, a check with fewer inputs than planned fails. `device` names a target or a device, and
    `forbid` operators that may not be called. The `seed` is that of the described inputs. With `reference_on_device`,
    the reference runs on the device, too. `ties` is "any" if an index of another equal element is right, and `random`
    says that the operator draws its own random numbers."""

    operator: Callable[..., Any]
    like: Any = None
    reference: Callable[..., Any] | None = None
    inputs: Mapping[str, Any] | None = None
    dtypes: Sequence[str] | None = None
    checks: Collection[str] | None = None
    exclude: Mapping[str, str] = field(default_factory=dict)
    batch: Mapping[str, int] = field(default_factory=dict)
    rtol: float | None = None
    atol: float | None = None
    seconds: float = SECONDS
    near: str = ""
    budget: float = BUDGET
    strict: bool = False
    device: str | None = None
    seed: int = 0
    forbid: Collection[str] = ()
    reference_on_device: bool = False
    ties: str | None = None
    random: bool = False

    def __post_init__(self) -> None:
        """Raise UsageError for an argument of another type."""
        names = self.checks is None or isinstance(self.checks, Collection)
        for name, holds, form in (
            ("reference", self.reference is None or callable(self.reference), "give a function"),
            ("inputs", self.inputs is None or isinstance(self.inputs, Mapping), "describe them, {'x': 'float32[n]'}"),
            ("exclude", isinstance(self.exclude, Mapping), "map each check to a reason, {'vmap': 'why'}"),
            (
                "batch",
                isinstance(self.batch, Mapping) and all(type(dim) is int and dim >= 0 for dim in self.batch.values()),
                "map arguments to dimensions, {'x': 0}",
            ),
            ("checks", names and all(isinstance(one, str) for one in self.checks or ()), "name them, ['values']"),
            ("device", self.device is None or isinstance(self.device, str), "name it, 'tiny' or 'cuda'"),
            ("seed", type(self.seed) is int and self.seed >= 0, "give a whole number, 0 or more"),
            ("forbid", is_list(self.forbid) and all(isinstance(one, str) for one in self.forbid), "name operators"),
            ("dtypes", self.dtypes is None or is_list(self.dtypes), "name them, ['float32']"),
            ("rtol", is_limit(self.rtol) or self.rtol is None, "give a number, 0 or more"),
            ("atol", is_limit(self.atol) or self.atol is None, "give a number, 0 or more"),
            ("budget", is_limit(self.budget), "give seconds, 0 or more"),
            ("seconds", is_limit(self.seconds) and self.seconds > 0, "give seconds, more than 0"),
            *((name, isinstance(getattr(self, name), bool), "give True or False") for name in SWITCHES),
            ("ties", self.ties in (None, "any"), "give 'any' if each of several equal elements is right"),
        ):
            if not holds:
                value = getattr(self, name)
                fits = name in KINDS and isinstance(value, KINDS[name]) and not isinstance(value, bool)
                kind = "" if fits else f" is {with_article(type(value).__name__)}"
                raise UsageError(f"{name}={reprlib.repr(value)}{kind}: {form}")
        for name, value, form in (
            ("checks", self.checks, "leave the argument out for the usual checks"),
            ("dtypes", self.dtypes, "leave the argument out for the usual ones"),
            ("device", self.device, "leave the argument out for torch CPU"),
        ):
            if value is not None and not value:
                raise UsageError(f"{name}={value!r} names none: {form}")
        for dtype in self.dtypes if self.dtypes is not None and [*self.dtypes] != [EVERY_DTYPE] else ():
            if dtype not in DTYPES:
                known = nearest(str(dtype).removeprefix("torch."), DTYPES) or "; write for example 'float32'"
                raise UsageError(f"dtypes={reprlib.repr(self.dtypes)}: {dtype!r} is no name of a dtype{known}")

    def chosen(self) -> list[str]:
        """Return the names of the checks that run. Raises UsageError for an unknown name, and for an exclusion without
        a reason."""
        names = self.asked()
        for name in map(str, (*names, *self.exclude)):
            if name not in CHECKS and not (name in TIERS and name in self.exclude):
                known = nearest(name, CHECKS) or f"; choose from {', '.join(CHECKS)}"
                raise UsageError(f"unknown check {name!r}{known}")
        for name, reason in self.exclude.items():
            if not isinstance(reason, str) or not reason.strip():
                raise UsageError(f"the check {name!r} is excluded without a reason: exclude={{{name!r}: 'why'}}")
        return with_fatal(names)

    def asked(self) -> list[str]:
        """Return the names of the checks that the user names, or the usual ones: those that run without what
        `with_fatal` adds."""
        named = [self.checks] if isinstance(self.checks, str) else [*(self.checks or ())]
        return [*CHECKS] if named == ["all"] else named or usual(self.batch, self.forbid)


def is_limit(value: Any) -> bool:
    """Whether a value is a number that is not negative."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def is_list(value: Any) -> bool:
    """Whether a value is a sequence and no text."""
    return isinstance(value, Sequence) and not isinstance(value, str)


@dataclass
class Budget:
    """The processor time in seconds that is left for calls, and the procedures that wait for their share of it. Time
    that a procedure does not use goes to the next ones. `over` is the reason of calls that do not begin."""

    left: float
    waiting: list[str]
    over: str = OVER

    @classmethod
    def of(cls, request: CheckRequest) -> Budget:
        """Return the budget of a request."""
        return cls(request.budget, [*_procedures(request)])

    def share(self, name: str) -> float:
        """Return the share of a procedure, which waits no longer."""
        whole = sum(PROCEDURES[each].weight for each in {*self.waiting, name})
        self.waiting = [each for each in self.waiting if each != name]
        return self.left * PROCEDURES[name].weight / whole


def examination(request: CheckRequest) -> Examination:
    """Make the calls. Raises UsageError for a request that contradicts itself."""
    if (request.like is None) == (request.reference is None):
        raise UsageError("give either like=, an operator of op_db, or reference= and inputs=")
    if (request.rtol is None) != (request.atol is None):
        raise UsageError("rtol= and atol= replace the tolerances together: give both or neither")
    if request.reference_on_device and not request.device:
        raise UsageError("reference_on_device= needs device=, for example device='cuda'")
    if request.reference is not None and request.dtypes is not None:
        raise UsageError(
            "dtypes= chooses samples of op_db: give it with like= only, and the dtypes of inputs in inputs="
        )
    device = prepared_device(request.device) if request.device else ""
    forbidden = tuple(map(dispatched_name, request.forbid))
    if request.like is not None:
        if request.inputs is not None:
            raise UsageError("like= takes the inputs from op_db: give inputs= with reference= only")
        if request.seed:
            raise UsageError("seed= draws described inputs: give it with reference= and inputs= only")
        operator = operator_of(request.operator, request.near)
        prepare_dynamo(operator)
        trial = _like(request, operator)
        return completed(trial, request, device, forbidden)
    if request.inputs is None:
        raise UsageError(
            "reference= needs inputs=, for example {'x': 'float32[n, m]', 'sizes': {'n': '0..300', 'm': '1..9'}}"
        )
    assert request.reference is not None
    plain, classes = descriptions.take_apart(request.inputs)
    description = descriptions.parse(plain)
    reference = operator_of(request.reference, request.near, role="reference")
    operator = operator_of(request.operator, request.near, taken=reference.text)
    reference, operator = (with_parts(one, [*description.arguments], classes) for one in (reference, operator))
    tolerances = request.rtol, request.atol
    refusal = functools.partial(refusal_of, reference.function)
    plan = from_description(description, operator, refusal, tolerances, request.seed)
    prepare_dynamo(operator)
    trial = Examination(operator, reference, plan, request.batch, description=description)
    return completed(trial, request, device, forbidden)


def prepare_dynamo(operator: Operator) -> None:
    """Import Dynamo for an operator of `torch.library`, whose first call imports it: here, so that no fork does it
    again."""
    if operator.overload is not None:
        importlib.import_module("torch._dynamo")


def completed(trial: Examination, request: CheckRequest, device: str, forbidden: tuple[str, ...]) -> Examination:
    """Return an examination with what the request says beside the calls, and without calls that it excludes, or does
    not ask for."""
    negative = NEGATIVE in request.chosen() and NEGATIVE not in request.exclude
    for name, dim in request.batch.items():
        given = [call.values.get(name) for call in trial.plan.calls]
        if not any(isinstance(value, torch.Tensor) and dim < value.dim() for value in given):
            names = {one: None for call in trial.plan.calls for one in call.values}
            lacks = f"in no call is it a tensor with the dimension {dim}" if name in names else "there is no such input"
            known = "" if name in names else nearest(name, names) or f"; choose from {', '.join(names)}"
            raise UsageError(f"batch={{{name!r}: {dim}}}: {lacks}{known}")
    trial.plan.calls = [
        call for call in trial.plan.calls if call.note not in request.exclude and (negative or call.kind != NEGATIVE)
    ]
    asked = not {*usual(request.batch, request.forbid)} <= {*request.chosen()}
    return replace(
        trial,
        signless=trial.operator.overload is None and not asked,
        device=device,
        forbidden=forbidden,
        reference_on_device=request.reference_on_device,
        scales=request.rtol is None,
        ties=request.ties is not None,
        random=request.random,
    )


def dispatched_name(name: str) -> str:
    """Return the full name of an operator that torch dispatches, such as `aten::_softmax`. Raises UsageError for a name
    that torch does not know, and for an operator that torch takes apart before it dispatches."""
    library, _, short = name.rpartition("::")
    packet = getattr(getattr(torch.ops, library or "aten"), short.partition(".")[0], None)
    if packet is None:
        known = nearest(short, dir(torch.ops.aten)) if library in ("", "aten") else ""
        raise UsageError(f"forbid={name!r}: torch has no such operator{known}; write for example 'aten::_softmax'")
    full = f"{library or 'aten'}::{short.partition('.')[0]}"
    kernels = [getattr(packet, one).name() for one in packet.overloads() if not one.endswith("out")]
    if kernels and all(has_kernel(one, "CompositeImplicitAutograd") for one in kernels):
        raise UsageError(f"forbid={name!r}: torch replaces {full} by other operators first: name those that it calls")
    return full


def _like(request: CheckRequest, operator: Operator) -> Examination:
    entry = entry_of(request.like)
    function = entry.op if isinstance(request.like, str) else request.like
    reference = operator_of(function, text=_public(entry, function))
    plan = from_op_db(entry, operator, functools.partial(refusal_of, reference.function), request.dtypes, SAMPLES)
    if request.rtol is not None:
        plan.calls = [replace(call, rtol=request.rtol, atol=request.atol) for call in plan.calls]
    if "refusals" in request.chosen():
        plan.calls += _refused(entry, operator)
    return Examination(operator, reference, plan, request.batch, _rule(entry))


def _public(entry: Any, function: Any) -> str:
    """Return the expression of an entry's function, or of its method."""
    home = "torch.Tensor." if function in (entry.method_variant, entry.inplace_variant) else "torch."
    name = getattr(function, "__name__", "") if home == "torch.Tensor." else entry.name
    return f"{home}{name}"


def _refused(entry: Any, operator: Operator) -> list[DrawnCall]:
    """Return the calls of op_db that must raise."""
    if entry.error_inputs_func is None:
        return []
    calls = []
    for error in entry.error_inputs("cpu"):
        sample = error.sample_input
        bound = operator.bound((sample.input, *sample.args), sample.kwargs)
        if bound is not None:
            calls.append(DrawnCall(REFUSED, bound, 1 + len(sample.args), str(error.error_regex)))
    return calls


def _rule(entry: Any) -> bool | None:
    """Whether the accuracy rule of an entry holds for each element; None if there is no rule."""
    from conformance.sources.accuracy import table

    names = {entry.name, f"{entry.name}.{entry.variant_test_name}"}
    return next((bool(row.exact) for row in table.load()[0] if row.name in names), None)


def verdicts(trial: Examination, request: CheckRequest, budget: Budget | None = None) -> Iterator[CheckVerdict]:
    """Run the checks, and yield their verdicts in the order of the procedures. The time they take is subtracted from
    the budget, by default that of the request."""
    budget = budget or Budget.of(request)
    procedures = _procedures(request)
    yield from (
        CheckVerdict(name, reason=request.exclude[name], excluded=True) for name in TIERS if name in request.exclude
    )
    for name in PROCEDURES:
        for check in request.chosen():
            if CHECKS[check].procedure == name and check in request.exclude:
                yield CheckVerdict(check, reason=request.exclude[check], excluded=True)
        if name in procedures:
            begin, share = processor_time(), budget.share(name)
            results = [*_verdicts(trial, name, procedures[name], request, share, budget.over)]
            waited = request.seconds if any(result.finding and result.check == "hang" for result in results) else 0.0
            budget.left -= processor_time() - begin + waited
            if any(result.finding and result.check == "memory" for result in results):
                budget.left, budget.over = 0.0, NO_MEMORY
            yield from results


def _procedures(request: CheckRequest) -> dict[str, list[str]]:
    """Return the procedures that run, with their checks."""
    chosen = [check for check in request.chosen() if check not in request.exclude]
    groups = {name: [check for check in chosen if CHECKS[check].procedure == name] for name in PROCEDURES}
    return {name: run for name, run in groups.items() if run}


@dataclass
class Judging:
    """The verdicts of a request, check by check. It draws the calls once and runs each procedure once."""

    request: CheckRequest
    known: dict[str, dict[str, CheckVerdict]] = field(default_factory=dict)

    @functools.cached_property
    def budget(self) -> Budget:
        """The remaining time for the checks. Raises UsageError."""
        return Budget.of(self.request)

    @functools.cached_property
    def trial(self) -> Examination:
        """The calls. Raises UsageError."""
        return examination(self.request)

    def verdict(self, check: str) -> CheckVerdict:
        """Return the verdict of a check. It has a reason if it was not judged. If its calls ended the process, and no
        other check says so, that is its finding. A check that the user did not name is no pass if those that he named
        compared nothing."""
        result = self._verdict(check)
        counts = check in self.request.asked() or not result.compared
        return result if counts or not (empty := self.nothing_compared()) else CheckVerdict(check, reason=empty)

    def _verdict(self, check: str) -> CheckVerdict:
        procedure = CHECKS[check].procedure
        if procedure not in self.known:
            wanted = [name for name in self.request.asked() if CHECKS[name].procedure == procedure]
            results = verdicts(self.trial, replace(self.request, checks=wanted), self.budget)
            self.known[procedure] = {result.check: result for result in results}
        known = self.known[procedure]
        result = known.get(check) or CheckVerdict(check, reason="another check of its group ended the process")
        deaths = [known[name].finding for name in FATAL if name in known and CHECKS[name].procedure != procedure]
        return result if result.finding or not deaths else replace(result, finding=deaths[0])

    def is_found(self, check: str) -> bool:
        """Whether a check of the request finds a difference of its own."""
        asked = check in self.request.chosen() and check not in self.request.exclude
        return asked and (finding := self.verdict(check).finding) is not None and finding.check == check

    def nothing_compared(self) -> str:
        """Return the sentence about an operator of which no call was compared; "" if one was. Runs as many checks as it
        needs to know."""
        results = []
        for check in self.request.chosen():
            results.append(self._verdict(check))
            if not nothing_compared(results, self.request):
                return ""
        return nothing_compared(results, self.request)


def calls_of(trial: Examination, name: str) -> list[DrawnCall]:
    """Return the calls of a procedure, kind by kind. If a kind has too many calls, they are spread over all of them."""
    procedure, result = PROCEDURES[name], list[DrawnCall]()
    for kind in procedure.kinds:
        calls = trial.plan.of(kind)
        result += calls[:: max(1, -(-len(calls) // procedure.most))][: procedure.most]
    return result


def asked_calls(calls: list[DrawnCall], request: CheckRequest) -> list[DrawnCall]:
    """Return the calls of the kinds that a request names, if it names nothing that each call may show: `values` alone
    needs no other sizes, while `mutation` and `crash` need all calls."""
    named = {request.checks} if isinstance(request.checks, str) else {*(request.checks or ())}
    of_compare = {check for check in named if check in CHECKS and CHECKS[check].procedure == "compare"}
    if not of_compare or not of_compare <= {*EVERY}:
        return calls
    return [call for call in calls if call.kind in of_compare]


def in_turns(calls: Sequence[DrawnCall]) -> list[int]:
    """Return the positions of calls in running order: the kinds take turns, and the first calls of a kind are spread
    over all of it. So a procedure that runs out of time has seen each kind, and small and large sizes."""
    rows: dict[str, list[int]] = {}
    for number, call in enumerate(calls):
        rows.setdefault(call.kind, []).append(number)
    turns = itertools.zip_longest(*map(spread, rows.values()))
    return [number for turn in turns for number in turn if number is not None]


def spread(row: Sequence[int]) -> list[int]:
    """Return the first element, the last one, the one between them, and so on: each time the middles of all gaps."""
    order = [0, len(row) - 1]
    gaps = [(0, len(row) - 1)]
    while gaps:
        low, high = gaps.pop(0)
        middle = (low + high) // 2
        if low < middle:
            order.append(middle)
            gaps += [(low, middle), (middle, high)]
    return [row[at] for at in dict.fromkeys(order) if 0 <= at < len(row)]


def _verdicts(
    trial: Examination, name: str, checks: Sequence[str], request: CheckRequest, share: float, over: str
) -> Iterator[CheckVerdict]:
    calls = asked_calls(calls_of(trial, name), request) if name == "compare" else calls_of(trial, name)
    by_check, outcomes = dict[str, list[Difference]](), list[ComparedCall]()
    excused = dict[int, str]()
    for item in examined(trial, name, calls, request.seconds, share, over):
        if isinstance(item, ComparedCall):
            outcomes.append(item)
        elif item.check in INCOMPARABLE and item.check in request.exclude:
            excused[id(item.call)] = f"the {item.check} differs, which is excluded, so its values cannot be compared"
        elif item.check == NEGATIVE and trial.signless:
            excused[id(item.call)] = NO_SIGN
        else:
            # Values of another dtype or shape are not compared, so a check of values alone must not pass.
            stands_for = item.check in INCOMPARABLE and item.check not in checks and item.call.kind in checks
            by_check.setdefault(item.call.kind if stands_for else item.check, []).append(item)
    position = {id(call): number for number, call in enumerate(calls)}
    survives = not {*FATAL} & {*by_check}
    for check in dict.fromkeys((*checks, *(each for each in FATAL if each not in request.exclude))):
        mine = [one for one in outcomes if check == one.kind or check not in EVERY] if check in checks else []
        # The values of a call may be excused, and its other facts, such as written inputs, judged.
        reasons = [excused.get(id(one.call), one.reason) if check == one.kind else one.reason for one in mine]
        sizes = span_of_sizes([one.call for one, reason in zip(mine, reasons) if one.call and not reason])
        if check in by_check:
            first = min(by_check[check], key=lambda difference: position[id(difference.call)])
            others = len(by_check[check]) - 1
            yield replace(_outcome(check, reasons), reason="", late=0, finding=first, others=others, sizes=sizes)
        elif check in checks and (survives or check not in FATAL):
            yield replace(_outcome(check, reasons), sizes=sizes)


def _outcome(check: str, reasons: Sequence[str]) -> CheckVerdict:
    """Return the verdict on a check without a difference. `reasons` say why its calls were not judged; "" for a call
    that was compared."""
    compared, late = reasons.count(""), [reason for reason in reasons if reason.startswith((OVER, SLOW_COMPILER))]
    refusals = [] if check in FATAL else [reason for reason in reasons if reason not in ("", *late)]
    reason = next(iter(refusals), "")
    said, limit = "" if compared else reason or NOT_SHOWN, "budget"
    if late and (compared or not reason):
        said = f"{compared} of {compared + len(late)} inputs, {late[0]}"
        limit = "budget" if late[0] == OVER else "seconds"
    else:
        late = []
    verdict = CheckVerdict(check, compared, said, late=len(late), limit=limit)
    return replace(verdict, refused=len(refusals), refusal=reason) if compared else verdict


def nothing_compared(results: Iterable[CheckVerdict], request: CheckRequest) -> str:
    """Return the sentence about an operator of which no call was compared or differs, with the first reason; "" if
    one was. That a call ended says nothing about the checks that the user names."""
    results, asked = [*results], request.asked()
    if any(result.finding or (result.compared and result.check in asked) for result in results):
        return ""
    reasons = dict.fromkeys(f"{result.check}: {result.reason}" for result in results if result.check not in FATAL)
    return f"nothing was compared, so nothing is known of the operator ({next(iter(reasons), 'no check ran')})"


def shortfalls(results: Iterable[CheckVerdict], request: CheckRequest) -> list[Shortfall]:
    """Return the checks without a difference that compared fewer inputs than planned, and with `strict` those for which
    there was none."""
    results = [*results]
    empty = [result.check for result in results if request.strict and result.unexplained and result.check not in FATAL]
    rows = [Shortfall(f"checks: {', '.join(empty)}", len(empty), len(results), EXPLAIN)] if empty else []
    for reason in (NO_FAKE_KERNEL, DETACHED):
        lacking = [one.check for one in results if reason in (one.reason, one.refusal) and not one.finding]
        if lacking:
            rows.append(Shortfall(f"checks: {', '.join(lacking)}", len(lacking), len(results), reason))
    return rows + [
        Shortfall(
            f"inputs of {result.check}",
            result.late,
            result.compared + result.late,
            f"{result.limit}={getattr(request, result.limit):g}",
        )
        for result in results
        if result.late and not result.finding
    ]


def unfinished(results: Iterable[CheckVerdict], request: CheckRequest, found: Difference | None = None) -> str:
    """Return the sentence about what was not judged; "" if all was. `found` is a difference that was minimized."""
    rows = shortfalls(results, request)
    rows += [Shortfall(FINDINGS, 1, 1, "time of one finding")] if found is not None and found.cut else []
    return describe(rows, request.strict)


class ComparedCall(NamedTuple):
    """The kind of a call that was compared, a reason if it was not judged, and the call."""

    kind: str
    reason: str
    call: DrawnCall | None = None


Item = Difference | ComparedCall


def examined(
    trial: Examination,
    name: str,
    calls: Sequence[DrawnCall],
    seconds: float = SECONDS,
    share: float = BUDGET,
    over: str = OVER,
) -> Iterator[Item]:
    """Run a procedure on the calls, in a fork. A call may take `seconds`, and the first begins if `share`, the time for
    all calls in seconds, is not 0; `over` is the reason of those that do not begin. A call without enough memory is the
    last one, as one that ends the process."""
    procedure = PROCEDURES[name]
    if share <= 0:
        yield from (ComparedCall(call.kind, over, call) for call in calls)
        return
    if procedure.compiler:
        importlib.import_module("torch._dynamo")  # here, so that no fork imports it again
        loaded(procedure.compiler)

    def work(send: Send) -> None:
        """Judge the calls, in a fork. The operator runs in a fork of this fork."""
        number = 0

        def ask(question: Callable[..., Any], *details: Any) -> Any:
            send(("asks", number, ""))  # the limit of time begins anew
            return operator.ask(number, question, *details)

        with OperatorProcess(procedure, trial, calls, seconds) as operator, contextlib.ExitStack() as stack:
            ask_reference = None
            if trial.reference_on_device:
                reference = stack.enter_context(OperatorProcess(procedure, trial, calls, seconds))
                ask_reference = lambda question, *details: ask_on_device(reference, number, question, details)  # noqa: E731
            for turn, number in enumerate(in_turns(calls)):
                used = processor_time() + processor_time_of(operator.process)
                if turn and used > share:
                    send(("done", number, over))
                    continue
                reason = ""
                try:
                    for found in procedure.differences(trial, calls[number], ask, ask_reference):
                        send(("found", number, found))
                        if found[0] == "memory":
                            return
                except NotJudged as error:
                    reason = str(error)
                except ForkDied as error:
                    send(("died", number, error.death))
                    return
                except UnknownAnswer as error:
                    send(("found", number, ("structure", Mismatch("structure", PROCESS, "an answer", str(error)))))
                    return
                send(("done", number, reason))

    for item in forked(work, PATIENCE * seconds):
        if isinstance(item, Death):
            raise UserError(f"the process that compares {item.said}; it calls the reference only, so run that by hand")
        if isinstance(item, Exception):
            raise item
        event, number, content = item
        if event == "found":
            check, mismatch = content
            yield Difference(check, mismatch, calls[number])
        elif event == "done":
            yield ComparedCall(calls[number].kind, content, calls[number])
        elif event == "died":
            hangs = content.reason is ExitReason.TIMEOUT
            if hangs and procedure.compiler:
                # The fork has ended, so the calls behind this one have no verdict either.
                order = in_turns(calls)
                for late in order[order.index(number) :]:
                    yield ComparedCall(calls[late].kind, f"{SLOW_COMPILER} {seconds:g} s")
                continue
            fenced = not trial.device and NO_ACCESS.search(content.said)
            check = "hang" if hangs else procedure.death if fenced else "crash"
            if check == "reads" and _writes(trial, calls[number], seconds):
                check = "writes"
            yield Difference(check, Mismatch(check, PROCESS, "an answer", content.said), calls[number])


def ask_on_device(reference: OperatorProcess, number: int, question: Callable[..., Any], details: Sequence[Any]) -> Any:
    """Return the answer to a question in the process of the reference. Raises NotJudged if that ended."""
    try:
        return reference.ask(number, question, *details)
    except ForkDied as error:
        raise NotJudged(f"the reference {error.death.said} on the device") from None


def _writes(trial: Examination, call: DrawnCall, seconds: float) -> bool:
    """Whether a call that ends its process on memory without access writes there, and does not only read."""

    def work(send: Send) -> None:
        writes_beyond(checked_call(trial, call))

    return any(isinstance(item, Death) for item in forked(work, seconds))


def inputs_shown(call: DrawnCall) -> str:
    """Return a summary of the inputs of a call."""
    texts = [
        f"{str(leaf.dtype)[6:]}{list(leaf.shape)}" if torch.is_tensor(leaf) else repr(leaf)
        for leaf in leaves(call.values)
    ]
    return ", ".join(texts) + (f" ({call.note})" if call.note else "")
