"""What the pages show is true: every Python block in the README and the documentation runs.

Blocks marked `py` need a device that the tests do not have, and are left out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
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


SERVER = """
import json, os, sys, traceback
import torch, torch._dynamo, torch._functorch.aot_autograd
for line in sys.stdin:
    block, folder = json.loads(line)
    if not (child := os.fork()):
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT), number)
        os.chdir(folder)
        code = 1
        try:
            exec(compile(block, "<block>", "exec"), {"__name__": "__main__"})
            code = 0
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Runs each block in a child that has imported torch, with what a first call of torch.compile imports, and nothing
else, and that is not taken down at its end: both take longer than most blocks."""


@pytest.fixture(scope="module")
def server():
    words = [sys.executable, "-c", SERVER]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        yield running
        running.stdin.close()


def ran(server: subprocess.Popen[str], block: str, folder: Path) -> int:
    """The exit code of a block in a process and a folder of its own; what it prints is in the file `out` there."""
    folder.mkdir(exist_ok=True)
    server.stdin.write(json.dumps([block, str(folder)]) + "\n")
    server.stdin.flush()
    return int(server.stdout.readline())


class TestBlocks:
    def test_there_are_some(self):
        """The pages have Python to run."""
        assert BLOCKS

    @pytest.mark.parametrize(("block", "says"), BLOCKS)
    def test_runs(self, block, says, tmp_path, server):
        """The block runs as it stands in a fresh process; a finding prints what its comments say."""
        assert ran(server, block, tmp_path) == 0, (tmp_path / "err").read_text()
        assert says is None or (says and (tmp_path / "out").read_text().splitlines() == says)

    def test_one_that_fails_is_told(self, tmp_path, server):
        """Its exit code and what it printed are its own."""
        code = ran(server, "print(1); raise SystemExit(3)", tmp_path)
        assert code == 3 and (tmp_path / "out").read_text() == "1\n"


class TestFindings:
    def test_the_contents_name_each_finding_once(self):
        """The list at the top has one line for each heading, with its link, and no other."""
        contents, _, rest = FINDINGS.read_text().partition("\n## ")[2].partition("\n## ")
        titles = re.findall(r"^### (.*)$", rest, re.MULTILINE)
        anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
        assert sorted(re.findall(r"\]\(#([^)]*)\)", contents)) == sorted(anchors)


class TestReadme:
    def test_the_views_example_says_what_the_cpu_says(self, tmp_path, server):
        """The README's few lines about tiny print the same on the CPU."""
        [block] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        on_cpu = block.replace('device="tiny"', 'device="cpu"')
        assert block != on_cpu
        assert [ran(server, each, tmp_path / name) for name, each in (("tiny", block), ("cpu", on_cpu))] == [0, 0]
        said = (tmp_path / "cpu" / "out").read_text()
        assert said and (tmp_path / "tiny" / "out").read_text() == said
