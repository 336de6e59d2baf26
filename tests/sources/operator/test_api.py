"""`conformance.check`: silence for a correct operator, the minimized script for a lie."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import ClassVar

import numpy
import pytest
import torch

import conformance
from conformance.record.errors import UsageError
from conformance.run.messages import Death, ExitReason
from conformance.sources.operator.api import SHRINKING, keep_time_to_shrink
from conformance.sources.operator.examine import Budget, CheckRequest, examination, verdicts
from conformance.sources.operator.script import headline
from conformance.sources.operator.verdict import CheckVerdict
from tests.planted import kernels
from tests.planted.kernels import CORRECT, LIES
from tests.sources.operator.judged import judge, print_in_new_process


class Lazy(torch.Tensor):
    """A tensor whose values are not there yet."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError("not computed yet")


SOME = ["values", "layouts", "reads", "unwritten", "mutation"]


def test_a_correct_operator():
    """The verdicts are returned, each with the number of its calls."""
    verdicts = conformance.check(**CORRECT["pointwise"], checks=SOME)
    assert {verdict.check for verdict in verdicts} >= {*SOME} and all(verdict.compared for verdict in verdicts)


def test_a_lie_raises_its_script():
    """The error's text is a script with the other differences as comments."""
    with pytest.raises(AssertionError) as error:
        conformance.check(**LIES["values"], checks=[*SOME, "blocks", "accuracy"])
    text = str(error.value).strip()
    compile(text, "script", "exec")
    assert text.startswith('"""values: result should be')
    assert "# The same fault shows in 3 other checks: layouts, blocks, accuracy" in text and "# Also" not in text
    assert "import tests.planted.kernels  # registers the operator" in text


def test_a_crash_comes_first():
    """It explains the other differences, and a process that dies in several procedures is one line."""
    with pytest.raises(AssertionError) as error:
        conformance.check(**LIES["crash"], checks=["values", "blocks", "repetition", "unwritten"])
    text = str(error.value).strip()
    assert text.startswith('"""crash: the process') and "# Also crash" not in text


def row_sums(x):
    """Reference with the name of the operator, and other values."""
    return x.sum(-1) + 1


def test_a_reference_with_the_name_of_the_operator():
    """The script keeps both apart."""
    with pytest.raises(AssertionError) as error:
        conformance.check(kernels.row_sums, reference=row_sums, inputs={"x": "float32[3]"}, checks=["values"])
    text = str(error.value)
    assert "import row_sums as operator_" in text and "return row_sums(x)" in text and "return operator_(x)" in text


def test_a_local_function():
    """A plain function of a test is judged, and its script defines it."""

    def double(x):
        return x + x * 1.001

    with pytest.raises(AssertionError, match="def double\\(x\\):"):
        conformance.check(double, reference=lambda x: x * 2, inputs={"x": "float32[3]"}, checks=["values"])


def test_checks_from_a_generator():
    """The names may come from an iterator. Formerly the second reader of it found none, and the usual checks ran."""
    request = {"reference": lambda x: x * 2, "inputs": {"x": "float32[3]"}}
    named = (name for name in ("values", "mutation"))
    assert str(conformance.check(lambda x: x + x, **request, checks=named)) == str(
        conformance.check(lambda x: x + x, **request, checks=["values", "mutation"])
    )


def test_tolerances_of_the_user():
    """`rtol` and `atol` replace the usual ones."""
    request = {"reference": torch.exp, "inputs": {"x": "float32[8] in 0..1"}, "checks": ["values"]}
    conformance.check(lambda x: x.exp() * 1.01, **request, rtol=0.1, atol=0.0)
    with pytest.raises(AssertionError):
        conformance.check(lambda x: x.exp() * 1.01, **request)


def test_a_small_result_beside_a_large_one_has_a_tolerance_of_its_own():
    """Regression test: the largest result of a dtype set the tolerance of all, so zeros passed."""
    request = {"reference": lambda x: (x * 1, x * 1e-8), "inputs": {"x": "float32[8] in 1..2"}, "checks": ["values"]}
    assert judge(lambda x: (x * 1, x * 0), **request)["values"].finding.mismatch.where == "result[1]"
    assert not judge(lambda x: (x * 1, x * 1e-8), **request)["values"].finding


def test_a_check_of_one_kind_makes_its_calls_alone():
    """`values` needs no other sizes; `mutation` may show in any call."""
    request = {"reference": torch.neg, "inputs": {"x": "float32[n]", "sizes": {"n": "1..99"}}}
    found = judge(torch.neg, **request, checks=["values", "reads"])
    assert found["crash"].compared == found["values"].compared > 0
    assert judge(torch.neg, **request, checks=["values", "mutation"])["crash"].compared > found["values"].compared


def test_fewer_inputs_are_a_warning():
    """A check that the budget cuts short is never silent."""
    said = r"Not judged: \d+ of \d+ inputs of blocks \(budget=1e-09\), .*[^;]\.$"
    with pytest.warns(UserWarning, match=said):
        verdicts = conformance.check(**CORRECT["pointwise"], checks=["values", "blocks"], budget=1e-9)
    assert sum(verdict.compared for verdict in verdicts if verdict.check in ("values", "blocks")) == 1


def test_fewer_inputs_are_a_failure_when_strict():
    """`strict=True` fails for them, and not for a check that compared all its inputs."""
    with pytest.raises(AssertionError, match=r"^Not judged: .* inputs of values .*--strict makes this a failure\.$"):
        conformance.check(**CORRECT["pointwise"], checks=["values"], budget=0.0, strict=True)
    with warnings.catch_warnings(action="error"):
        conformance.check(**CORRECT["pointwise"], checks=["values"], strict=True)


def test_a_compiler_that_is_too_slow_is_not_silent(monkeypatch):
    """The compiler's limit is one of a clock, so a busy machine may judge less: the check says so."""
    late = lambda work, seconds: iter([("done", 0, ""), ("died", 1, Death(ExitReason.TIMEOUT, "gave no"))])  # noqa: E731
    monkeypatch.setattr("conformance.sources.operator.examine.forked", late)
    with pytest.warns(UserWarning, match=r"Not judged: \d+ of \d+ inputs of compile \(seconds=20\)\."):
        conformance.check(**CORRECT["pointwise"], checks=["compile"])


class TestNothingCompared:
    """A verdict without a comparison is an error, so that it cannot be taken for a pass."""

    @pytest.mark.parametrize(("changes", "reason"), [
        ({"checks": ["values"], "budget": 0.0}, "values: 0 of 1 inputs, the time was over"),
        ({"checks": ["gradcheck"]}, "gradcheck: "),  # the reference has a gradient, or autograd refuses this fork
        ({"checks": ["values"], "exclude": dict.fromkeys(("values", "crash", "hang", "memory"), "why")}, "values: why"),
    ])  # fmt: skip
    def test_it_is_an_error(self, changes, reason):
        """The sentence has the first reason."""
        with pytest.raises(UsageError, match="nothing was compared, so nothing is known of the operator") as error:
            conformance.check(**CORRECT["pointwise"], **changes)
        assert reason in str(error.value)

    def test_calls_that_ended_are_no_verdict_on_values(self):
        """Regression test: the calls of `crash`, which nobody named, counted as compared."""
        request = {"reference": lambda x: x * 2, "inputs": {"x": "float32[n]", "sizes": {"n": "1..9"}}}
        request |= {"checks": ["values"], "exclude": {"dtype": "for accumulation"}}
        with pytest.raises(UsageError, match=r"nothing was compared.*\(values: the dtype differs, which is excluded"):
            conformance.check(lambda x: x.double() * 2, **request)

    def test_an_exit_code_of_0_is_a_crash(self):
        """An operator that ends its process before the first comparison did pass formerly."""
        with pytest.raises(AssertionError, match="crash: the process: expected an answer, got ended its process with"):
            conformance.check(lambda x: os._exit(0), reference=torch.exp, inputs={"x": "float32[3]"})


def test_the_budget_includes_the_time_to_shrink():
    """The first difference keeps it from the later checks, once."""
    request = CheckRequest(**LIES["values"], near="tests.planted.kernels", checks=["values", "layouts", "blocks"])
    budget = Budget(30.0, [])
    found = [CheckVerdict("empty"), *(verdict for verdict in verdicts(examination(request), request))]
    left = [(bool(verdict.finding), budget.left) for verdict in keep_time_to_shrink(found, budget)]
    first = [wrong for wrong, _ in left].index(True)
    assert [seconds for _, seconds in left] == [30.0] * first + [30.0 - SHRINKING] * (len(left) - first)
    assert sum(wrong for wrong, _ in left) > 1


def test_a_script_that_time_kept_from_being_small_says_so(monkeypatch):
    """A difference is smaller on an idle machine than on a busy one, which the message must not hide."""
    monkeypatch.setattr("conformance.sources.operator.api.LONGEST", 0.0)
    request = {"reference": torch.exp, "inputs": {"x": "float32[8] in 0..1"}, "checks": ["values"]}
    cut = r"\n# Not judged: 1 of 1 findings in their smallest form \(time of one finding\)\.$"
    with pytest.raises(AssertionError, match=cut):
        conformance.check(lambda x: x.exp() * 1.01, **request)
    monkeypatch.undo()
    with pytest.raises(AssertionError) as raised:
        conformance.check(lambda x: x.exp() * 1.01, **request)
    assert "Not judged" not in str(raised.value)


def test_a_detail_names_the_reference_and_the_operator():
    """Regression test: it said what torch CPU and the target are off by, also where neither is one of the two."""
    request = {"reference": lambda x: x.cumsum(0) + x.flip(0).cumsum(0), "inputs": {"x": "float32[4000] in 1..2"}}
    found = judge(lambda x: (x.cumsum(0) + x.flip(0).cumsum(0)) * 1.001, **request, checks=["values"])["values"].finding
    assert "in float64, the reference is off by " in found.mismatch.detail
    assert " times the tolerance and the operator by " in found.mismatch.detail


class TestVerdicts:
    """What was compared, as a table and as JSON."""

    INPUTS: ClassVar = {"x": "float32[n, m]", "sizes": {"n": "1..9", "m": "8..16 step 8"}}

    def test_the_table(self):
        """Each check has its number of calls, their sizes, and why it was not judged."""
        request = {"checks": ["values", "empty", "vmap", "fake"], "exclude": {"vmap": "why"}}
        verdicts = conformance.check(lambda x: x + x, reference=lambda x: x * 2, inputs=self.INPUTS, seed=3, **request)
        head, names, *lines = str(verdicts).splitlines()
        assert head.endswith(", on cpu, seed 3") and names.split() == ["check", "calls", "sizes", "not", "judged"]
        rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}
        assert rows["values"] == "24  n 2..9, m 8" and rows["vmap"].split(maxsplit=1) == ["0", "excluded: why"]
        assert rows["empty"].endswith("no call shows it")
        assert rows["fake"].endswith("a plain function has no fake kernel")

    def test_json_has_seed_counts_and_versions(self):
        """A competition stores it, also of a wrong operator."""
        right = conformance.check(lambda x: x + x, reference=lambda x: x * 2, inputs=self.INPUTS, checks=["values"])
        data = json.loads(right.as_json())
        assert data["passed"] and data["seed"] == 0 and data["versions"]["torch"].startswith(torch.__version__[:4])
        row = data["checks"][0]
        assert (row["check"], row["compared"], row["sizes"], row["reason"]) == ("values", 24, "n 2..9, m 8", "")
        with pytest.raises(AssertionError) as error:
            conformance.check(lambda x: x + 1, reference=lambda x: x * 2, inputs=self.INPUTS, checks=["values"])
        data = error.value.verdicts.as_dict()
        assert not data["passed"] and data["checks"][0]["difference"].startswith("value of result: ")

    def test_a_seed_draws_other_inputs(self):
        """An operator that knows the answers for one seed is wrong for another one."""
        known = {}

        def keep(x):
            return known.setdefault(x.numpy().tobytes(), x * 2)

        def remember(x):
            return known.get(x.numpy().tobytes(), x)

        request = {"reference": lambda x: x * 2, "inputs": self.INPUTS, "checks": ["values"]}
        for seed in (0, 5):
            drawn = examination(CheckRequest(lambda x: x, **request, seed=seed)).plan.of("values")
            for call in drawn if not seed else ():
                keep(call.values["x"])
        conformance.check(remember, **request)
        with pytest.raises(AssertionError, match="values: "):
            conformance.check(remember, **request, seed=5)

    def test_strict_wants_a_reason_for_each_check(self):
        """A check for which there was no input fails, and its exclusion is a reason."""
        request = {"reference": lambda x: x * 2, "inputs": self.INPUTS, "checks": ["values", "empty"], "strict": True}
        with pytest.raises(AssertionError, match=r"Not judged: 1 of \d checks: empty \(no input shows it: "):
            conformance.check(lambda x: x + x, **request)
        conformance.check(lambda x: x + x, **request, exclude={"empty": "no size can be 0"})


class TestForbid:
    """Operators of torch that the operator may not call."""

    INPUTS: ClassVar = {"x": "float32[n, m]", "sizes": {"n": "1..9", "m": "1..9"}}

    def test_a_call_of_it_is_found(self):
        """Also below a function that torch takes apart, and in an operator of a library."""
        softmax = lambda x: x.softmax(-1)  # noqa: E731
        request = {"reference": softmax, "inputs": self.INPUTS, "checks": ["forbid"], "forbid": ["aten::_softmax"]}
        with pytest.raises(AssertionError, match="expected none named aten::_softmax, got a call of it"):
            conformance.check(lambda x: x.softmax(-1), **request)
        with pytest.raises(AssertionError, match="expected none named aten::_softmax, got a call of it"):
            conformance.check(kernels.library_softmax, **request)

    def test_an_operator_without_it_passes(self):
        """Forwards and backwards."""
        code = (
            "import torch; from tests.sources.operator.judged import judge\n"
            "softmax = lambda x: x.exp() / x.exp().sum(-1, keepdim=True)\n"
            f"request = {{'inputs': {self.INPUTS!r}, 'checks': ['forbid'], 'forbid': ['aten::_softmax']}}\n"
            "verdict = judge(softmax, reference=lambda x: x.softmax(-1), **request)['forbid']\n"
            "print(verdict.finding, verdict.compared > 0)"
        )
        assert print_in_new_process(code, []) == "None True"

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("aten::slu", "forbid='aten::slu': torch has no such operator; did you mean silu"),
            ("aten::softmax", "forbid='aten::softmax': torch replaces aten::softmax by other operators first"),
            ("nothing::here", "forbid='nothing::here': torch has no such operator; write for example"),
        ],
    )
    def test_a_name_that_no_call_has(self, name, said):
        """It would forbid nothing."""
        with pytest.raises(UsageError, match=said):
            conformance.check(torch.exp, reference=torch.exp, inputs={"input": "float32[3]"}, forbid=[name])


class TestMisuse:
    """A wrong argument is one sentence that names it, and says what to give."""

    REQUEST: ClassVar = {
        "operator": torch.neg,
        "reference": torch.neg,
        "inputs": {"x": "float32[n]", "sizes": {"n": "1..9"}},
    }

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"inputs": torch.ones(2)}, "is a Tensor: describe them, {'x': 'float32[n]'}"),
            ({"inputs": {"x": torch.ones(2, 3)}}, "input 'x' is a Tensor: describe it, for example 'float32[2, 3]'"),
            ({"inputs": {"x": numpy.ones(2)}}, "input 'x' is a ndarray: describe it, for example 'float64[2]'"),
            ({"inputs": {3: "float32[2]"}}, "an input is named 3, which is not an identifier"),
            ({"inputs": {"x": "float32[n]", "sizes": ["n"]}}, "'sizes' is a list: map each size to its range"),
            (
                {"inputs": {"x": "float32[n]", "sizes": {"n": "1000000..2000000"}}},
                "the smallest inputs that are described have 1,000,000 elements, and at most 100,000 are drawn",
            ),
            ({"inputs": {"x": "float32[2] in 5..n", "sizes": {"n": "1..4"}}}, "no inputs have the described sizes and"),
            ({"exclude": {"vmap"}}, "is a set: map each check to a reason, {'vmap': 'why'}"),
            ({"exclude": {"vmap": True}}, "the check 'vmap' is excluded without a reason"),
            ({"exclude": {3: "why"}}, "unknown check '3'; choose from values, "),
            ({"batch": {"x": "0"}}, "batch={'x': '0'}: map arguments to dimensions"),
            ({"dtypes": ["float32"]}, "dtypes= chooses samples of op_db: give it with like= only"),
            ({"dtypes": ["floot32"]}, "dtypes=['floot32']: 'floot32' is no name of a dtype; did you mean float32"),
            (
                {"dtypes": [torch.float16]},
                "dtypes=[torch.float16]: torch.float16 is no name of a dtype; did you mean float",
            ),
            ({"dtypes": "float32"}, "dtypes='float32' is a str: name them, ['float32']"),
            ({"batch": {"y": 0}}, "batch={'y': 0}: there is no such input; choose from x"),
            ({"batch": {"x": 1}}, "batch={'x': 1}: in no call is it a tensor with the dimension 1"),
            ({"checks": []}, "checks=() names none: leave the argument out for the usual checks"),
            ({"dtypes": []}, "dtypes=[] names none: leave the argument out"),
            ({"device": ""}, "device='' names none: leave the argument out for torch CPU"),
            ({"rtol": "0.1", "atol": 0.0}, "rtol='0.1' is a str: give a number, 0 or more"),
            ({"budget": "30"}, "budget='30' is a str: give seconds, 0 or more"),
            ({"seconds": 0}, "seconds=0: give seconds, more than 0"),
            ({"seed": -1}, "seed=-1: give a whole number, 0 or more"),
            ({"seed": True}, "seed=True is a bool: give a whole number, 0 or more"),
            ({"ties": "some"}, "ties='some': give 'any' if each of"),
            ({"strict": "yes"}, "strict='yes' is a str: give True or False"),
            (
                {"reference": lambda x: 1 / 0},
                "raises on every call that the inputs describe, first with ZeroDivisionError",
            ),
            (
                {"reference": lambda x: [x.numpy()]},
                r"the result[0] of the reference is a numpy.ndarray, which cannot be",
            ),
            (
                {"reference": lambda x: x.as_subclass(Lazy)},
                "the result of the reference is a tests.sources.operator.test_api.Lazy, which cannot be compared",
            ),
        ],
    )
    def test_it_is_one_sentence(self, changes, said):
        """None of them begins to judge."""
        with pytest.raises(UsageError) as error:
            conformance.check(**{**self.REQUEST, **changes})
        assert said in str(error.value) and "\n" not in str(error.value)

    @pytest.mark.parametrize(
        ("operator", "reference", "said"),
        [
            (lambda x: x.numpy(), torch.clone, "structure: result should be a Tensor and is a numpy.ndarray"),
            (lambda x: x.tolist(), torch.clone, "structure: result should be a Tensor and is a sequence of "),
            (torch.clone, lambda x: x.tolist(), "and is a Tensor"),
            (torch.clone, lambda x: 3, "structure: result should be an int and is a Tensor"),
            (lambda x: 3, torch.clone, "structure: result should be a Tensor and is an int"),
            (lambda x: x.as_subclass(Lazy), torch.clone, "and is a tests.sources.operator.test_api.Lazy"),
            (lambda x: {"y": x.clone(), "z": x.clone()}, torch.clone, "should be a Tensor and is a dict of 2"),
            (lambda x: x.double(), torch.clone, "dtype: result should have dtype torch.float32 and has torch.float64"),
        ],
    )
    def test_results_whose_values_cannot_be_compared_do_not_pass(self, operator, reference, said):
        """The check of values alone finds them. Regression test: it passed, since nothing asked for `structure`."""
        inputs = {"x": "float32[3]"}
        (found,) = (
            row.finding
            for row in judge(operator, reference=reference, inputs=inputs, checks=["values"]).values()
            if row.finding
        )
        assert said in headline(found)

    def test_an_excluded_dtype_leaves_values_without_a_verdict(self):
        """The reason is in the table."""
        request = {**self.REQUEST, "operator": lambda x: -x.double(), "checks": ["values", "dtype", "repetition"]}
        found = {row.check: row for row in conformance.check(**request, exclude={"dtype": "for accumulation"})}
        assert not found["values"].compared
        assert found["values"].reason == "the dtype differs, which is excluded, so its values cannot be compared"


def test_an_unknown_check():
    """A request that cannot be carried out is no AssertionError."""
    with pytest.raises(UsageError, match="unknown check"):
        conformance.check(torch.exp, like=torch.exp, checks=["valeus"])


def test_the_import_is_cheap():
    """`import conformance` imports neither torch nor the checks."""
    code = "import sys, conformance; raise SystemExit('torch' in sys.modules or 'rich' in sys.modules)"
    assert subprocess.call([sys.executable, "-c", code], cwd=Path(__file__).parents[3]) == 0
