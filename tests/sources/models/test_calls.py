"""The recorded calls that the package has."""

from __future__ import annotations

import pytest

from conformance.program import recorded
from conformance.program.recorded import Calls


@pytest.fixture(scope="module")
def package() -> Calls:
    """The calls that the package has."""
    return Calls.load(recorded.RECORDED)


class TestOfThePackage:
    """The file that the package has."""

    def test_it_has_the_published_models(self, package):
        """Each with and without autocast, and each with calls."""
        names = [name for name in package.models if not name.endswith(" bfloat16")]
        assert len(names) == 35
        assert {*package.models} == {*names, *(f"{name} bfloat16" for name in names)}
        assert {at for call in package.calls for at in call.models} == {*range(70)}
        assert recorded.RECORDED.stat().st_size < 1_500_000

    def test_its_calls_are_distinct(self, package):
        assert len({call.key() for call in package.calls}) == len(package.calls) >= 15_000

    def test_forward_backward_and_optimizer_are_there(self, package):
        """The recorder sees below autograd."""
        gpt = package.of(["transformers.GPT2LMHeadModel"])
        assert {"embedding.default", "native_layer_norm_backward.default", "_foreach_addcdiv_.ScalarList"} <= {
            c.op for c in gpt.calls
        }
        assert not any("_for_cpu" in call.op for call in package.calls)
