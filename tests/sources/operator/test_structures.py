"""Described inputs with a structure, lists of tensors, and dataclasses."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import conformance
from conformance.record.errors import UsageError
from conformance.sources.operator.examine import CheckRequest, examination, verdicts
from conformance.sources.operator.finding import minimized
from conformance.sources.operator.inputs import described_sizes, smaller_inputs
from conformance.sources.operator.script import script
from conformance.sources.operator.structures import WORDS, has_structure

FORMS = {
    "unique": "int32[n, m] in 0..n*m+5 unique",
    "sorted": "float32[n, m] in 0..3 sorted",
    "permutation": "int64[n, m] permutation",
    "offsets": "int32[n+1] in 0..m offsets",
    "one_hot": "float32[n, m] one_hot",
    "probabilities": "float32/bfloat16[n, m] probabilities",
    "clustered": "float32[n, m] clustered",
    "constant_rows": "float32[n, m] constant_rows",
    "lower_triangular": "float32[n, n] lower_triangular",
    "upper_triangular": "float32[n, m] upper_triangular",
    "positive_definite": "float32[n, n] positive_definite",
}
SIZES = {"n": "1..12", "m": "2..20"}


@dataclass
class Batch:
    """An argument with two tensors."""

    rows: torch.Tensor
    scale: torch.Tensor


def scaled_rows(batch, by):
    return batch.rows * batch.scale * by


def wrongly_scaled_rows(batch, by):
    return batch.rows * (batch.scale + 0.01) * by


def add_all(xs, y):
    return torch.stack([x.sum() for x in xs]).sum() + y


def add_all_but_the_fourth(xs, y):
    return add_all([x for at, x in enumerate(xs) if at != 3], y)


BATCH = {"batch": {"type": Batch, "rows": "float32[n, m]", "scale": "float32[m]"}, "by": "float in 1..2"}


class TestWords:
    """A word gives random values a structure, without which a kernel never gets a valid input."""

    def test_each_word_is_tested(self):
        assert {*FORMS} == {*WORDS}

    @pytest.mark.parametrize("word", WORDS)
    def test_drawn_and_smaller_inputs_have_it(self, word):
        """So has each call of the plan, in any layout, and each smaller one."""
        function = lambda x, rest: x + 1  # noqa: E731
        inputs = {"x": FORMS[word], "rest": "float32[n, m]", "sizes": SIZES}
        trial = examination(CheckRequest(function, reference=function, inputs=inputs))
        assert len(trial.plan.of("values")) > 5 and trial.plan.of("blocks")
        for call in trial.plan.calls:
            if call.kind == "mixed":
                continue
            sizes = described_sizes(trial.description, call.values, call.sizes)
            assert sizes == call.sizes, (call.kind, call.note)
            for smaller in smaller_inputs(trial.description, call.values, sizes):
                assert described_sizes(trial.description, smaller, {**sizes}) is not None

    def test_values_without_it_are_not_allowed(self):
        """So no script shows them."""
        ends = 0.0, 3.0
        assert not has_structure(WORDS["one_hot"], torch.ones(1, 2), *ends)
        assert not has_structure(WORDS["offsets"], torch.tensor([0, 2, 2]), *ends)
        assert not has_structure(WORDS["probabilities"], torch.ones(1, 2), *ends)
        assert not has_structure(WORDS["positive_definite"], torch.ones(2, 2), *ends)
        assert not has_structure(WORDS["permutation"], torch.tensor([0, 0]), *ends)

    def test_clustered_maxima_lie_side_by_side(self):
        """The largest elements of a row are neighbours, at another place in each row."""
        trial = examination(
            CheckRequest(torch.exp, reference=torch.exp, inputs={"input": FORMS["clustered"], "sizes": SIZES})
        )
        x = max((call.values["input"] for call in trial.plan.of("values")), key=lambda x: x.shape)
        tops = [(row > 4).nonzero().flatten().tolist() for row in x]
        assert all(len(row) <= 4 for row in tops) and len({*map(tuple, tops)}) > 1

    @pytest.mark.parametrize(("text", "said"), [
        ("float32[n] one_hott", "'one_hott' is no word for a tensor; did you mean one_hot"),
        ("float32[n] permutation", "needs whole numbers, for example int64"),
        ("float32[n] lower_triangular", "needs 2 dimensions"),
        ("int64[n] offsets", "needs a range"),
    ])  # fmt: skip
    def test_a_word_that_does_not_fit_is_one_sentence(self, text, said):
        """The sentence says what to write instead."""
        with pytest.raises(UsageError, match=said) as error:
            conformance.check(torch.exp, reference=torch.exp, inputs={"input": text, "sizes": SIZES})
        assert "\n" not in str(error.value)


class TestLists:
    """Lists of tensors."""

    @pytest.mark.parametrize("xs", ["k * float32[n]", ["float32[n]", "float32[n, 2]", "float32[3]", "float32[n]"]])
    def test_a_list_of_tensors(self, xs):
        """A wrong operator is found, and the script has the list."""
        inputs = {"xs": xs, "y": "float32[n]", "sizes": {"n": "1..9", "k": "1..5"}}
        assert conformance.check(add_all, reference=add_all, inputs=inputs, checks=["values", "layouts"])[0].compared
        with pytest.raises(AssertionError, match=r"add_all_but_the_fourth\(\["):
            conformance.check(add_all_but_the_fourth, reference=add_all, inputs=inputs, checks=["values"])

    def test_a_list_of_other_things(self):
        """It must be described by tensors alone."""
        with pytest.raises(UsageError, match="a list of tensors and other things"):
            conformance.check(torch.exp, reference=torch.exp, inputs={"input": ["float32[3]", "int"]})


class TestDataclasses:
    """Arguments that are dataclasses are described by their fields."""

    def test_a_right_operator(self):
        """It gets the class, also in other layouts, and under autograd."""
        inputs = {**BATCH, "sizes": SIZES}
        found = conformance.check(scaled_rows, reference=scaled_rows, inputs=inputs, checks=["values", "layouts"])
        assert all(row.compared for row in found if row.check in ("values", "layouts"))

    def test_the_script_of_a_wrong_operator_runs(self, standalone):
        """It makes the class of its fields."""
        request = CheckRequest(
            wrongly_scaled_rows, reference=scaled_rows, inputs={**BATCH, "sizes": SIZES}, checks=["values"]
        )
        trial = examination(request)
        (difference,) = (verdict.finding for verdict in verdicts(trial, request) if verdict.finding)
        text = script(trial, minimized(trial, difference))
        assert "wrongly_scaled_rows(by=by, batch=Batch(rows=rows, scale=scale))" in text
        ended = standalone(text)
        assert ended.returncode == 1 and "values of result" in ended.stdout, ended.stderr

    @pytest.mark.parametrize(("inputs", "said"), [
        ({"batch": {"rows": "float32[3]"}}, "a dict without a dataclass: give it as 'type'"),
        ({"batch": {"type": dict, "rows": "float32[3]"}}, "a dict without a dataclass"),
        ({"batch": {"type": Batch, "rows": "float32[3]"}, "rows": "float32[3]"}, "describe 'rows' twice"),
    ])  # fmt: skip
    def test_a_dict_that_is_no_dataclass(self, inputs, said):
        """The sentence says what to give."""
        with pytest.raises(UsageError, match=said):
            conformance.check(scaled_rows, reference=scaled_rows, inputs=inputs)
