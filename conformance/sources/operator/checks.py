"""The checks of an operator as procedures on its calls: which calls each one runs on, and what it needs.

Defines `PROCEDURES` and `Examination`. The checks themselves are functions of `standalone/operator_checks.py`, which
scripts carry. Several checks of `table.py` may share a procedure. A procedure is not carried out if the operator lacks
a part that it needs, such as a derivative; the reason says so.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from conformance.record.errors import UsageError
from conformance.run.messages import Death, ExitReason
from conformance.sources.operator import calls as kinds
from conformance.sources.operator.answers import UnknownAnswer, pack_answer, unpack_answer
from conformance.sources.operator.calls import CallPlan, DrawnCall
from conformance.sources.operator.devices import loaded
from conformance.sources.operator.forks import Fork, ForkDied, silence_channels
from conformance.sources.operator.inputs import Description
from conformance.sources.operator.subject import Operator, by_finding_name, finding_name
from conformance.standalone import derivative_checks as derivatives
from conformance.standalone import operator_checks as checks
from conformance.standalone import torch_compat
from conformance.standalone import transform_checks as transforms
from conformance.standalone.derivative_checks import NO_DERIVATIVE
from conformance.standalone.device import is_lost
from conformance.standalone.moving import copied_to_host, map_leaves, rebuild, send_tree, tensors
from conformance.standalone.observation import Foreign
from conformance.standalone.operator_checks import RESULT, CheckedCall, Found, Inputs, NotJudged, is_differentiable

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Examination:
    """An operator, its reference, and the calls. `batch` are the dimensions that the check `batch` splits, by argument.
    `exact` says whether an accuracy rule exists, and whether it holds for each element (None: there is none). `device`
    is the spec of the target on which the operator runs; empty for torch CPU. The reference runs there as well, in a
    process of its own, if `reference_on_device`. `forbidden` are full names of operators that the operator may not
    call. `description` is the user's of the inputs; None for samples of op_db. `scales`, `ties` and `random` are those
    of `CheckedCall`, as is `watches`. A `signless` operator may read negative views without their sign."""

    operator: Operator
    reference: Operator
    plan: CallPlan
    batch: Mapping[str, int] = field(default_factory=dict)
    exact: bool | None = None
    device: str = ""
    forbidden: tuple[str, ...] = ()
    description: Description | None = None
    reference_on_device: bool = False
    scales: bool = True
    ties: bool = False
    random: bool = False
    watches: bool = True
    signless: bool = False


def checked_call(trial: Examination, call: DrawnCall) -> CheckedCall:
    """Return a call as the checks take it."""
    return CheckedCall(
        by_position(trial.operator.function, call),
        inputs_of(call),
        by_position(trial.reference.function, call),
        kind=call.kind,
        tolerance=None if call.rtol is None or call.atol is None else (call.rtol, call.atol),
        scales=trial.scales,
        ties=trial.ties,
        random=trial.random,
        watches=trial.watches,
        writes=None if trial.operator.written is None else sorted(trial.operator.written),
        aliases=declared_aliases(trial.operator),
        batch={finding_name(name): dim for name, dim in trial.batch.items()},
        each=bool(trial.exact),
        forbidden=trial.forbidden,
        derivable=trial.operator.derivable and not trial.operator.written,
    )


def by_position(function: Callable[..., Any], call: DrawnCall) -> Callable[..., Any]:
    """Return a function that takes all arguments of a call by position, as compilers need it."""
    names, count = [*call.values][call.positional :], call.positional

    def run(*parts: Any) -> Any:
        return function(*parts[:count], **dict(zip(names, parts[count:])))

    return run


def inputs_of(call: DrawnCall) -> Inputs:
    """Return a function that copies the inputs of a call, by their names in findings."""
    return lambda: send_tree(by_finding_name(call.values), lambda tree: rebuild(tree, copied_to_host), CPU)


def refusal_of(function: Callable[..., Any], call: DrawnCall) -> str:
    """Return the first line of a function's error in a call; "" if it answers. Raises UsageError for an answer that
    cannot be compared."""
    seen = checks.observe_call(by_position(function, call), inputs_of(call))
    for name, leaf in seen.others.items():
        if isinstance(leaf, Foreign):
            raise UsageError(
                f"the {name} of the reference is a {leaf.kind}, which cannot be compared: return tensors of the type "
                "torch.Tensor, for example from torch.from_numpy, and plain data"
            )
    return "" if seen.error is None else checks.line_of(seen.error)


def declared_aliases(operator: Operator) -> list[tuple[str, str]] | None:
    """Return the pairs of a result and an argument that share memory by the schema; None without a schema."""
    if operator.schema is None:
        return None
    returns = operator.schema.returns
    pairs = []
    for at, result in enumerate(returns):
        name = RESULT if len(returns) == 1 else f"{RESULT}[{at}]"
        sets = result.alias_info.before_set if result.alias_info is not None else set()
        for argument in operator.schema.arguments:
            if argument.alias_info is not None and argument.alias_info.before_set & sets:
                pairs.append((name, finding_name(argument.name)))
    return pairs


# What an operator lacks for a check


def lacks_derivative(trial: Examination, call: DrawnCall) -> str:
    """Return a reason if the operator registers no derivative."""
    if trial.random:
        return lacks_equality(trial, call)
    if trial.operator.written:
        return "torch.library has no derivatives of operators that write an input"
    return "" if trial.operator.derivable else NO_DERIVATIVE


def lacks_gradient(trial: Examination, call: DrawnCall) -> str:
    """Return a reason if no input has a gradient, or the operator no derivative."""
    if trial.random:
        return lacks_equality(trial, call)
    if not any(map(is_differentiable, tensors(call.values))):
        return "no input has a gradient"
    return lacks_derivative(trial, call)


def lacks_formula(trial: Examination, call: DrawnCall) -> str:
    """Return a reason if autograd has no kernel for the operator."""
    if trial.random:
        return lacks_equality(trial, call)
    return "" if trial.operator.derivable else NO_DERIVATIVE


def lacks_registration(trial: Examination, call: DrawnCall) -> str:
    """Return a reason for a function that is not registered with torch."""
    return "a plain function has no fake kernel" if trial.operator.overload is None else ""


def lacks_rule(trial: Examination, call: DrawnCall) -> str:
    """Return a reason if there is no accuracy rule."""
    if trial.random:
        return lacks_equality(trial, call)
    return "there is no rule for this operator" if trial.exact is None else ""


def lacks_equality(trial: Examination, call: DrawnCall) -> str:
    """Return a reason for an operator that answers otherwise each time."""
    return "a random operator has other results each time" if trial.random else ""


def lacks_schema(trial: Examination, call: DrawnCall) -> str:
    """Return a reason for a function without a schema."""
    return "a plain function declares no writes" if trial.operator.overload is None else ""


def lacks_ban(trial: Examination, call: DrawnCall) -> str:
    """Return a reason if no operator is forbidden."""
    return "" if trial.forbidden else "no operator is forbidden: name one, for example forbid=['aten::_softmax']"


class FakeMode(NamedTuple):
    """A mode of fake tensors: how it is made here, and its lines and its expression in a script."""

    make: Callable[[], Any]
    lines: tuple[str, ...]
    text: str


OF_FAKE = "from torch._subclasses.fake_tensor import FakeTensorMode"
FAKE = FakeMode(functools.cache(torch_compat.fake_tensor_mode), (OF_FAKE,), "FakeTensorMode()")
SYMBOLIC = FakeMode(
    torch_compat.symbolic_mode,
    (OF_FAKE, "from torch.fx.experimental.symbolic_shapes import ShapeEnv"),
    "FakeTensorMode(shape_env=ShapeEnv())",
)


@dataclass(frozen=True)
class Procedure:
    """A procedure on calls of these kinds, at most `most` of each kind. The time for all procedures is divided in
    proportion to `weight`. `uses` are the fields of a `CheckedCall` that the procedure reads beside the operator and
    its inputs: a script states those that have no default. `lacks` returns why the operator cannot be judged, and "" if
    it can. `death` is the check that the end of the process concerns. `mode` is the mode of a registered operator's
    fake kernel, and `compiler` the target that compiles for the check."""

    run: Callable[..., Iterator[Found]]
    kinds: Collection[str]
    most: int = 100
    weight: int = 1
    uses: Collection[str] = ()
    lacks: Callable[[Examination, DrawnCall], str] | None = None
    death: str = "crash"
    mode: FakeMode | None = None
    compiler: str = ""

    def differences(
        self,
        trial: Examination,
        call: DrawnCall,
        elsewhere: Callable[..., Any],
        reference_elsewhere: Callable[..., Any] | None = None,
    ) -> Iterator[Found]:
        """Yield what differs in a call. `elsewhere` asks a question about the operator, and `reference_elsewhere` one
        about a reference on the device. Raises NotJudged."""
        if self.lacks is not None and (reason := self.lacks(trial, call)):
            raise NotJudged(reason)
        checked = self.checked(trial, call)
        yield from self.run(replace(checked, elsewhere=elsewhere, reference_elsewhere=reference_elsewhere))

    def checked(self, trial: Examination, call: DrawnCall) -> CheckedCall:
        """Return a call as the procedure takes it."""
        checked = checked_call(trial, call)
        if self.mode is not None and trial.operator.overload is not None:
            checked = replace(checked, mode=self.mode.make())
        if "renewed" in self.uses and (values := renewed(call)) is not None:
            checked = replace(checked, renewed=inputs_of(call.on(values)))
        if "others" in self.uses:
            checked = replace(checked, others=[inputs_of(other) for other in other_sizes(trial, call)])
        return checked

    @contextlib.contextmanager
    def asked(self, trial: Examination, call: DrawnCall) -> Iterator[CheckedCall]:
        """Context of the questions about a call, with the device of the operator, and the compiler if the procedure has
        one."""
        checked = replace(self.checked(trial, call), device=loaded(trial.device) if trial.device else None)
        if not self.compiler:
            yield checked
            return
        target = loaded(self.compiler)
        with target.capture() as capture:
            assert capture is not None
            received = lambda: bool(capture.ops)  # noqa: E731
            yield replace(checked, transform=target.transform, received=received)


class OperatorProcess(Fork):
    """The process in which the operator runs. It answers questions about calls and compares nothing, since the operator
    may change everything there. A question may take `seconds`."""

    def __init__(self, procedure: Procedure, trial: Examination, calls: Sequence[DrawnCall], seconds: float) -> None:
        super().__init__(lambda pipe: answer_questions(procedure, trial, calls, pipe))
        self.seconds, self.on_device = seconds, bool(trial.device)

    def ask(self, number: int, question: Callable[..., Any], *details: Any) -> Any:
        """Return the answer to a question about a call. Raises ForkDied, NotJudged, and UnknownAnswer."""
        self.send((number, question, details))
        content = self.receive(self.seconds, Connection.recv_bytes)
        if not content:
            raise ForkDied(Death(ExitReason.CRASH, checks.LOST))
        pair = unpack_answer(content)
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], str)):
            raise UnknownAnswer("no pair of an answer and a reason")
        answer, reason = pair
        if reason and not (self.on_device or question in MAY_REFUSE):
            raise UnknownAnswer(f"a refusal: {reason}")
        if reason:
            raise NotJudged(reason)
        return answer


MAY_REFUSE = (derivatives.observe_slopes,)
"""Questions that may have no answer on torch CPU. A refusal of another one is made up by the operator."""


def answer_questions(procedure: Procedure, trial: Examination, calls: Sequence[DrawnCall], pipe: Connection) -> None:
    """Answer the questions of `OperatorProcess.ask` until there are no more. An answer is a pair: the answer, and the
    reason if the operator cannot be judged, or nothing if the call has left the device unusable."""
    silence_channels(pipe.fileno())
    device = loaded(trial.device) if trial.device else None
    with device.entered() if device else contextlib.nullcontext(), contextlib.ExitStack() as context:
        current, call = -1, None
        while True:
            try:
                number, question, details = pipe.recv()
            except EOFError:
                return
            if number != current:
                context.close()
                current, call = number, context.enter_context(procedure.asked(trial, calls[number]))
            try:
                content = pack_answer((question(call, *details), ""))
            except NotJudged as error:
                content = pack_answer((None, str(error)))
            pipe.send_bytes(b"" if device and is_lost(device) else content)


def other_sizes(trial: Examination, call: DrawnCall) -> list[DrawnCall]:
    """Return calls that differ from a call in the sizes of their tensors only, one for each choice of sizes."""

    def rest(call: DrawnCall) -> str:
        return repr(map_leaves(call.values, lambda leaf: (leaf.dtype, leaf.dim()) if torch.is_tensor(leaf) else leaf))

    def sizes_of_call(call: DrawnCall) -> str:
        return str([tensor.shape for tensor in tensors(call.values)])

    plan = trial.plan.of(kinds.SAMPLED, kinds.BLOCKS)
    others = {sizes_of_call(other): other for other in plan if rest(call) == rest(other)}
    return [other for at, other in others.items() if at != sizes_of_call(call)][:8]


def renewed(call: DrawnCall) -> dict[str, Any] | None:
    """Return other values for the inputs of a call: those of another draw, as far as they have its sizes, and halves of
    its own floating values otherwise. None if nothing changes."""
    drawn = [*tensors(call.again or {})]
    before = tensors(call.values)
    after = iter(
        [
            other[tuple(map(slice, one.shape))].clone() if other is not None and fits(one, other) else halved(one)
            for one, other in itertools.zip_longest(before, drawn if len(drawn) == len(before) else ())
        ]
    )
    values: dict[str, Any] = map_leaves(call.values, lambda leaf: next(after) if torch.is_tensor(leaf) else leaf)
    return values if any(map(checks.differs, before, tensors(values))) else None


def fits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a tensor has the dtype of one, and at least its sizes."""
    sizes = zip(one.shape, other.shape)
    return one.dtype == other.dtype and one.dim() == other.dim() and all(size <= given for size, given in sizes)


def halved(one: torch.Tensor) -> torch.Tensor:
    """Return half of a floating tensor, and another tensor unchanged."""
    return one / 2 if one.is_floating_point() or one.is_complex() else one


EVERY = (
    kinds.SAMPLED, kinds.STRIDED, kinds.EMPTY, kinds.SCALARS, kinds.BLOCKS, kinds.SCALED, kinds.SPECIAL, kinds.MIXED,
    kinds.OTHER_DTYPES, kinds.NEGATIVE,
)  # fmt: skip
PLAIN = (kinds.SAMPLED, kinds.STRIDED, kinds.EMPTY, kinds.SCALARS, kinds.BLOCKS)
SMALL = (kinds.SAMPLED, kinds.SCALARS)
SIZED = (kinds.SAMPLED, kinds.BLOCKS)
REFUSED = "refused"

BY_REFERENCE = ("reference", "tolerance", "scales")
COMPILED = ("tolerance", "derivable", "transform")

PROCEDURES: Mapping[str, Procedure] = {
    "compare": Procedure(
        checks.compare_results, EVERY, weight=4, uses=(*BY_REFERENCE, "kind", "writes", "aliases", "ties", "random")
    ),
    "overlap": Procedure(checks.compare_overlap, (kinds.OVERLAP,), 3, uses=BY_REFERENCE),
    "declared": Procedure(checks.expect_write, SMALL, 1, uses=("reference", "writes", "others"), lacks=lacks_schema),
    "distribution": Procedure(checks.compare_distribution, (kinds.SAMPLED,), 2, uses=("reference", "random")),
    "accuracy": Procedure(checks.compare_accuracy, SIZED, 12, uses=("reference", "each"), lacks=lacks_rule),
    "gradcheck": Procedure(derivatives.check_gradients, SMALL, 3, uses=("reference",), lacks=lacks_formula),
    "fake": Procedure(transforms.compare_fake, PLAIN, 8, uses=("mode",), lacks=lacks_registration, mode=FAKE),
    "symbolic": Procedure(
        transforms.compare_symbolic, SIZED, 3, uses=("mode", "others"), lacks=lacks_registration, mode=SYMBOLIC
    ),
    "vmap": Procedure(transforms.compare_vmap, SMALL, 4, uses=("reference", "writes"), lacks=lacks_equality),
    "autocast": Procedure(
        transforms.compare_autocast,
        (*SMALL, kinds.BLOCKS),  # sums of few elements are right in any dtype
        6,
        uses=(*BY_REFERENCE, "mode"),
        mode=FAKE,
        lacks=lacks_equality,
    ),
    "refusals": Procedure(checks.expect_error, (REFUSED,), uses=("reference",)),
    "compile": Procedure(
        transforms.compare_compiled,
        (kinds.SAMPLED, kinds.STRIDED, kinds.EMPTY),
        3,
        3,
        COMPILED,
        lacks_equality,
        compiler="compile:aot_eager",
    ),
    "dynamic": Procedure(
        transforms.compare_dynamic,
        SIZED,
        3,
        2,
        (*COMPILED, "others"),
        lacks_equality,
        compiler="compile:aot_eager,dynamic=yes",
    ),
    "inductor": Procedure(
        transforms.compare_inductor, (kinds.SAMPLED, kinds.STRIDED), 2, 8, COMPILED, lacks_equality, compiler="inductor"
    ),
    "batch": Procedure(checks.compare_batch, SIZED, 12, uses=("batch",), lacks=lacks_equality),
    "forbid": Procedure(derivatives.watch_dispatch, EVERY, 4, uses=("forbidden",), lacks=lacks_ban),
    "repeat": Procedure(checks.repeat_call, PLAIN, 8, weight=2, lacks=lacks_equality),
    "replay": Procedure(checks.replay_call, SMALL, 3, uses=(*BY_REFERENCE, "renewed"), lacks=lacks_equality),
    "contexts": Procedure(checks.compare_contexts, SMALL, 3, uses=("reference", "tolerance"), lacks=lacks_equality),
    "fill": Procedure(checks.fill_memory, PLAIN, 12, weight=2, lacks=lacks_equality),
    "guard": Procedure(checks.guard_memory, PLAIN, 12, weight=3, death="reads"),
    "gradients": Procedure(
        derivatives.compare_gradients, (*PLAIN, kinds.SCALED), 6, 2, (*BY_REFERENCE, "kind"), lacks_gradient
    ),
    "subsets": Procedure(derivatives.compare_subsets, SMALL, 3, 1, ("tolerance",), lacks_gradient),
    "second": Procedure(derivatives.compare_second, SMALL, 3, 1, BY_REFERENCE, lacks_gradient),
    "forward_mode": Procedure(derivatives.compare_forward_mode, SMALL, 3, 1, BY_REFERENCE, lacks_gradient),
    "backward": Procedure(derivatives.compare_backward, (*SMALL, kinds.BLOCKS), 3, 1, BY_REFERENCE, lacks_gradient),
    "cotangents": Procedure(derivatives.compare_cotangents, PLAIN, 6, 3, ("tolerance",), lacks_derivative),
}
"""In running order: procedures that often end early come first, so that their time goes to the others."""
