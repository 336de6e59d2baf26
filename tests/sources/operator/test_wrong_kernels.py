"""Kernels with a fault that few inputs show are found, and right ones that compute otherwise pass."""

from __future__ import annotations

import pytest

from conformance.sources.operator.examine import Request, examination, verdicts
from tests.planted.wrong import HONEST, WRONG


def found(described, checks) -> set[str]:
    """The checks that find a difference."""
    request = Request(**described, near="tests.planted.wrong", checks=checks)
    return {verdict.check for verdict in verdicts(examination(request), request) if verdict.finding}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_found(name):
    """By the check that it names."""
    described, check = WRONG[name]
    assert check in found(described, [check])


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_a_right_kernel_passes(name):
    """No check of values, sizes, state or gradients finds a difference."""
    checks = ["values", "layouts", "blocks", "magnitudes", "specials", "globals", "replay", "contexts", "gradients"]
    assert found(HONEST[name], [check for check in checks if check not in HONEST[name].get("exclude", ())]) == set()
