"""Every Python block in the README and the documentation runs, and every transcript is current.

Blocks marked `py` need a device that the tests do not have; these are excluded.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from conformance.record import versions
from conformance.record.sentences import LAYOUTS
from scripts import packages

ROOT = Path(__file__).parent.parent
ISSUES = ROOT / "docs/upstream"
"""The folder of generated issues. tests/test_findings.py runs the scripts in them."""
PAGES = [ROOT / "README.md", *sorted(page for page in ROOT.glob("docs/**/*.md") if ISSUES not in page.parents)]


def marks(block: str) -> list[pytest.MarkDecorator]:
    """Return the slow mark for a block that needs Inductor, which compiles C++ for a minute with a cold cache."""
    return [pytest.mark.slow] if "torch.compile" in block and "backend=" not in block else []


def blocks(text: str) -> Iterator[str]:
    """Yield the Python blocks of a page that are no file of a transcript: `TestTranscripts` runs the files."""
    for block in re.finditer(r"```python\n(.*?)```\n", text, re.DOTALL):
        if not re.match(r"\s*Saved as", text[block.end() :]):
            yield block[1]


BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}:{number}", marks=marks(block))
    for page in PAGES
    for number, block in enumerate(blocks(page.read_text()), 1)
]


class TestBlocks:
    def test_there_are_some(self):
        """The pages contain Python blocks."""
        assert BLOCKS

    @pytest.mark.parametrize("block", BLOCKS)
    def test_runs(self, block, standalone):
        """The block runs unchanged in a fresh process."""
        ran = standalone(block)
        assert ran.returncode == 0, ran.stderr

    def test_one_that_fails_is_told(self, standalone):
        """A failing script returns its own exit code and output."""
        ran = standalone("import sys; print(1); print(2, file=sys.stderr); raise SystemExit(3)")
        assert (ran.returncode, ran.stdout, ran.stderr) == (3, "1\n", "2\n")
        ran = standalone("1 / 0")
        assert ran.returncode == 1 and ran.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


def navigation() -> list[str]:
    """Return the pages of the sidebar."""
    trees = re.findall(r"```{toctree}\n(.*?)```", (ROOT / "docs" / "index.md").read_text(), re.DOTALL)
    return [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]


class TestNavigation:
    NOTES = tuple(sorted((ROOT / "docs" / "notes").glob("*.md")))

    def test_the_navigation_has_every_page(self):
        """The sidebar has each page of docs/, at most eighteen in all."""
        pages = {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"}
        assert sorted(navigation()) == sorted(pages)
        assert len(navigation()) <= 18

    def test_the_notes_are_linked(self):
        """The index of the notes links each note once."""
        text = (ROOT / "docs" / "notes" / "index.md").read_text()
        assert sorted(re.findall(r"\]\(([^)]*)\)", text)) == [page.name for page in self.NOTES if page.stem != "index"]


class TestLayoutClasses:
    def test_each_is_explained_as_in_a_run(self):
        """The table of docs/reading.md agrees with the line that a run prints below a finding."""
        text = (ROOT / "docs" / "reading.md").read_text().partition("| layout class | means |\n|---|---|\n")[2]
        rows = re.findall(r"^\| `(.*?)` \| (.*?) \|$", text.partition("\n\n")[0], re.MULTILINE)
        assert dict(rows) == LAYOUTS


class TestReadme:
    def test_the_views_example_says_what_the_cpu_says(self, standalone):
        """The README's example of tiny prints the same on the CPU."""
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        [block] = [block for block in blocks if 'device="tiny"' in block]
        on_cpu = block.replace('device="tiny"', 'device="cpu"')
        assert block != on_cpu
        tiny, cpu = standalone(block), standalone(on_cpu)
        assert (tiny.returncode, cpu.returncode) == (0, 0)
        assert cpu.stdout and tiny.stdout == cpu.stdout


TORCH = re.search(r"^torch==(\d+\.\d+)", (ROOT / "requirements" / "constraints.txt").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """The script that reruns transcripts, as a module."""
    spec = importlib.util.spec_from_file_location("transcripts", ROOT / "scripts" / "transcripts.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["transcripts"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["transcripts"]


class TestTranscripts:
    """`python scripts/transcripts.py --write` replaces the transcripts of the pages by today's output."""

    ELSEWHERE = tuple(ROOT / package.page for package in packages.read_all().values() if package.page)
    """Pages whose transcripts need a package: `nox -s packages` runs them."""

    WITH = tuple(page for page in PAGES if re.search(r"^```text\n\$ ", page.read_text(), re.MULTILINE))

    @pytest.mark.timeout(300)
    @pytest.mark.parametrize(
        "page",
        [
            pytest.param(page, id=page.name, marks=() if page.name == "start.md" else pytest.mark.slow)
            for page in sorted({*WITH} - {*ELSEWHERE})
        ],
    )
    def test_is_what_is_printed(self, page: Path, script: ModuleType) -> None:
        """Each command of a transcript prints the text below it, except for times."""
        if TORCH is None or not versions.holds(f"=={TORCH[1]}.*"):
            pytest.skip(f"the transcripts are of the torch in requirements/constraints.txt, not {versions.installed()}")
        ran = [command for commands in script.run(page.read_text()) for command in commands]
        assert ran
        assert "\n".join(command.difference for command in ran if not command.same) == ""

    def test_files_belong_to_a_transcript(self) -> None:
        """A page whose blocks are saved as files has commands that run them."""
        saving = [page for page in PAGES if re.search(r"^Saved as `", page.read_text(), re.MULTILINE)]
        assert saving and {*saving} <= {*self.WITH}

    def test_which_there_are(self) -> None:
        """The list of pages with transcripts is fixed, because a page whose transcripts lose their command would not be
        run."""
        pages = ["README.md", "compilers.md", "kernel.md", "model.md", "reading.md", "start.md"]
        assert [page.name for page in self.WITH] == pages
        assert [page.name for page in self.ELSEWHERE] == ["kernel.md"]

    @pytest.mark.parametrize(
        ("shown", "printed", "same"),
        [
            (["a", "3 samples in 12 s"], ["a  ", "", "3 samples in 9 s"], True),
            (["a", "...", "d"], ["a", "b", "c", "d"], True),
            (["a", "...", "d"], ["a", "b", "c"], False),
            (["a", "b"], ["a", "c"], False),
            (["1.5 programs/s; x"], ["seed 0: 3/9 programs, 0 failing, 0 distinct", "9 programs/s; x"], True),
            (["a"], ["loading device:cpu,import=toy, at most 180 s", "a"], True),
            (["a"], ["loading failed", "a"], False),
        ],
    )
    def test_what_is_the_same(self, shown: list[str], printed: list[str], same: bool, script: ModuleType) -> None:
        """The comparison ignores times, spaces at line ends and progress lines. Three dots stand for any lines."""
        assert script.Command("x", tuple(shown), tuple(printed)).same is same

    def test_a_page_is_renewed(self, script: ModuleType) -> None:
        """Today's output replaces the old output, and the page is otherwise unchanged."""
        file = "```python\nprint(1)\n```\n\nSaved as `one.py`:\n\n"
        page = f"# a page\n\n{file}```text\n$ python one.py\n2\n```\n\nThe end.\n"
        transcripts = script.run(page)
        assert [command.same for commands in transcripts for command in commands] == [False]
        assert script.renewed(page, transcripts) == page.replace("\n2\n", "\n1\n")
