"""Private symbols of torch: the installed version has all listed ones; a missing one gives one sentence."""

from __future__ import annotations

import pytest
import torch

from conformance.record import versions
from conformance.record.errors import TargetError
from conformance.standalone import torch_compat


class TestSymbols:
    def test_all_of_torch_itself_are_there(self):
        """Symbols that the probe checks at import exist."""
        assert torch_compat.missing(torch_compat.SYMBOLS) == []

    def test_all_of_dynamo_and_op_db_are_there(self):
        """Symbols that are imported on first use exist."""
        held = [name for name, held in torch_compat.ON_USE.items() if versions.holds(held)]
        assert torch_compat.missing(held) == []

    def test_what_is_gone_is_named(self):
        """A missing symbol gives one sentence with its name and the versions that have it."""
        with pytest.raises(
            TargetError, match=r"^torch \S+ has no torch\._C\._gone\.away, which .*2\.9 to 2\.\d+"
        ) as said:
            torch_compat.probe(["torch:Tensor._version", "torch._C:_gone.away"])
        assert "\n" not in str(said.value)


class TestNondeterministic:
    def test_is_what_op_db_says_where_it_says_it(self):
        """The list of nondeterministic ops equals op_db's own attribute. torch 2.9's OpInfos lack
        `has_nondeterministic_output`. Regression test: without the list, every run of op_db aborted there."""
        ops = torch_compat.op_db().ops
        if not any(hasattr(op, "has_nondeterministic_output") for op in ops):
            pytest.skip("this torch's OpInfos do not say it")
        listed = {op.name for op in ops if op.has_nondeterministic_output}
        assert listed == torch_compat.NONDETERMINISTIC

    def test_all_names_exist(self):
        """A name outside op_db would declare nothing."""
        assert {op.name for op in torch_compat.op_db().ops} >= torch_compat.NONDETERMINISTIC


class TestUnwrapped:
    def test_a_plain_error_between_those_of_dynamo(self):
        """Regression test: torch 2.14 raises a plain RuntimeError from the call's ValueError, and three errors of its
        own in the handling of that. The call's error counted as a RuntimeError."""
        wraps = type("TorchRuntimeError", (type("TorchDynamoException", (RuntimeError,), {}),), {})
        own = ValueError("dropout probability has to be between 0 and 1")
        plain = RuntimeError(f"Dynamo failed to run FX node with fake tensors: call_function dropout: got {own!r}")
        outer = wraps("RuntimeError when making fake tensor call")
        plain.__cause__, outer.__context__ = own, wraps()
        outer.__context__.__context__ = plain
        assert torch_compat.unwrapped(outer) is own

    def test_of_the_installed_torch(self):
        """A compiled call has the error type of the eager call. An error without a wrapper is returned as it is."""
        with pytest.raises(RuntimeError, match="dropout probability") as said:
            torch.compile(lambda x: torch.nn.functional.dropout(x, -1.0), backend="eager")(torch.zeros(1))
        assert isinstance(torch_compat.unwrapped(said.value), ValueError)
        error = ValueError("one")
        error.__cause__ = KeyError("two")
        assert torch_compat.unwrapped(error) is error
