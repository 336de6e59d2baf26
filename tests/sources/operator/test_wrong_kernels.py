"""Kernels with a fault that few inputs show are found, and right ones that compute otherwise pass."""

from __future__ import annotations

import pytest

from conformance.sources.operator.checks import PROCEDURES
from conformance.sources.operator.examine import CheckRequest, examination, verdicts
from conformance.sources.operator.table import CHECKS
from conformance.standalone import derivative_checks
from tests.planted.honest import HONEST
from tests.planted.wrong import WRONG
from tests.sources.operator.judged import print_in_new_process


def found(described, checks) -> set[str]:
    """The checks that find a difference."""
    request = CheckRequest(**described, near="tests.planted.wrong", checks=checks)
    return {verdict.check for verdict in verdicts(examination(request), request) if verdict.finding}


def differentiates(check: str) -> bool:
    """Whether a check runs autograd."""
    return PROCEDURES[CHECKS[check].procedure].run.__module__ == derivative_checks.__name__


GRADIENTS = [name for name, (_, check) in WRONG.items() if differentiates(check)]


FAST = 3
"""One of this many kernels is judged in the fast tests, the others in the slow ones."""

OTHERS = [name for name in WRONG if name not in GRADIENTS]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if at % FAST else []) for at, name in enumerate(OTHERS)]
)
def test_a_wrong_kernel_is_found(name):
    """By the check that it names."""
    described, check = WRONG[name]
    assert check in found(described, [check])


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, FAST))])
def test_a_wrong_gradient_is_found(part):
    """By the check that it names."""
    code = (
        "import sys; from tests.sources.operator.test_wrong_kernels import WRONG, found\n"
        "print([name for name in sys.argv[1:] if WRONG[name][1] in found(WRONG[name][0], [WRONG[name][1]])])"
    )
    names = GRADIENTS[part::FAST]
    assert names and print_in_new_process(code, names) == str(names)


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_a_right_kernel_passes(name):
    """No usual check finds a difference."""
    code = (
        "import sys; from tests.planted.honest import HONEST\n"
        "from tests.sources.operator.test_wrong_kernels import found\n"
        "print(found(HONEST[sys.argv[1]], None))"
    )
    assert print_in_new_process(code, [name]) == "set()"
