"""Every script of docs/findings/ prints the lines that its file states, and docs/findings.md lists every finding.

Scripts that need more than torch and tinygrad name their needs and are not run.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from scripts import findings
from scripts.pages import ROOT

EVERY = findings.read_all(ROOT / findings.FOLDER)


def marks(code: str) -> list[pytest.MarkDecorator]:
    """Return the slow mark for a script that needs Inductor, which compiles C++ for a minute with a cold cache."""
    return [pytest.mark.slow] if "torch.compile" in code and "backend=" not in code else []


SCRIPTS = [
    pytest.param(script, id=f"{finding.name}:{number}", marks=marks(script.code))
    for finding in EVERY
    for number, script in enumerate(finding.scripts, 1)
    if not script.needs
] + [pytest.param(finding.reference, id=f"{finding.name}:reference") for finding in EVERY if finding.reference]


class TestScripts:
    @pytest.mark.parametrize("script", SCRIPTS)
    def test_prints_both_answers(self, script, standalone):
        """The script runs unchanged in a fresh process and prints exactly the stated lines, those of this CPU if a
        kernel of some CPUs is at fault. Regression test: `_int_mm` is right on a CPU without AVX-512."""
        ran = standalone(script.code)
        assert ran.returncode == 0, ran.stderr
        stated = [text.splitlines() for text in (script.prints, script.elsewhere) if text]
        assert script.prints and ran.stdout.splitlines() in stated

    def test_findings_without_a_script_that_runs_are_known(self):
        """Only findings that need the device or another checkout have no script that the tests can run. Those of
        packages are in test_packages.py."""
        own = [finding for finding in EVERY if finding.layer in findings.LAYERS]
        without = [finding.name for finding in own if not [script for script in finding.scripts if not script.needs]]
        assert without == [
            "tinygrad-llvm", "tinygrad-unused-index", "tinygrad-moved-terms", "tinygrad-narrow-where",
            "tinygrad-register-value", "tinygrad-torch-backend",
        ]  # fmt: skip


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkout with the page and two findings."""
    (tmp_path / findings.FOLDER).mkdir(parents=True)
    shutil.copy(ROOT / findings.PART.page, tmp_path / findings.PART.page)
    for name in ("expand-adds-up", "zeta-large"):
        shutil.copy(ROOT / findings.FOLDER / f"{name}.toml", tmp_path / findings.FOLDER)
    return tmp_path


class TestMended:
    def test_a_mended_release_shows_no_finding(self) -> None:
        """A finding is mended in releases that do not show it, and each file names one of both kinds at most."""
        for finding in EVERY:
            assert not (finding.mended and finding.partly), finding.name
            assert {finding.mended, finding.partly}.isdisjoint(finding.versions), finding.name

    def test_the_newest_release_was_tried(self) -> None:
        """It shows a finding of PyTorch, or the file names the release that mended it. Regression test: seven
        files did neither though 2.15.0 shows them, and so two of them were no issues to file."""
        release = findings.newest(EVERY)
        of_torch = [
            finding for finding in EVERY if finding.layer in findings.LAYERS and "tinygrad" not in finding.layer
        ]
        old = [finding.name for finding in of_torch if release not in finding.versions]
        assert old == [finding.name for finding in of_torch if finding.mended or finding.partly]


class TestPage:
    def test_is_current(self):
        """docs/findings.md shows the files; if not, run python -m scripts.findings."""
        assert findings.main(["--check"]) == 0

    def test_status(self) -> None:
        """An entry names its issue upstream. The page counts the other entries of PyTorch."""
        said = {finding.name: findings.entry(finding) for finding in EVERY}
        assert said["expand-adds-up"].endswith(" [#197448](https://github.com/pytorch/pytorch/issues/197448).")
        assert said["zeta-large"].endswith("](findings/zeta-large.toml).") and ", [got " in said["zeta-large"]
        status = {finding.name: findings.status(finding) for finding in EVERY}
        assert (status["zeta-large"], status["tinygrad-llvm"]) == ("not in the index", "")

    def test_a_stale_page_fails_the_check(self, copy, capsys):
        """The check fails until the script has written the page. The text around the list stays."""
        assert findings.main(["--check"], copy) == 1
        assert "run python -m scripts.findings" in capsys.readouterr().err
        assert findings.main([], copy) == 0
        assert findings.main(["--check"], copy) == 0
        (copy / findings.COUNTS).write_text("stale")
        assert findings.main(["--check"], copy) == 1
        assert findings.main([], copy) == 0
        page = (copy / findings.PART.page).read_text()
        assert page.startswith("# Findings\n") and page.count("\n### ") == 2
        counts = (copy / findings.COUNTS).read_text().splitlines()
        assert "functionalize,,,,,,,,0" in counts and "torch CPU,,,1,,,,,1" in counts
        assert "[#197448](https://github.com/pytorch/pytorch/issues/197448)" in page

    def test_mended(self, copy: Path) -> None:
        """A table lists the findings that a later release mends. The page counts those that the newest one shows."""
        file = copy / findings.FOLDER / "zeta-large.toml"
        text = re.sub("^versions = .*$", 'versions = ["torch 2.13.0"]', file.read_text(), flags=re.MULTILINE)
        for key, expected in (("mended", "torch 2.15.0"), ("partly", "torch 2.15.0 in part")):
            file.write_text(text.replace("layer =", f'{key} = "torch 2.15.0"\nlayer =', 1))
            assert findings.main(["--check"], copy) == 1
            assert findings.main([], copy) == 0
            rows = (copy / findings.MENDED).read_text().splitlines()
            assert rows[1:] == [f"[{findings.read(file).title}](findings/zeta-large.toml),,{expected}"]
            shows = int(key == "partly")
            assert (
                f"1 are not in the index of issues; {shows} of them show on torch 2.15.0 too."
                in (copy / findings.PART.page).read_text()
            )

    @pytest.mark.parametrize(
        ("old", "new", "says"),
        [
            ('layer = "torch CPU"', 'layer = "CPU"', "has the layer 'CPU'; choose one of torch.compile, "),
            ('kind = "value"', 'kind = "wrong"', "has the kind 'wrong'; choose one of crash, "),
            ('title = "', 'titel = "', "zeta-large.toml is no finding: "),
            ('kind = "value"', "kind = value", "zeta-large.toml is no finding: "),
            ("prints = '''", "printed = '''", "zeta-large.toml is no finding: "),
            ('kind = "value"', 'kind = "value"\nissues = ["tinygrad#1"]', "an issue is pytorch#NUMBER"),
            ('date = "2026', 'day = "2026', "has a search with words, day, found; give words, date, found"),
        ],
    )
    def test_a_file_that_is_no_finding(self, old, new, says, copy, capsys):
        """A typo is one sentence with the name of the file, and the page stays."""
        file, page = copy / findings.FOLDER / "zeta-large.toml", (copy / findings.PART.page).read_text()
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))
        assert findings.main([], copy) == 2
        assert says in capsys.readouterr().err
        assert (copy / findings.PART.page).read_text() == page

    def test_two_findings_with_one_title(self, copy, capsys):
        """Two findings with one title are refused, because their links would lead to one of them."""
        shutil.copy(copy / findings.FOLDER / "zeta-large.toml", copy / findings.FOLDER / "zeta-larger.toml")
        assert findings.main([], copy) == 2
        assert "zeta-larger.toml has the title of zeta-large.toml" in capsys.readouterr().err

    def test_a_page_without_a_place(self, copy, capsys):
        """A page without the two comments is one sentence and exit code 2."""
        (copy / findings.PART.page).write_text("# Findings\n")
        assert findings.main([], copy) == 2
        assert "put both where the part belongs" in capsys.readouterr().err
