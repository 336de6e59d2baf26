"""Causes: findings and op_db cases of one pattern are listed once, the smallest example first."""

from __future__ import annotations

from conformance.record.causes import causes_of
from conformance.record.result import SHOWS, Failure, Outcome, Result
from tests.report.runs import fuzz_finding, result

COPIES = "results are copies instead of views"
COPY = Failure("alias", "result", "args[0]", "result", call="torch.t(a)")
"""A difference in a case of op_db that has the pattern `COPIES`."""


def program(op: str, pattern: str = COPIES, **more: object) -> Result:
    """A finding of drawn programs."""
    return fuzz_finding(f"alias / {op}", **{"property": "aliasing", "op": op, "pattern": pattern, **more})


def case(op: str, failure: Failure = COPY, outcome: Outcome = Outcome.FAIL) -> Result:
    """A case of op_db."""
    return result(op, outcome, failed=1, failures=(failure,))


class TestOneCause:
    def test_programs_and_cases_of_one_pattern(self) -> None:
        """Each finding and each case of one bug was a separate entry of a report."""
        (cause,) = causes_of([program("t"), case("squeeze"), case("nn.functional.unfold"), program("select")])
        assert cause.title == f"{COPIES}: 4 operators"
        assert cause.seen == "2 findings, 2 op_db cases"
        assert {*cause.operators} == {"t", "select", "squeeze", "unfold"}

    def test_one_operator_in_two_spellings(self) -> None:
        value = Failure("value", "result", "1", "2")
        (cause,) = causes_of([program("relu_", "value of relu"), case("nn.functional.relu", value)])
        assert (cause.title, cause.operators, cause.seen) == ("value of relu", ("relu",), "1 finding, 1 op_db case")

    def test_one_reported_bug(self) -> None:
        """A bug in several operators with a wrong value each was as many causes."""
        known = [program(op, f"value of {op}", upstream="known: pytorch#198118") for op in ("pinv", "polar")]
        unknown = [program(op, f"value of {op}", upstream="not in the index") for op in ("neg", "exp")]
        assert [cause.title for cause in causes_of(known)] == ["known: pytorch#198118: 2 operators"]
        assert len(causes_of([*known, *unknown])) == 3

    def test_cases_of_a_table_are_no_op_db_cases(self) -> None:
        """The operators of a traced script were called cases of op_db."""
        (cause,) = causes_of([case("mm", Failure("value", "r", "1", "2")).replace(layout="trace")])
        assert cause.seen == "1 case"

    def test_checks_of_an_operator(self) -> None:
        """Each had a heading of its own, though one fault shows in many."""
        wrong = [("values", "values"), ("gradients", "values"), ("vmap", "vmap")]
        found = [
            result("f", Outcome.FAIL, failed=1, failures=(Failure(check, "result", "1", "2", cause=cause),)).replace(
                layout="operator", variant=check
            )
            for check, cause in wrong
        ]
        causes = {cause.pattern: cause.seen for cause in causes_of(found)}
        assert causes == {"values of f": "2 checks: gradients, values", "vmap of f": "1 check: vmap"}

    def test_two_patterns_are_two_causes(self) -> None:
        causes = causes_of(
            [program("t"), program("relu", "value of relu"), case("add", Failure("value", "r", "1", "2"))]
        )
        assert {cause.pattern for cause in causes} == {COPIES, "value of add", "value of relu"}

    def test_declared_and_expected_results(self) -> None:
        """A declared finding has a cause; a passing case and an XPASS have none."""
        known = program("t").replace(outcome=Outcome.XFAIL)
        passed, gone = result("add", Outcome.PASS), result("sub", Outcome.XPASS)
        assert [cause.results for cause in causes_of([passed, gone, known])] == [(known,)]

    def test_a_flaky_finding_is_one_of_its_own(self) -> None:
        flaky = program("t", f"flaky: {COPIES}", kind="FLAKY")
        assert [cause.pattern for cause in causes_of([flaky, program("select")])] == [COPIES, f"flaky: {COPIES}"]

    def test_names_are_cut(self) -> None:
        (cause,) = causes_of(case(f"op{number:02}") for number in range(15))
        assert cause.named.startswith("op00, op01, ")
        assert cause.named.endswith(", op11, and 3 more")


class TestTitle:
    def test_a_single_finding_keeps_its_own(self) -> None:
        (cause,) = causes_of([program("as_strided")])
        assert cause.title == "aliasing / as_strided"

    def test_the_operator_that_others_call(self) -> None:
        """Findings are named by the operator to blame. Regression test: a device's `sub` promoted to float64, and the
        heading was "metadata / trapezoid"."""
        doubled, wrong = "results are float64 instead of float32", {"property": "metadata", "culprit": "sub"}
        (cause,) = causes_of([program("trapezoid", doubled, **wrong)])
        assert (cause.title, cause.operators) == ("metadata of sub", ("sub",))
        (cause,) = causes_of([program("trapezoid", doubled, **wrong), program("sub_", doubled, **wrong)])
        assert (cause.title, cause.operators) == ("metadata of sub", ("sub",))
        (cause,) = causes_of([program("outer", "value of mul", property="value", culprit="mul")])
        assert cause.title == "value of mul"
        compiled = program("outer", "value by AOTAutograd: pass x", property="value", culprit="AOTAutograd: pass x")
        assert causes_of([compiled])[0].operators == ("outer",)

    def test_a_single_case_has_the_pattern(self) -> None:
        (cause,) = causes_of([case("t")])
        assert cause.title == COPIES

    def test_a_result_without_a_pattern(self) -> None:
        """A result file of an earlier version names none: each finding is a separate cause."""
        causes = causes_of([program("t", ""), program("select", "")])
        assert [cause.title for cause in causes] == ["aliasing / select", "aliasing / t"]


class TestOrder:
    def test_the_smallest_example_is_first(self) -> None:
        """Shrunk programs by their steps, then cases by their call, then programs that are not shrunk."""
        short, long = program("t", steps=1), program("select", steps=30)
        drawn = program("expand", steps=2, shrunk=False)
        call, longer = (
            case("mT"),
            case("squeeze", Failure("alias", "result", "args[0]", "result", call="torch.f(a, 1)")),
        )
        (cause,) = causes_of([drawn, longer, call, long, short])
        assert cause.results == (short, long, call, longer, drawn)

    def test_an_example_whose_script_shows_it_is_first(self) -> None:
        lost, shows = program("t", steps=1).replace(alone="it ends with exit code 0"), program("select", steps=4)
        (cause,) = causes_of([lost, shows.replace(alone=SHOWS)])
        assert [one.finding.op for one in cause.results if one.finding] == ["select", "t"]

    def test_the_worst_cause_is_first(self) -> None:
        """In the order of findings: by property, then by number of programs."""
        wording = fuzz_finding("error / x", property="wording", op="x", pattern="raises A instead of B", count=90)
        crash = fuzz_finding("crash / y", "CRASH", property="crash", op="y", pattern="crash in y")
        few = fuzz_finding("value / a", property="value", op="a", pattern="value of a", count=2)
        many = fuzz_finding("value / b", property="value", op="b", pattern="value of b", count=3)
        causes = causes_of([wording, few, many, program("t"), crash])
        assert [cause.pattern for cause in causes] == ["crash in y", COPIES, "value of b", "value of a",
                                                       "raises A instead of B"]  # fmt: skip

    def test_the_order_of_the_results_is_none(self) -> None:
        results = [program("t", steps=1), program("select", steps=1), case("mT"), program("relu", "value of relu")]
        assert causes_of(results) == causes_of(reversed(results))
