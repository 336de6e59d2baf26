"""Answers of the operator's process: tensors and plain data survive, and nothing else is read."""

from __future__ import annotations

import os
import pickle

import pytest
import torch

from conformance.sources.operator.answers import UnknownAnswer, pack_answer, unpack_answer
from conformance.standalone.observation import Observation, Raised
from conformance.standalone.operator_checks import observe_call
from conformance.standalone.oracles import ORACLES, compare

X = torch.arange(24.0).view(2, 3, 4)


@pytest.mark.parametrize("result", [
    X[1], X[:, ::2], X.transpose(0, 2), X[:0], X[0, 0, 0].expand(5), X.bfloat16(), X.to(torch.cfloat).conj(),
    X > 3, torch.tensor(-0.0), torch.tensor([float("nan"), float("inf")]), [X, (X.half(), {"a": 3})], None, 2.5, "text",
    1 + 2j, torch.int8, X.shape, slice(1, 2),
])  # fmt: skip
def test_an_answer_survives(result):
    """Values to the bit, geometry, and what is no tensor."""
    seen = observe_call(lambda x: result, lambda: {"x": X.clone()})
    again = unpack_answer(pack_answer((seen, "reason")))
    assert again[1] == "reason" and compare(seen, again[0], oracles=ORACLES, exact=True) == []
    assert [*again[0].storages] == ["x"] and torch.equal(again[0].storages["x"], X.flatten())


def test_an_error_survives():
    seen = Observation(error=Raised("ValueError", ("ValueError", "Exception"), "text"))
    assert unpack_answer(pack_answer(seen)) == seen


@pytest.mark.parametrize("content", [
    pickle.dumps(os.getpid), pickle.dumps(torch.load), b"text", b"", pickle.dumps(torch.nn.Linear),
    pack_answer([1])[:-1],
])  # fmt: skip
def test_anything_else_is_refused(content):
    """The operator's process may send any bytes, and the judge runs none of them."""
    with pytest.raises(UnknownAnswer):
        unpack_answer(content)
