"""Observations: each fact of a tensor has one reader, which observations, scripts and traces share."""

from __future__ import annotations

import torch

from conformance.record.names import METADATA, ORACLES
from conformance.standalone.observation import FACTS, metadata_of, observe
from conformance.standalone.oracles import facts_of
from conformance.standalone.script_runtime import tensor_facts


def test_each_name_has_a_reader():
    """A name without a reader would be an oracle that compares nothing, and a reader without a name a fact that no
    oracle compares."""
    assert tuple(FACTS) == METADATA and {*METADATA} < {*ORACLES}


def test_a_script_reads_the_same_facts():
    """The table of an observation and that of a script have the same facts of a tensor."""
    tensor = torch.arange(6.0).view(2, 3).t()[1:]
    seen = facts_of(observe({"a": tensor}))
    in_script = tensor_facts(tensor, "a", "a", None)
    assert in_script.items() <= seen.items()
    assert {oracle for oracle, _ in in_script} >= {*metadata_of(tensor)}
