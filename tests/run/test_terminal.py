"""Progress of a run as lines, without a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from conformance.record.result import Outcome, Result, Run
from conformance.run.terminal import View


@pytest.mark.parametrize(("planned", "said"), [(1, "1 case on cpu\n1/1 case, 0 failed\n"), (2, "2 cases on cpu\n")])
def test_the_number_of_cases_has_its_plural(planned: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One case is not `1 cases`."""
    view = View(Console(file=io.StringIO()))
    view.start(Run("cpu"), planned)
    view.add(Result("neg", "float32", "", "base", Outcome.PASS))
    assert capsys.readouterr().out.startswith(said)
