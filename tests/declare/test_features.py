"""Features that a device lacks: the oracles that are not judged, and the steps that are not drawn."""

from __future__ import annotations

import torch

from conformance.declare.features import FEATURES
from conformance.engine.loading import load_target
from conformance.program.steps.table import OPS
from conformance.program.unsupported import unsupported_names
from conformance.record.names import ORACLES, SIGNIFICANT_STRIDE
from conformance.standalone.observation import observe
from conformance.standalone.oracles import compare


class TestDeclared:
    def test_what_follows_from_a_lacking_feature_is_not_judged(self):
        """A lacking feature removes its oracles and the steps that consist of it only."""
        target = load_target("cpu:without=storages")
        assert target.facts.oracles == load_target("cpu").facts.oracles - {"alias", "storage"}
        left_out = unsupported_names(target.facts, "step")
        assert "set_view_" in left_out and "as_strided" not in left_out

    def test_a_device_is_judged_by_strides_that_say_where_an_element_lies(self):
        """Significant strides decide about a device. Regression test: half of the findings on the first foreign device
        were strides of dimensions of length 1."""
        tensor = torch.arange(3.0).view(1, 3)
        expected, actual = (observe({"a": torch.as_strided(tensor, (1, 3), (by, 1))}) for by in (3, 1))
        assert not compare(expected, actual, oracles=load_target("device:cpu").facts.oracles)
        wrong = observe({"a": tensor.expand(1, 3).as_strided((1, 3), (3, 0))})
        assert "stride" in {
            mismatch.oracle for mismatch in compare(expected, wrong, oracles=load_target("device:cpu").facts.oracles)
        }
        lacking = load_target("device:cpu,without=strides").facts
        assert not {"stride", SIGNIFICANT_STRIDE} & lacking.oracles
        assert "reshape" in unsupported_names(lacking, "step")

    def test_names_are_those_of_oracles_and_steps(self):
        """A misspelt name would exclude nothing."""
        for feature in FEATURES.values():
            assert feature.oracles <= {*ORACLES}
            assert feature.steps <= {*OPS}
