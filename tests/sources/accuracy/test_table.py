"""The accuracy table: it covers op_db, its rows are valid programs, and its exact answers are exact."""

from __future__ import annotations

import math

import pytest
import torch

from conformance.record.accuracy import Accuracy, limit
from conformance.record.errors import UsageError
from conformance.sources.accuracy import reference
from conformance.sources.accuracy.measure import built
from conformance.sources.accuracy.table import AccuracyRow, load, select
from conformance.standalone.accuracy import NO_NUMBER, beyond, errors, rms


@pytest.fixture
def row() -> AccuracyRow:
    return AccuracyRow("log1p", "elementary", "torch.log1p(x)", "log1p(x)", (-1.0, math.inf), ("-1",))


class TestTable:
    def test_every_floating_op_is_there(self):
        """Each OpInfo that supports float32 has a row or a reason for its absence, and every reason names an existing
        op."""
        from conformance.standalone.torch_compat import op_db

        rows, reasons = load()
        named = {op.name + f".{op.variant_test_name}" * bool(op.variant_test_name): op for op in op_db().ops}
        floating = {name for name, one in named.items() if torch.float32 in one.dtypes}
        left_out = [name for names in reasons.values() for name in names]
        assert floating <= {row.name for row in rows} | {*left_out}
        assert {*left_out} <= {*named}
        assert not {*left_out} & {row.name for row in rows} and len(left_out) == len({*left_out})

    @pytest.mark.slow
    def test_programs_compile(self):
        """Each row is a program of its inputs, and an elementary one has points of each kind in each dtype."""
        for row in load()[0]:
            program, _ = built(row)
            assert program.__code__.co_varnames == row.arguments
            if row.exact:
                for dtype in (torch.float16, torch.float64):
                    drawn = reference.points(row, dtype, 0)
                    assert len(drawn) == 2 + bool(row.near)
                    assert all(len(each[0]) > 20 for each in drawn.values()), (row.name, dtype)

    def test_float64_is_for_elementary_functions(self):
        """Ops whose reference is computed in float64 are not measured in float64."""
        assert {case.row.family for case in select([], ["float64"], ["forward"])} == {
            "elementary",
            "special",
            "activations",
        }
        with pytest.raises(UsageError, match="float64"):
            select(["mean"], ["float64"], ["forward"])


class TestReference:
    def test_points_reach_the_ends(self, row):
        """Points lie strictly inside the range, are never subnormal, and cover all exponents."""
        drawn = reference.points(row, torch.float32, 0)
        everywhere = drawn["all exponents"][0]
        assert everywhere.min() > -1 and everywhere.abs().min() < 1e-35 and everywhere.max() > 1e35
        assert (drawn["near -1"][0] + 1).abs().min() < 1e-6
        again = reference.points(row, torch.float32, 0)
        assert all(torch.equal(a[0], b[0]) for a, b in zip(drawn.values(), again.values(), strict=True))

    def test_answers_have_more_bits_than_float64(self, row):
        """The two parts together have more bits than float64, and the derivative is right."""
        x = torch.tensor([2.0, 1e-30], dtype=torch.float64)
        high, low = reference.exact(row, [x])
        # log(3) = 1.0986122886681098 (float64) + 9.07...e-17, from its digits 1.09861228866810969139524523692253
        assert high[0] == math.log(3) and low[0] == pytest.approx(-9.07129723e-17, rel=1e-6)
        assert reference.exact(row, [x], 0)[0].tolist() == [1 / 3, 1.0]

    @pytest.mark.parametrize("at", [1e-300, 1e-30, 0.75, 700.0])
    def test_derivatives_of_any_magnitude(self, at):
        """The derivative of exp is exp, even next to 0, where a difference quotient cancels nearly all bits."""
        row = AccuracyRow("exp", "elementary", "torch.exp(x)", "exp(x)")
        x = [torch.tensor([at], dtype=torch.float64)]
        assert [part.tolist() for part in reference.exact(row, x, 0)] == [
            part.tolist() for part in reference.exact(row, x)
        ]

    def test_no_real_answer(self):
        """Outside a function's domain, and at its poles, no finite answer exists to measure."""
        row = AccuracyRow("log", "elementary", "torch.log(x)", "log(x)")
        assert not reference.exact(row, [torch.tensor([-1.0, 0.0])])[0].isfinite().any()


class TestErrors:
    def test_ulp_of_each_or_of_the_largest(self):
        """The ulp is that of each answer for an elementary function, and that of the largest element for any other."""
        exact, off = torch.tensor([1.0, 100.0], dtype=torch.float64), torch.tensor([2.0**-23, 0.0], dtype=torch.float64)
        assert errors(exact + off, exact, 0 * exact, torch.float32, True).tolist() == [1, 0]
        assert errors(exact + off, exact, 0 * exact, torch.float32, False).tolist() == [1 / 64, 0]

    def test_no_number(self):
        """nan and the infinities have the largest possible error, which JSON can represent."""
        got, exact = torch.tensor([math.nan, math.inf, 1.0]), torch.ones(3, dtype=torch.float64)
        ulp_errors = errors(got, exact, 0 * exact, torch.float32, True)
        assert ulp_errors.tolist() == [NO_NUMBER, NO_NUMBER, 0] and math.isfinite(rms(ulp_errors))

    def test_rule(self):
        """An error up to 2 ulp is no finding. Above that, the limit is 4 times torch CPU's error, both for the largest
        and the mean."""
        assert limit(0) == limit(0.5) == 2 and limit(3) == 12
        assert Accuracy("result", 2.0, 0.1, 1.0, 0.1).excess == 1
        assert Accuracy("result", 12.1, 3.0, 1.0, 0.1).excess > 1
        assert Accuracy("result", 12.0, 3.0, 2.1, 0.1).excess > 1
        assert beyond(torch.tensor([2.1, 0]), torch.tensor([0.5, 0])) and not beyond(torch.ones(2), torch.zeros(2))
