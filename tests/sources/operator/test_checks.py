"""Each lie is found under the name of its check, and correct operators have no difference."""

from __future__ import annotations

import pytest

from conformance.record.errors import UsageError
from conformance.sources.operator.checks import CHECKS, PROCEDURES
from conformance.sources.operator.examine import Request, Verdict, examination, verdicts
from tests.planted.kernels import CORRECT, LIES

COMPILED = ("compile", "dynamic", "inductor")
NEAR = "tests.planted.kernels"


def judged(given: dict, **changes) -> dict[str, Verdict]:
    """The verdicts on a request, by check."""
    request = Request(**{**given, "near": NEAR, **changes})
    return {one.check: one for one in verdicts(examination(request), request)}


def wrong(made: dict[str, Verdict]) -> list[str]:
    return [name for name, one in made.items() if one.found is not None]


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
def test_a_lie_is_found_by_its_check(name):
    """The check alone finds the operator that breaks its promise."""
    assert name in wrong(judged(LIES[name], checks=[name]))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in ("pointwise", "in place") else [pytest.mark.slow]) for name in CORRECT],
)
def test_a_correct_operator_passes(name):
    """No check but those that compile shows a difference, and the values were compared."""
    made = judged(CORRECT[name], checks=[name for name in CHECKS if CHECKS[name].usual and name not in COMPILED])
    assert wrong(made) == []
    assert made["values"].compared and made["reads"].compared and made["unwritten"].compared


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_operator_passes_compiled(name):
    """Compilers change nothing about a correct operator."""
    made = judged(CORRECT[name], checks=COMPILED)
    assert wrong(made) == [] and any(made[name].compared for name in COMPILED)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LIES if "checks" not in LIES[name]])
def test_a_lie_is_found_among_all_checks(name):
    """A run of all usual checks finds it by its name, too."""
    assert name in wrong(judged(LIES[name]))


class TestRequest:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"like": None}, "give either like="),
            ({"reference": abs}, "give either like="),
            ({"inputs": {}}, "like= takes the inputs from op_db"),
            ({"like": None, "reference": abs}, "reference= needs inputs="),
            ({"checks": ["valeus"]}, "did you mean values"),
            ({"exclude": {"values": " "}}, "excluded without a reason"),
            ({"like": "nn.functional.slu"}, "op_db has no operator"),
            ({"like": print}, "op_db has no operator that calls 'print'"),
            ({"like": "add"}, "takes the arguments of no sample of add"),
            ({"dtypes": ["int64"]}, "no samples of nn.functional.silu in int64"),
            ({"like": None, "reference": abs, "inputs": {"y": "float32[2]"}}, "has no argument 'y'"),
            ({"like": None, "reference": lambda: 1, "inputs": {"x": "float32[2]"}}, "raises on every call"),
        ],
    )
    def test_a_contradiction_is_one_sentence(self, changes, said):
        """The error says what to give instead."""
        with pytest.raises(UsageError, match=said) as error:
            judged({**CORRECT["pointwise"], **changes})
        assert "\n" not in str(error.value)

    def test_an_argument_without_a_description(self):
        """An argument without a default must be described."""
        with pytest.raises(UsageError, match="needs the argument 'by'"):
            judged(CORRECT["in place"], inputs={"x": "float32[3]"})

    def test_an_excluded_check_does_not_run(self):
        """It keeps its reason."""
        made = judged(LIES["values"], checks=["values", "dtype"], exclude={"values": "known"})
        assert made["values"] == Verdict("values", reason="known", excluded=True) and wrong(made) == []

    def test_a_missing_part_is_a_reason(self):
        """An operator without a derivative is not judged for it, and says so."""
        made = judged(CORRECT["reduction"], checks=["gradients", "gradcheck"])
        assert made["gradients"].reason == "the operator registers no derivative" and not made["gradients"].compared
