"""Operators that are made to pass a judge are found."""

from __future__ import annotations

import pytest

from conformance.sources.operator.examine import Request, examination, verdicts
from tests.planted.cheats import CHEATS


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_found(name):
    """By the check that it names; and all checks together do not end in an error of the tool."""
    described, check = CHEATS[name]
    request = Request(**described, near="tests.planted.cheats", checks=[check])
    found = {verdict.check for verdict in verdicts(examination(request), request) if verdict.finding}
    assert check in found
