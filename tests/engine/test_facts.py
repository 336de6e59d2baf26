"""Facts: what follows from a feature or a transform is derived, and the engine names nothing of the fuzzer."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import conformance.engine
from conformance.declare.features import FEATURES
from conformance.engine.facts import TargetFacts
from conformance.engine.loading import describe_target
from conformance.engine.probe import TRIALS, VIEWS
from conformance.program.steps.table import FAMILIES
from conformance.program.unsupported import STATE_NAMES, TRAITS, unsupported_names
from conformance.record.measurements import EXTENTS
from conformance.record.names import ORACLES, SIGNIFICANT_STRIDE

EVERY = TargetFacts(oracles=frozenset({*ORACLES, SIGNIFICANT_STRIDE}))


class TestLacks:
    @pytest.mark.parametrize("name", FEATURES)
    def test_its_oracles_and_steps_are_left_out(self, name):
        """A feature that is missing from the start, or found missing later, costs the same oracles and steps."""
        later, first = EVERY.without([name]), TargetFacts(oracles=EVERY.oracles, lacks=frozenset({name}))
        assert later == first
        assert not FEATURES[name].oracles & later.oracles
        assert FEATURES[name].steps <= unsupported_names(later, "step")

    def test_they_stay_left_out(self):
        """Oracles that a later change names again are judged only if their features are there."""
        lacking = EVERY.without({"strides"})
        assert dataclasses.replace(lacking, oracles=EVERY.oracles).oracles == lacking.oracles
        assert not {"stride", SIGNIFICANT_STRIDE, "contiguity"} & lacking.oracles

    def test_a_storage_that_cannot_be_read_whole_is_not_compared(self):
        """Without `set_` and without `as_strided`, nothing reads the bytes outside of all views."""
        assert "storage" in EVERY.without({"set_"}).oracles and "storage" in EVERY.without({"as_strided"}).oracles
        assert "storage" not in EVERY.without({"set_", "as_strided"}).oracles


def test_a_transform_counts_what_it_compiles():
    """The measures of a transform are there once, also after a change of the facts."""
    facts = dataclasses.replace(TargetFacts(transforms_program=True), lazy=True)
    assert facts.measures == EXTENTS


def test_facts_do_not_change():
    """Two targets may share facts, so one of them cannot change the other's."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        describe_target("cpu").facts.lazy = True


def test_the_engine_names_nothing_of_the_fuzzer():
    """The engine has no name of a step family, a state or a trait: those belong to `program/unsupported.py`."""
    operators_and_trials = {*TRIALS, *VIEWS, "empty_strided"}
    names = {*FAMILIES, *STATE_NAMES, *TRAITS} - operators_and_trials
    text = "".join(file.read_text() for folder in conformance.engine.__path__ for file in Path(folder).glob("*.py"))
    assert len(text) > 50_000
    assert [name for name in sorted(names) if f'"{name}"' in text] == []
