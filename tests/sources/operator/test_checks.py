"""Each lie is found under the name of its check, and correct operators have no difference."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from conformance.record.errors import UsageError
from conformance.run.messages import Death, ExitReason
from conformance.sources.operator.checks import PROCEDURES
from conformance.sources.operator.examine import (
    BUDGET,
    OVER,
    Budget,
    CheckRequest,
    ComparedCall,
    Judging,
    calls_of,
    examination,
    examined,
    in_turns,
    spread,
    unfinished,
    verdicts,
)
from conformance.sources.operator.script import script
from conformance.sources.operator.table import CHECKS
from conformance.sources.operator.verdict import CheckVerdict, Difference
from conformance.standalone import operator_checks, transform_checks
from conformance.standalone.observation import Raised
from conformance.standalone.oracles import Mismatch
from tests.patience import stretched
from tests.planted.kernels import CORRECT, LIES

ALONE = "CONFORMANCE_TESTS_ALONE"
"""Variable of a process that runs this file only. Each check forks, and autograd refuses to run in a fork of a process
whose backward pass has used a device, as other tests do."""

alone = pytest.mark.skipif(ALONE not in os.environ, reason="test_this_file_alone runs it in a process of its own")


class Lazy(torch.Tensor):
    """A subclass of tensors."""


@dataclass
class Pair:
    """A result with two parts."""

    first: torch.Tensor
    second: torch.Tensor


COMPILED = ("compile", "dynamic", "inductor")
NEAR = "tests.planted.kernels"


def judged(described: dict, **changes) -> dict[str, CheckVerdict]:
    """The verdicts on a request, by check."""
    request = CheckRequest(**{**described, "near": NEAR, **changes})
    return {verdict.check: verdict for verdict in verdicts(examination(request), request)}


def wrong(by_check: dict[str, CheckVerdict]) -> list[str]:
    return [name for name, verdict in by_check.items() if verdict.finding is not None]


@alone
class TestTable:
    def test_every_check_has_a_lie(self):
        """Each row of the table has a planted operator."""
        assert sorted(LIES) == sorted(CHECKS) and len(LIES) >= 30

    def test_every_procedure_exists(self):
        """Each row names a procedure, and each procedure has a row."""
        assert {check.procedure for check in CHECKS.values()} == {*PROCEDURES}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "inductor" else []) for name in LIES]
)
@alone
def test_a_lie_is_found_by_its_check(name):
    """The check alone finds the operator that breaks its promise."""
    assert name in wrong(judged(LIES[name], checks=[name]))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in ("pointwise", "in place") else [pytest.mark.slow]) for name in CORRECT],
)
@alone
def test_a_correct_operator_passes(name):
    """No check but those that compile shows a difference, and the values were compared."""
    by_check = judged(CORRECT[name], checks=[name for name in CHECKS if CHECKS[name].usual and name not in COMPILED])
    assert wrong(by_check) == []
    assert by_check["values"].compared and by_check["reads"].compared and by_check["unwritten"].compared


@alone
@pytest.mark.slow
@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_operator_passes_compiled(name):
    """Compilers change nothing about a correct operator."""
    by_check = judged(CORRECT[name], checks=COMPILED)
    assert wrong(by_check) == [] and any(by_check[name].compared for name in COMPILED)


@alone
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LIES if "checks" not in LIES[name]])
def test_a_lie_is_found_among_all_checks(name):
    """A run of all usual checks finds it by its name, too."""
    assert name in wrong(judged(LIES[name]))


@alone
class TestTime:
    """The checks share a budget. A check with fewer inputs than planned says so."""

    def test_no_call_begins_too_late(self, monkeypatch):
        """The first call of a procedure is judged, and the others have a reason."""
        monkeypatch.setattr("conformance.sources.operator.examine.processor_time", lambda: 10.0)
        trial = examination(CheckRequest(**CORRECT["pointwise"]))
        first, *others = examined(trial, "compare", calls_of(trial, "compare"), share=5.0)
        assert first.reason == "" and {other.reason for other in others} == {OVER}

    def test_no_call_begins_without_time(self):
        """A procedure whose share is 0 makes no call."""
        by_check = judged(CORRECT["pointwise"], checks=["values", "repetition"], budget=0.0)
        assert by_check["values"].reason == f"0 of {by_check['values'].late} inputs, {OVER}" and by_check["values"].late
        assert by_check["repetition"].late > 5 and not by_check["repetition"].compared

    def test_a_verdict_counts_the_inputs(self, monkeypatch):
        """A check of one kind of calls counts these, and the others count all."""
        items = [
            ComparedCall(kind, reason)
            for kind, reason in (
                ("values", ""),
                ("values", OVER),
                ("layouts", OVER),
                ("empty", "refused"),
                ("empty", OVER),
            )
        ]
        monkeypatch.setattr("conformance.sources.operator.examine.examined", lambda *_: iter(items))
        by_check = judged(CORRECT["pointwise"], checks=["values", "layouts", "empty", "dtype"])
        assert by_check["values"] == CheckVerdict("values", 1, f"1 of 2 inputs, {OVER}", late=1)
        assert by_check["layouts"] == CheckVerdict("layouts", 0, f"0 of 1 inputs, {OVER}", late=1)
        assert by_check["empty"] == CheckVerdict("empty", 0, "refused")
        assert by_check["dtype"].reason == f"1 of 4 inputs, {OVER}" == by_check["crash"].reason
        said = unfinished(by_check.values(), CheckRequest(**CORRECT["pointwise"]))
        assert said.startswith(
            "Not judged: 1 of 2 inputs of values (budget=30), 1 of 1 inputs of layouts (budget=30), "
        )

    def test_time_that_is_left_goes_to_the_others(self):
        """The shares are in proportion to the weights; excluded checks have none."""
        request = CheckRequest(
            **CORRECT["pointwise"], checks=["values", "vmap", "autocast"], exclude={"autocast": "why"}
        )
        budget = Budget.of(request)
        assert budget.waiting == ["compare", "vmap"] and budget.share("compare") == BUDGET * 4 / 5
        budget.left -= 1.0
        assert budget.share("vmap") == BUDGET - 1.0 and not budget.waiting

    def test_a_hang_uses_up_time(self, monkeypatch):
        """Waiting takes no processor time, so a call that hangs in each procedure would otherwise add up."""
        items = [Difference("hang", Mismatch("hang", "the process", "an answer", "none"), None)]
        monkeypatch.setattr("conformance.sources.operator.examine.examined", lambda *_: iter(items))
        monkeypatch.setattr("conformance.sources.operator.examine.calls_of", lambda *_: [None])
        request = CheckRequest(**CORRECT["pointwise"], checks=["mutation", "vmap"], seconds=20.0)
        budget = Budget.of(request)
        results = [*verdicts(examination(request), request, budget)]
        assert [result.check for result in results if result.finding] == [
            "hang",
            "hang",
        ] and budget.left <= BUDGET - 40.0

    def test_checks_one_by_one_share_a_budget(self, monkeypatch):
        """The pytest marker and the command judge check by check."""
        shares = []

        def examined(trial, name, calls, seconds, share, over):
            shares.append(share)
            return iter([])

        monkeypatch.setattr("conformance.sources.operator.examine.examined", examined)
        judging = Judging(CheckRequest(**CORRECT["pointwise"], checks=["values", "dtype", "vmap"]))
        for name in ("values", "dtype", "vmap"):
            judging.verdict(name)
        assert shares[0] == BUDGET * 4 / 5 and len(shares) == 2 and BUDGET - 5 < shares[1] <= BUDGET

    def test_the_kinds_take_turns(self):
        """A call of each kind comes before a second one."""
        calls = calls_of(examination(CheckRequest(**CORRECT["pointwise"])), "compile")
        kinds = [calls[at].kind for at in in_turns(calls)]
        assert kinds[:3] == ["values", "layouts", "empty"] and sorted(in_turns(calls)) == [*range(len(calls))]

    @pytest.mark.parametrize("length", range(20))
    def test_the_first_calls_are_spread(self, length):
        """The ends come first, then the middles; each position comes once."""
        order = spread(range(length))
        assert sorted(order) == [*range(length)]
        assert length < 3 or order[:3] == [0, length - 1, (length - 1) // 2]

    def test_compiling_for_long_is_no_hang(self, monkeypatch):
        """The call and those behind it are then not judged, since their fork has ended."""
        monkeypatch.setattr(
            "conformance.sources.operator.examine.forked", lambda *_: iter([("died", 0, Death(ExitReason.TIMEOUT, ""))])
        )
        trial = examination(CheckRequest(**CORRECT["pointwise"]))
        calls = calls_of(trial, "compile")
        items = [*examined(trial, "compile", calls, 20.0)]
        assert items[0] == ComparedCall("values", "compiling takes more than 20 s") and len(items) == len(calls) > 1
        assert {item.reason for item in items} == {items[0].reason}


@alone
class TestRequest:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"like": None}, "give either like="),
            ({"reference": abs}, "give either like="),
            ({"rtol": 0.1}, "give both or neither"),
            ({"inputs": {}}, "like= takes the inputs from op_db"),
            ({"like": None, "reference": abs}, "reference= needs inputs="),
            ({"checks": ["valeus"]}, "did you mean values"),
            ({"exclude": {"values": " "}}, "excluded without a reason"),
            ({"like": "nn.functional.slu"}, "op_db has no operator"),
            ({"like": print}, "op_db has no operator that calls 'print'"),
            ({"like": "add"}, "takes the arguments of no sample of add"),
            ({"dtypes": ["int64"]}, "no samples of nn.functional.silu in int64"),
            ({"like": None, "reference": abs, "inputs": {"y": "float32[2]"}}, "has no argument 'y'"),
            (
                {"like": None, "reference": lambda: 1, "inputs": {"x": "float32[2]"}},
                "raises on every call that the inputs describe, first with TypeError: .* takes 0 positional arguments",
            ),
            ({"like": None, "reference": 3, "inputs": {"x": "float32[2]"}}, "reference=3 is an int: give a function"),
            ({"like": None, "reference": abs, "inputs": [torch.ones(2)]}, "is a list: describe them"),
            ({"exclude": ["vmap"]}, r"exclude=\['vmap'\] is a list: map each check to a reason"),
            ({"batch": ["x"]}, "is a list: map arguments to dimensions"),
            ({"dtypes": "float32"}, "dtypes='float32' is a str: name them"),
            ({"dtypes": [torch.float32]}, "torch.float32 is no name of a dtype; did you mean float32"),
            ({"checks": [3]}, r"checks=.3.*: name them, \['values'\]"),
            ({"checks": "valeus"}, "did you mean values"),
            (
                {"like": None, "reference": lambda x: x.numpy(), "inputs": {"x": "float32[2]"}},
                "the result of the reference is a numpy.ndarray, which cannot be compared: return tensors",
            ),
        ],
    )
    def test_a_contradiction_is_one_sentence(self, changes, said):
        """The error says what to give instead."""
        with pytest.raises(UsageError, match=said) as error:
            judged({**CORRECT["pointwise"], **changes})
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(("operator", "said"), [
        (lambda x: x.numpy(), "result: expected Tensor, got numpy.ndarray"),
        (lambda x: x.as_subclass(Lazy), "result: expected Tensor, got tests.sources.operator.test_checks.Lazy"),
        (lambda x: x.tolist(), "result: expected Tensor, got sequence of 3"),
    ])  # fmt: skip
    def test_a_result_that_is_no_plain_tensor(self, operator, said):
        """Its type is named. Values that a subclass computes when they are read are none of the operator's."""
        described = {"operator": operator, "reference": torch.clone, "inputs": {"x": "float32[3]"}}
        assert said in str(judged(described, checks=["structure"])["structure"].finding.mismatch)

    def test_parts_of_a_dataclass(self):
        """They are compared like those of a dict."""
        inputs = {"x": "float32[3]"}
        described = {"operator": lambda x: Pair(x, 2 * x), "reference": lambda x: Pair(x, x), "inputs": inputs}
        (mismatch,) = (one.finding.mismatch for one in judged(described, checks=["values"]).values() if one.finding)
        assert mismatch.where == "result['second']"

    def test_an_argument_without_a_description(self):
        """An argument without a default must be described."""
        with pytest.raises(UsageError, match="needs the argument 'by'"):
            judged(CORRECT["in place"], inputs={"x": "float32[3]"})

    def test_an_excluded_check_does_not_run(self):
        """It keeps its reason."""
        by_check = judged(LIES["values"], checks=["values", "dtype"], exclude={"values": "known"})
        assert by_check["values"] == CheckVerdict("values", reason="known", excluded=True) and wrong(by_check) == []

    def test_a_missing_part_is_a_reason(self):
        """An operator without a derivative is not judged for it, and says so."""
        by_check = judged(CORRECT["reduction"], checks=["gradients", "gradcheck"])
        assert (
            by_check["gradients"].reason == "the operator registers no derivative"
            and not by_check["gradients"].compared
        )


@pytest.mark.parametrize("chosen", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
@pytest.mark.skipif(ALONE in os.environ, reason="this is the process")
@pytest.mark.timeout(900)
def test_this_file_alone(chosen: str) -> None:
    """The tests of this file pass in a process of their own, the slow ones with the other slow tests. Only this one is
    skipped there. Regression test: the fast ones ran with the slow tests only, so that CI ran none of them."""
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", chosen, __file__]
    root = Path(__file__).parents[3]
    done = subprocess.run(
        line,
        env={**os.environ, ALONE: "1"},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=stretched(880),
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " 1 skipped" in done.stdout and " passed" in done.stdout, done.stdout[-500:]


def kernel_by_address(x):
    """A function that reads memory, as a kernel launched by address does."""
    assert x.data_ptr()
    return x + x


def product_wrong_under_autocast(x, y):
    """A function with an error that rounding to bfloat16 does not explain."""
    return x @ y * (1.25 if torch.is_autocast_enabled("cpu") else 1)


@alone
def test_autocast_explains_rounding_only():
    """A composite function may be cast at other places than its reference. Regression test: it was a difference."""
    assert wrong(judged(CORRECT["composite"], checks=["autocast"])) == []
    inputs = {"x": "float32[n, m]", "y": "float32[m, n]", "sizes": {"n": "1..20", "m": "1..20"}}
    request = {"operator": product_wrong_under_autocast, "reference": torch.mm, "inputs": inputs}
    assert wrong(judged(request, checks=["autocast"])) == ["autocast"]


def test_an_autocast_that_casts_nothing():
    """It says that it is on and what it casts to, also where it is entered again, and leaves torch as it was."""

    def ask(x):
        with torch.autocast("cpu", torch.float16):
            inner = torch.get_autocast_dtype("cpu"), (x @ x).dtype
        return inner, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), (x @ x).dtype

    before = torch.get_autocast_dtype, torch.set_autocast_dtype, torch.get_autocast_dtype("cpu")
    told = operator_checks.call_under_autocast(ask, {"x": torch.ones(2, 2)}, casts=False)
    assert told == ((torch.float16, torch.float32), True, torch.bfloat16, torch.float32)
    assert operator_checks.call_under_autocast(ask, {"x": torch.ones(2, 2)})[-1] is torch.bfloat16
    assert before == (torch.get_autocast_dtype, torch.set_autocast_dtype, torch.get_autocast_dtype("cpu"))


@alone
def test_a_function_that_reads_memory_has_no_rule_for_vmap():
    """The check is not measured, and the others are."""
    inputs = {"x": "float32[n]", "sizes": {"n": "1..9"}}
    described = {"operator": kernel_by_address, "reference": lambda x: 2 * x, "inputs": inputs}
    by_check = judged(described, checks=("values", "vmap"))
    assert "no rule for vmap" in by_check["vmap"].reason and by_check["values"].compared and not wrong(by_check)


@alone
def test_the_script_of_a_gradient_of_an_input_named_inputs(standalone):
    """The script has a function `inputs`, so an argument of that name gets another one there."""

    def double(inputs, given):
        return inputs * 2.01 + given * 0

    def reference(inputs, given):
        return inputs * 2 + given * 0

    described = {"inputs": "float32[3]", "given": "float32[3]"}
    request = CheckRequest(double, reference=reference, inputs=described, checks=["gradients"])
    trial = examination(request)
    (difference,) = (verdict.finding for verdict in verdicts(trial, request) if verdict.finding)
    ended = standalone(script(trial, difference))
    assert ended.returncode == 1 and "gradients of " in ended.stdout, ended.stderr


@alone
def test_the_script_of_a_part_that_an_operator_lacks(standalone):
    """A check that cannot judge the operator ends with exit code 2 and the reason."""
    request = CheckRequest(**{**LIES["gradients"], "checks": ["gradients"]}, near="tests.planted.kernels")
    trial = examination(request)
    (difference,) = (verdict.finding for verdict in verdicts(trial, request) if verdict.finding)
    before, _, after = script(trial, difference).rpartition(f"    return {trial.operator.text}(")
    ended = standalone(f"{before}    return torch.ops.lies.values({after}")
    assert ended.returncode == 2 and "gradients is not judged: the operator registers no" in ended.stdout, ended


@pytest.mark.parametrize(("setting", "kind", "known"), [
    ("1", "InterpreterError", True), ("0", "InterpreterError", False), ("1", "ValueError", False),
])  # fmt: skip
def test_an_error_of_tritons_interpreter_under_dynamo(monkeypatch, setting, kind, known):
    """Only the interpreter's own error, and only where it is on, is no difference."""
    monkeypatch.setenv("TRITON_INTERPRET", setting)
    assert bool(transform_checks.is_interpreted(Raised(kind, (kind, "Exception"), "text"))) is known


def cancelled(x):
    """Reference whose terms cancel: the difference of two sums of the same numbers."""
    return x.sum(-1) - x.flip(-1).sum(-1)


def one_by_one(x):
    """The same sums, added in another order."""
    forwards, backwards = (functools.reduce(torch.add, one.unbind(-1)) for one in (x, x.flip(-1)))
    return forwards - backwards


@alone
class TestRounding:
    """The bound of a difference follows from the size of the terms that the reference adds."""

    EPS = torch.finfo(torch.float32).eps

    def judged(self, operator) -> list[str]:
        inputs = {"x": "float32[n, m] in 0..1000", "sizes": {"n": "1..5", "m": "1..64"}}
        described = {
            "operator": operator,
            "reference": cancelled,
            "inputs": inputs,
            "exclude": {"specials": "they overflow"},
        }
        return wrong(judged(described, checks=["values", "blocks", "layouts", "gradients"]))

    def test_another_order_is_no_difference(self, monkeypatch):
        """Unlike under the usual tolerances, which are for results as large as their terms."""
        assert self.judged(one_by_one) == []
        monkeypatch.setattr(operator_checks, "SWAYS", 0)
        assert "blocks" in self.judged(one_by_one)

    @pytest.mark.parametrize(("units", "fails"), [(2, False), (32, True)])
    def test_a_fault_above_the_bound(self, units, fails):
        """Each of the two sums may move by 8 units in the last place."""
        assert ("values" in self.judged(lambda x: cancelled(x) + units * self.EPS * x.sum(-1))) is fails
