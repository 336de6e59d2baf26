"""Patterns: one bug in several operators has one pattern, and two bugs have two."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from conformance.engine.loading import describe_target
from conformance.record import patterns
from conformance.record.finding import PROPERTIES, property_of
from conformance.record.names import ORACLES
from conformance.record.patterns import base_operator, by_culprit, pattern_of


@dataclass(frozen=True)
class Seen:
    """A difference."""

    oracle: str
    where: str = "c"
    expected: str = "1"
    actual: str = "2"
    detail: str = ""


def pattern(one: Seen, op: str = "add", is_view: bool = False) -> str:
    """The pattern of a difference, whose property follows from its oracle as in a report."""
    return pattern_of(one, property_of(one.oracle, one.expected, one.actual, one.detail), op, is_view)


def elements(expected: str, actual: str) -> Seen:
    """A wrong value of one element of a larger tensor."""
    detail = f"3 of 9 elements differ (bits), first at (0, 1): expected {expected}, got {actual}"
    return Seen("value", detail=detail)


class TestBaseOperator:
    @pytest.mark.parametrize(
        ("name", "base"),
        [
            ("relu", "relu"), ("relu_", "relu"), ("relu.edge", "relu"), ("nn.functional.relu", "relu"),
            ("nn.BatchNorm2d", "BatchNorm2d"), ("optim.Adam", "Adam"),
            ("op_db.inplace:relu_", "relu"), ("op_db.many:split", "split"), ("torch.relu", "relu"),
            ("__add__", "add"), ("__radd__", "add"), ("__iadd__", "add"), ("__rsub__", "sub"),
            ("linalg.inv", "inv"), ("special.zeta", "zeta"), ("fft.rfft", "rfft"), ("masked.sum", "sum"),
            ("ops.aten.hann_window.periodic", "hann_window"), ("signal.windows.hann", "hann"),
            ("aten.relu.default", "relu"), ("aten.relu_.out", "relu"), ("mylib.scale_.default", "scale"),
            ("as_strided", "as_strided"), ("index_put_.accumulate", "index_put"), ("_", "_"),
        ],
    )  # fmt: skip
    def test_every_spelling_is_the_operator(self, name: str, base: str) -> None:
        assert base_operator(name) == base

    def test_other_operators_keep_their_names(self) -> None:
        """A common beginning or end of two names makes them no one operator."""
        names = ("add", "addmm", "addcmul", "sub", "rsub", "relu", "relu6", "leaky_relu", "view", "view_as", "median")
        assert len({*map(base_operator, names)}) == len(names)


RULES = [
    (Seen("alias", "c", "a", "c"), patterns.COPIES),
    (Seen("alias", "c", "c", "a"), patterns.SHARED),
    (Seen("alias", "c", "a", "b"), patterns.OTHER_MEMORY),
    (elements("nan", "0.0"), patterns.NAN_LOST),
    (Seen("value", expected="nan", actual="1.0"), patterns.NAN_LOST),
    (elements("0.0", "-0.0"), patterns.ZERO_SIGN),
    (elements("-0.0", "0.0"), patterns.ZERO_SIGN),
    (elements("nan", "nan"), "value of add"),
    (elements("0.0", "nan"), patterns.NAN_MADE),
    (elements("709.78", "inf"), patterns.OVERFLOW),
    (elements("inf", "709.78"), "value of add"),
    (elements("1.0", "1.401298464324817e-45"), patterns.BITS_READ),
    (elements("0.0", "1.401298464324817e-45"), "value of add"),
    (elements("1096.6331", "1096.6334"), patterns.LESS_PRECISE),
    (elements("-0.0169", "-0.0144"), "value of add"),
    (elements("(1+0j)", "(1+5.4e-07j)"), patterns.LESS_PRECISE),
    (elements("(1+0j)", "1j"), "value of add"),
    (elements("1.0", "2.0"), "value of add"),
    (Seen("storage"), "aliasing of add"),
    (Seen("dtype", expected="torch.float16", actual="torch.float32"), "results are float32 instead of float16"),
    (Seen("stride", expected="(1, 3)", actual="(2, 1)"), patterns.DENSE),
    (Seen("stride", expected="(6, 2)", actual="(3, 1)"), patterns.DENSE),
    (Seen("stride", expected="(0, 1)", actual="(3, 1)"), patterns.DENSE),
    (Seen("stride", expected="(1, 0)", actual="(2, 1)"), patterns.DENSE),
    (Seen("stride", expected="(1, 3)", actual="(1, 0)"), "strides of add"),
    (Seen("stride", expected="(3, 1)", actual="(1, 2)"), "strides of add"),
    (Seen("stride", expected="(2, 1)", actual="(1, 2)"), patterns.PERMUTED),
    (Seen("stride", expected="(3, 1)", actual="(0, 1)"), "strides of add"),
    (Seen("contiguity", expected="strided", actual="contiguous"), patterns.DENSE),
    (Seen("contiguity", expected="channels_last", actual="contiguous channels_last"), patterns.DENSE),
    (Seen("contiguity", expected="contiguous", actual="strided"), "contiguity flags of add"),
    (Seen("storage_offset", expected="4", actual="0"), patterns.DENSE),
    (Seen("storage_offset", expected="4", actual="2"), "storage offset of add"),
    (Seen("version", expected="1", actual="0"), "in-place writes are counted differently"),
    (Seen("grad", expected="True", actual="False", detail="requires_grad"), "requires_grad is False instead of True"),
    (Seen("grad"), "gradient of add"),
    (Seen("shape", expected="(2,)", actual="(3,)"), "shape of add"),
    (Seen("structure"), "metadata of add"),
    (Seen("kernels"), "kernels of add"),
    (Seen("error", expected="no error", actual="NotImplementedError", detail="not implemented is never a pass: x"),
     "operators are not implemented"),
    (Seen("error", expected="no error", actual="ValueError", detail="size 3 of 'aten::add.out'"),
     "raises ValueError: size of add"),
    (Seen("error", expected="no error", actual="ValueError"), "raises ValueError"),
    (Seen("error", expected="no error", actual="ValueError", detail="torch.add(): wrong size"),
     "raises ValueError: wrong size"),
    (Seen("stride", expected="(3,)", actual="(2, 1)"), "strides of add"),
    (Seen("error", expected="IndexError", actual="no error"), "accepts what torch refuses with IndexError"),
    (Seen("error", expected="IndexError", actual="ValueError"), "raises ValueError instead of IndexError"),
]  # fmt: skip
"""Each rule with a difference that it is for."""


class TestRules:
    @pytest.mark.parametrize(("one", "expected"), RULES)
    def test_a_difference_has_its_pattern(self, one: Seen, expected: str) -> None:
        assert pattern(one) == expected

    def test_every_rule_is_tried(self) -> None:
        """A rule for another oracle needs a row above."""
        assert patterns._OF_ORACLE.keys() <= {rule.oracle for rule, _ in RULES}

    @pytest.mark.parametrize("wrong", ["crash", "timeout", "memory", "device", "harness"])
    def test_an_end_of_the_process_is_one_of_its_operator(self, wrong: str) -> None:
        assert pattern_of(Seen(wrong), wrong, "relu_") == f"{wrong} in relu"

    @pytest.mark.parametrize("op", ["op_db.out:add", "add.out"])
    def test_an_out_argument_is_handled_in_one_place(self, op: str) -> None:
        """One bug there shows in every operator; a wrong value is the operator's."""
        refused = Seen("error", expected="no error", actual="ValueError", detail="wrong size of add")
        assert pattern(Seen("shape", expected="(2,)", actual="(3,)"), op) == patterns.NOT_RESIZED
        assert pattern(refused, op) == "out= raises ValueError"
        assert pattern(Seen("value"), op) == "value of add"

    @pytest.mark.parametrize("oracle", ["value", "storage"])
    def test_a_write_that_a_view_does_not_see_is_the_views(self, oracle: str) -> None:
        """The value oracle or the storage oracle sees it; of another operator, a wrong value stays one."""
        one = Seen(oracle)
        assert pattern_of(one, "aliasing", "select", is_view=True) == patterns.UNSEEN_WRITES
        assert pattern_of(one, "aliasing", "copy_", is_view=False) == "aliasing of copy"
        assert pattern_of(one, "value", "select", is_view=True) == "value of select"


class TestApart:
    """Two bugs do not become one."""

    def test_rules_have_patterns_of_their_own(self) -> None:
        """Rows are alike only if they are faces of one bug, or of one operator and property."""
        of_pattern: dict[str, int] = {}
        for _, expected in RULES:
            of_pattern[expected] = of_pattern.get(expected, 0) + 1
        alike = {patterns.DENSE, patterns.NAN_LOST, patterns.ZERO_SIGN, patterns.LESS_PRECISE, "value of add",
                 "strides of add"}  # fmt: skip
        assert {name for name, count in of_pattern.items() if count > 1} == alike

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ((Seen("value"), "relu"), (Seen("value"), "add")),
            ((elements("1.0", "2.0"), "relu"), (elements("1.0", "2.0"), "relu6")),
            ((Seen("storage"), "copy_"), (Seen("storage"), "fill_")),
            ((Seen("grad"), "mul"), (Seen("grad"), "div")),
            ((Seen("alias", "c", "a", "c"), "t"), (Seen("alias", "c", "c", "a"), "t")),
            ((Seen("dtype", expected="torch.float16", actual="torch.float32"), "mul"),
             (Seen("dtype", expected="torch.float32", actual="torch.float64"), "mul")),
            ((Seen("dtype", expected="torch.float16", actual="torch.float32"), "mul"),
             (Seen("dtype", expected="torch.float32", actual="torch.float16"), "mul")),
            ((Seen("crash"), "relu"), (Seen("crash"), "add")),
            ((Seen("shape"), "relu"), (Seen("shape"), "add")),
            ((Seen("error", expected="no error", actual="ValueError", detail="wrong size"), "add"),
             (Seen("error", expected="no error", actual="ValueError", detail="wrong dtype"), "add")),
            ((Seen("error", expected="IndexError", actual="no error"), "select"),
             (Seen("error", expected="ValueError", actual="no error"), "select")),
        ],
    )  # fmt: skip
    def test_two_bugs_have_two_patterns(self, one: tuple[Seen, str], other: tuple[Seen, str]) -> None:
        assert pattern(*one) != pattern(*other)

    @pytest.mark.parametrize(
        "one",
        [
            Seen("alias", "c", "a", "c"), Seen("dtype", expected="torch.float16", actual="torch.float32"),
            Seen("stride", expected="(1, 3)", actual="(2, 1)"), elements("nan", "0.0"),
            Seen("error", expected="IndexError", actual="no error"),
        ],
    )  # fmt: skip
    def test_one_bug_has_one_pattern_in_every_operator(self, one: Seen) -> None:
        assert len({pattern(one, op) for op in ("add", "mul_", "nn.functional.relu", "op_db:split")}) == 1

    def test_a_wrong_value_is_one_in_all_spellings_of_its_operator(self) -> None:
        spellings = ("relu", "relu_", "relu.edge", "nn.functional.relu", "op_db.inplace:relu_")
        assert {pattern(Seen("value"), op) for op in spellings} == {"value of relu"}


def test_no_pattern_is_empty() -> None:
    """An empty pattern would keep a finding out of every list of causes. Answers and texts may be empty."""
    texts = ("", "no error", "nan", "(2, 1)", "torch.bool", "c")
    for oracle, wrong in itertools.product((*ORACLES, "kernels", "crash", "message", "unheard of"), PROPERTIES):
        for expected, actual, op, is_view in itertools.product(texts, texts, ("add", "_", "", ":"), (True, False)):
            name = pattern_of(Seen(oracle, "c", expected, actual), wrong, op, is_view)
            assert name.strip(), (oracle, wrong, expected, actual, op)


def test_a_backend_is_no_operator():
    """Errors of a backend keep their pattern. Regression test: they became wrong values of an operator `openvino`."""
    said = "raises IndexError: list index out of range"
    for backend in (describe_target("compile:openvino").layer, describe_target("compile:inductor").layer):
        assert by_culprit(said, "error", "aten:view.default", backend) == said
    assert by_culprit("value of view", "value", "aten:view.default", "copy_") == "value of copy"
