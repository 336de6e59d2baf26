"""`python -m scripts.finding_versions` notes which releases of torch show a finding."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from conformance.record import versions
from scripts import finding_versions, findings

HERE = f"torch {versions.installed().base_version}"

FINDING = """title = "A finding"
versions = ["torch 2.9.1"]
layer = "torch CPU"
kind = "value"
operators = ["add"]

[[scripts]]
code = '''
import torch
print(torch.ones(1).tolist())
'''
prints = '''
{prints}
'''
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one finding, which prints [1.0]."""
    (tmp_path / findings.FOLDER).mkdir(parents=True)
    (tmp_path / findings.FOLDER / "ones.toml").write_text(FINDING.format(prints="[1.0]"))
    return tmp_path


def noted(checkout: Path) -> list[str]:
    """Return the versions in the file."""
    return list(findings.read(checkout / findings.FOLDER / "ones.toml").versions)


class TestVersions:
    def test_a_release_that_shows_it_is_added(self, checkout: Path) -> None:
        """The versions are in the order of their numbers, and only this line of the file changes."""
        assert finding_versions.main([sys.executable], checkout) == 0
        assert noted(checkout) == ["torch 2.9.1", HERE]
        text = (checkout / findings.FOLDER / "ones.toml").read_text()
        assert text.splitlines()[2:] == FINDING.format(prints="[1.0]").splitlines()[2:]

    def test_a_release_with_another_answer_is_removed(self, checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The other answer is printed."""
        assert finding_versions.main([sys.executable], checkout) == 0
        file = checkout / findings.FOLDER / "ones.toml"
        file.write_text(file.read_text().replace("prints = '''\n[1.0]", "prints = '''\n[2.0]"))
        assert finding_versions.main([sys.executable, "--finding", "ones"], checkout) == 0
        assert noted(checkout) == ["torch 2.9.1"]
        assert f"ones on {HERE}:\n[1.0]" in capsys.readouterr().out

    def test_a_script_that_raises_shows_nothing(self, checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Its exit code and its error are printed, even if its lines are the stated ones."""
        file = checkout / findings.FOLDER / "ones.toml"
        file.write_text(file.read_text().replace(".tolist())", ".tolist())\nraise ValueError('no')"))
        assert finding_versions.main([sys.executable], checkout) == 0
        assert noted(checkout) == ["torch 2.9.1"]
        assert "exit code 1: ValueError: no" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["no-such-python"], "no-such-python cannot be started"),
            (["true"], "true does not import a release of torch"),
            ([sys.executable, "--finding", "zeros"], "there is no finding 'zeros'"),
        ],
    )
    def test_bad_arguments(
        self, arguments: list[str], says: str, checkout: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """One sentence and exit code 2; the file stays."""
        assert finding_versions.main(arguments, checkout) == 2
        assert says in capsys.readouterr().err
        assert noted(checkout) == ["torch 2.9.1"]
