"""What the pages show is true: every Python block in the README and the documentation runs.

Blocks marked `py` need a device that the tests do not have, and are left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]


def marks(block: str) -> list[pytest.MarkDecorator]:
    """Inductor compiles C++, for a minute on a cold cache: such a block is for the slow session."""
    return [pytest.mark.slow] if "torch.compile" in block and "backend=" not in block else []


FINDINGS = ROOT / "docs" / "findings.md"


def printed(page: Path, block: str) -> list[str] | None:
    """What a block of the findings says that it printed: its last lines, which are comments."""
    lines = block.splitlines()
    code = max(number for number, line in enumerate(lines) if not line.startswith("# "))
    return [line.removeprefix("# ") for line in lines[code + 1 :]] if page == FINDINGS else None


BLOCKS = [
    pytest.param(block, printed(page, block), id=f"{page.relative_to(ROOT)}:{number}", marks=marks(block))
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL), 1)
]


class TestBlocks:
    def test_there_are_some(self):
        """The pages have Python to run."""
        assert BLOCKS

    @pytest.mark.parametrize(("block", "says"), BLOCKS)
    def test_runs(self, block, says, standalone):
        """The block runs as it stands in a fresh process; a finding prints what its comments say."""
        ran = standalone(block)
        assert ran.returncode == 0, ran.stderr
        assert says is None or (says and ran.stdout.splitlines() == says)

    def test_one_that_fails_is_told(self, standalone):
        """Its exit code and what it printed are its own."""
        ran = standalone("import sys; print(1); print(2, file=sys.stderr); raise SystemExit(3)")
        assert (ran.returncode, ran.stdout, ran.stderr) == (3, "1\n", "2\n")
        ran = standalone("1 / 0")
        assert ran.returncode == 1 and ran.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


class TestFindings:
    def test_the_contents_name_each_finding_once(self):
        """The list at the top has one line for each heading, with its link, and no other."""
        contents, _, rest = FINDINGS.read_text().partition("\n## ")[2].partition("\n## ")
        titles = re.findall(r"^### (.*)$", rest, re.MULTILINE)
        anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
        assert sorted(re.findall(r"\]\(#([^)]*)\)", contents)) == sorted(anchors)


class TestReadme:
    def test_the_views_example_says_what_the_cpu_says(self, standalone):
        """The README's few lines about tiny print the same on the CPU."""
        [block] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        on_cpu = block.replace('device="tiny"', 'device="cpu"')
        assert block != on_cpu
        tiny, cpu = standalone(block), standalone(on_cpu)
        assert (tiny.returncode, cpu.returncode) == (0, 0)
        assert cpu.stdout and tiny.stdout == cpu.stdout
