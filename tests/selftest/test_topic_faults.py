"""Planted faults of whole topics: each changes what it names, and programs of operators find each."""

from __future__ import annotations

import pytest
import torch

from conformance.selftest.faults import FUNCTION
from conformance.selftest.mutants import Planted, PlantedAbove, hunt
from conformance.selftest.topic_faults import TOPIC_FAULTS
from conformance.sources.fuzzing.drawing import Drawing
from conformance.sources.fuzzing.kinds import OPERATORS, PERIOD


class OfOperators(Drawing):
    """Only the programs of a seed with the topics of operators."""

    def numbered(self, seed, number, tally=None):
        return super().numbered(seed, 2 * PERIOD * number + OPERATORS.turns[0], tally)


def cell(states):
    return torch.rnn_tanh_cell(torch.ones(2, 3), torch.ones(2, states), torch.ones(4, 3), torch.ones(4, 4))


def into_itself(op, *arguments):
    own = torch.arange(4.0).reshape(2, 2) + 1
    return getattr(torch, op)(own, *arguments, out=own)


def quantized(t):
    return torch.fake_quantize_per_tensor_affine(t, 1.0, 0, 0, 9)


def by_channel(t):
    scales = torch.tensor([1.0, 2.0, 4.0])
    return torch.fake_quantize_per_channel_affine(t, scales, torch.zeros(3, dtype=torch.int32), 1, 0, 9)


ROWS = torch.arange(9.0).reshape(3, 3)
ORDER = torch.tensor([[1, 0], [0, 1]])

# For each fault, a call whose answer it changes, and one that it leaves alone.
SEEN = {
    "fake_quantize reads permuted memory in order": (lambda: quantized(ROWS.t()), lambda: quantized(ROWS)),
    "fake_quantize of a view has one scale": (lambda: by_channel(ROWS.t()), lambda: by_channel(ROWS)),
    "a scan into itself reads what it wrote": (lambda: into_itself("cumsum", 0), lambda: ROWS.cumsum(0)),
    "scatter_add into itself adds twice": (
        lambda: into_itself("scatter_add", 0, ORDER, torch.ones(2, 2)),
        lambda: ROWS.scatter_add(0, ORDER, torch.ones(2, 2)),
    ),
    "gather into itself is accepted": (lambda: into_itself("gather", 0, ORDER), lambda: ROWS.gather(0, ORDER)),
    "a cell accepts a state that does not fit": (lambda: cell(5), lambda: cell(4)),
}


def answer(call):
    try:
        return call()
    except RuntimeError:
        return None


class TestFaults:
    def test_each_has_an_example(self):
        assert SEEN.keys() == TOPIC_FAULTS.keys()

    @pytest.mark.parametrize("name", TOPIC_FAULTS)
    def test_it_changes_what_it_names(self, name):
        fault = TOPIC_FAULTS[name]
        wrong, right = SEEN[name]
        before = answer(wrong), answer(right)
        with PlantedAbove(fault) if fault.level == FUNCTION else Planted(fault):
            changed, same = answer(wrong), answer(right)
        assert changed is not None and (before[0] is None or not torch.equal(changed, before[0]))
        assert torch.equal(same, before[1])

    @pytest.mark.parametrize("name", TOPIC_FAULTS)
    def test_programs_of_operators_find_it(self, name):
        found = hunt(name, OfOperators(), 0, 40)
        assert found.programs is not None and len(found.small.steps) <= 3

    @pytest.mark.slow
    @pytest.mark.parametrize("name", TOPIC_FAULTS)
    def test_other_programs_do_not_show_it(self, name):
        assert hunt(name, Drawing(without=("quantized", "equal outs", "misfits", "overlaps")), 0, 300).programs is None
