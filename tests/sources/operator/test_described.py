"""Inputs that a description allows, and smaller ones."""

from __future__ import annotations

import pytest
import torch

import conformance
from conformance.sources.operator.examine import CheckRequest, examination, examined
from conformance.sources.operator.finding import in_writable_size, is_writable
from conformance.sources.operator.inputs import described_sizes, parse, smaller_inputs
from conformance.sources.operator.verdict import Difference

ROWS = parse(
    {
        "x": "float32[n, 2*m]",
        "index": "int64[k] in 0..n-1 unique",
        "by": "float in 0.5..2 | None",
        "shape": "[m, n]",
        "sizes": {"n": "2..9", "m": "8..128 step 8", "k": "0..n"},
    }
)


def inputs(n=3, m=8, k=2, **changes):
    """Inputs of these sizes."""
    index = torch.arange(k).flip(0)
    return {"x": torch.ones(n, 2 * m), "index": index, "by": 0.75, "shape": [m, n], **changes}


class TestDescribedSizes:
    def test_they_are_those_of_the_dimensions(self):
        """Each alternative is one."""
        assert described_sizes(ROWS, inputs(), {}) == {"n": 3, "m": 8, "k": 2}
        assert described_sizes(ROWS, inputs(4, 16, 0, by=None), {}) == {"n": 4, "m": 16, "k": 0}

    @pytest.mark.parametrize(
        "changes",
        [
            {"x": torch.ones(3, 17)},  # no multiple of 2
            {"x": torch.ones(3, 18), "shape": [9, 3]},  # m is no multiple of 8
            {"x": torch.ones(3, 272), "shape": [136, 3]},  # m is too large
            {"x": torch.ones(1, 16), "shape": [8, 1], "index": torch.tensor([0])},  # n is too small
            {"x": torch.ones(16)},  # another number of dimensions
            {"x": torch.ones(3, 16, dtype=torch.float64)},
            {"shape": [8, 4]},  # another n
            {"index": torch.tensor([0, 3])},  # out of its range
            {"index": torch.tensor([1, 1])},  # not unique
            {"index": torch.arange(4)},  # k is larger than n
            {"by": 3.0},
            {"by": 1},
        ],
    )
    def test_others_are_not_allowed(self, changes):
        """Each way to leave a description."""
        assert described_sizes(ROWS, inputs(**changes), {}) is None

    def test_an_argument_is_missing(self):
        """A script calls the operator with all of them."""
        values = inputs()
        del values["by"]
        assert described_sizes(ROWS, values, {}) is None

    def test_a_dtype_may_change(self):
        """As in the check `mixed`."""
        assert described_sizes(ROWS, inputs(x=torch.ones(3, 16).double()), {}, any_dtype=True)

    def test_a_size_that_no_dimension_tells(self):
        """It stays what it was."""
        hidden = parse({"x": "float32[n*n]", "sizes": {"n": "1..9"}})
        assert described_sizes(hidden, {"x": torch.ones(9)}, {"n": 3}) == {"n": 3}
        assert described_sizes(hidden, {"x": torch.ones(9)}, {"n": 4}) is None

    def test_a_dimension_that_is_arithmetic_of_one_size(self):
        """It tells the size, such as the number of sequences between offsets."""
        offsets = parse({"x": "float32[2*n+1]", "sizes": {"n": "1..9"}})
        assert described_sizes(offsets, {"x": torch.ones(7)}, {"n": 8}) == {"n": 3}
        assert described_sizes(offsets, {"x": torch.ones(8)}, {"n": 3}) is None

    @pytest.mark.parametrize("kind", ["values", "blocks", "empty", "layouts", "magnitudes", "specials"])
    def test_drawn_inputs_are_allowed(self, kind):
        """The shrinker begins with them."""
        description = {
            "x": "float32/bfloat16[n, 2*m]",
            "low": "bfloat16[m] in 0.1..0.7",
            "index": "int64[k] in 0..n-1 sorted",
            "sizes": {"n": "1..9", "m": "0..24 step 8", "k": "0..n"},
        }
        function = lambda x, low, index: x * 1.0  # noqa: E731
        trial = examination(CheckRequest(function, reference=function, inputs=description))
        calls = trial.plan.of(kind)
        assert calls
        assert all(described_sizes(trial.description, call.values, call.sizes) == call.sizes for call in calls)


def test_smaller_inputs_are_allowed():
    """One size is smaller in each, by its step, and all that depends on it follows."""
    values = inputs(5, 32, 2)
    sizes = [described_sizes(ROWS, each, {}) for each in smaller_inputs(ROWS, values, {"n": 5, "m": 32, "k": 2})]
    assert sizes == [
        {"n": 2, "m": 32, "k": 2}, {"n": 3, "m": 32, "k": 2}, {"n": 4, "m": 32, "k": 2},
        {"n": 5, "m": 8, "k": 2}, {"n": 5, "m": 16, "k": 2}, {"n": 5, "m": 24, "k": 2},
        {"n": 5, "m": 32, "k": 0}, {"n": 5, "m": 32, "k": 1},
    ]  # fmt: skip


def test_a_script_stays_inside_the_description():
    """Regression test: it had `torch.zeros(1, 1)`, and the sizes of the first failure in its first line."""

    def scaled(x, index):
        return x[index] * 1.01

    request = {"x": "float32[n, m] in 1..3", "index": "int64[n] in 0..n-1 unique"}
    request["sizes"] = {"n": "2..9", "m": "8..120 step 8"}
    with pytest.raises(AssertionError) as error:
        conformance.check(scaled, reference=lambda x, index: x[index], inputs=request, checks=["values"])
    text = str(error.value)
    assert "(n = 2, m = 8)" in text.splitlines()[1] and "x = torch.ones(2, 8)" in text


def test_a_call_that_is_too_large_for_a_script_gets_smaller():
    """Its script had no inputs. Regression test: only sizes that are large together show the fault."""
    inputs = {"x": "float32[n, m]", "sizes": {"n": "1..200", "m": "1..200"}}
    wrong = lambda x: x * 3 if min(x.shape) > 16 else x * 2  # noqa: E731
    trial = examination(CheckRequest(wrong, reference=lambda x: x * 2, inputs=inputs))
    largest = max(trial.plan.of("blocks"), key=lambda call: call.values["x"].numel())
    (finding,) = (item for item in examined(trial, "compare", [largest]) if isinstance(item, Difference))
    assert not is_writable(finding.call)
    small = in_writable_size(trial, finding, lambda: False)
    assert is_writable(small.call) and small.call.note == "n = 50, m = 200" and small.check == "blocks"
    assert in_writable_size(trial, finding, lambda: True) is finding
