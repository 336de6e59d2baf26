"""The examples of docs/architecture.md, "Adding things": each works, and finds a planted fault that was missed before.

Each is applied to a copy of the package, since it adds a file to it or changes one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.program.model import Input, Program, Storage, dump
from conformance.program.steps.op import Step, tensor

ROOT = Path(__file__).parent.parent
SECTION = (ROOT / "docs" / "architecture.md").read_text().partition("## Adding things\n")[2].partition("\n## ")[0]
BLOCK = re.compile(r"(?:`(?P<file>[\w./]+)`:\n\n)?```(?P<language>\w+)\n(?P<text>.*?)```\n", re.DOTALL)
LONGEST = 20
"""Lines of an example."""

PLANTED = """
from torch.overrides import TorchFunctionMode
from conformance.engine.target import Target


class Faults(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result, name = func(*args, **(kwargs or {})), getattr(func, "__name__", "")
        if name == "fliplr":
            return args[0].clone()
        if name == "diagonal" and args[1:] == (3,):
            return result.clone()
        if name == "mul":
            return result.detach().requires_grad_(result.requires_grad)
        return result + 1 if name == "neg" else result


class Faulty(Target):
    '''A device that does not mirror, copies a diagonal, cuts the graph at a product, and has a wrong negative.'''

    name = "faulty"

    def active(self):
        return Faults()
"""
MENDED = """
from conformance.engine.target import Target
from conformance.targets.unsigned import UnsignedTarget


class Mended(UnsignedTarget):
    upload = Target.upload
"""
FAULTY, CPU = "class:planted.Faulty", "cpu"

DRIVER = """
import contextlib, importlib, io, json, sys

if __name__ == "__main__":
    answers = []
    for module, *words in json.loads(sys.argv[1]):
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = importlib.import_module(f"conformance.sources.{module}").main(words)
        answers.append((code, said.getvalue()))
    print(json.dumps(answers))
"""
"""Runs several commands in one process, whose workers share a server that has imported torch."""


def example(topic: str) -> dict[str, str]:
    """Return the files of an example, by path; the text of a diff has the key `diff`."""
    text = SECTION.partition(f"**{topic}**")[2].partition("\n**")[0]
    return {block["file"] or block["language"]: block["text"] for block in BLOCK.finditer(text)}


class Copy:
    """A copy of the package, in which an example is applied."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "conformance", folder / "conformance")
        self.write("planted.py", PLANTED)
        self.write("driver.py", DRIVER)

    def write(self, file: str, text: str) -> None:
        """Write a new file."""
        (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
        assert not (self.folder / file).exists()
        (self.folder / file).write_text(text)

    def apply(self, topic: str) -> None:
        """Write the files of an example, and make the changes of its diff."""
        for file, text in example(topic).items():
            if file == "diff":
                self._change(text)
            else:
                self.write(file, text)

    def _change(self, diff: str) -> None:
        for change in diff.split("--- ")[1:]:
            file, *lines = change.splitlines()
            before, after = ("\n".join(line[1:] for line in lines if line[0] in sides) for sides in (" -", " +"))
            text = (self.folder / file).read_text()
            assert text.count(before) == 1, (file, before)
            (self.folder / file).write_text(text.replace(before, after))

    def run(self, *commands: str) -> list[tuple[int, str]]:
        """Return the exit code and the output of each command of the copy, all in one process."""
        run = subprocess.run(
            [sys.executable, "-W", "ignore", "driver.py", json.dumps([command.split() for command in commands])],
            cwd=self.folder, env={**os.environ, "PYTHONPATH": str(self.folder)}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        return [(code, text) for code, text in json.loads(run.stdout.splitlines()[-1])]


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


@pytest.mark.parametrize("topic", ["A source", "A step family", "An oracle", "A target", "A declaration"])
def test_an_example_is_short(topic: str) -> None:
    """Each example has at most twenty lines, in at most two files."""
    files = example(topic)
    assert files and sum(len(text.splitlines()) for text in files.values()) <= LONGEST
    assert sum(text.count("--- ") if file == "diff" else 1 for file, text in files.items()) <= 2


def test_a_source(copy: Copy) -> None:
    """The source finds a device whose last diagonal is a copy. Programs that are drawn rarely take it."""
    fuzz = "fuzzing.command --programs-from diagonals:programs --check-scripts 0 -n 1 --target"
    [(code, text)] = copy.run(f"{fuzz} {FAULTY}")
    assert code == 2 and "No module named 'diagonals'" in text
    copy.apply("A source")
    (wrong, found), (right, passed) = copy.run(f"{fuzz} {FAULTY}", f"{fuzz} {CPU}")
    assert wrong == 1 and "a.diagonal(3)" in found and "2 failing" in found, found
    assert right == 0 and "12/12 programs" in passed, passed


def test_a_step_family(copy: Copy) -> None:
    """The family is drawn and judged, and its steps find a device that does not mirror."""
    fuzz = "fuzzing.command --only mirrors --programs 6 --check-scripts 0 -n 1 --target"
    [(code, text)] = copy.run(f"{fuzz} {FAULTY}")
    assert code == 2 and "unknown step family 'mirrors'" in text
    copy.apply("A step family")
    (families, listed), (wrong, found), (right, passed) = copy.run(
        "fuzzing.command --families", f"{fuzz} {FAULTY}", f"{fuzz} {CPU}"
    )
    assert families == 0 and "mirrors" in listed.splitlines()
    assert wrong == 1 and "fliplr" in found, found
    assert right == 0, passed


def test_an_oracle(copy: Copy) -> None:
    """The oracle reports a product that is a leaf of autograd, which no other oracle does; and nothing on torch CPU."""
    storage, a = Storage("float32", 2), Input("a", 0, "float32", (2,), (1,), requires_grad=True)
    product = Program((storage,), (a,), (Step("mul", (tensor("a"), 2), out=("b",)),))
    copy.write("product.json", dump(product))
    replay = "fuzzing.command --replay product.json --target"
    [(code, text)] = copy.run(f"{replay} {FAULTY}")
    assert code == 0, text
    copy.apply("An oracle")
    (wrong, found), (right, passed) = copy.run(f"{replay} {FAULTY}", f"{replay} {CPU}")
    assert wrong == 1 and "is_leaf" in found, found
    assert right == 0, passed


def test_a_target(copy: Copy) -> None:
    """`conformance fuzz` finds the class and its wrong values; without the wrong method it passes."""
    copy.apply("A target")
    copy.write("mended.py", MENDED)
    fuzz = "fuzzing.command --programs 12 --check-scripts 0 --without op_db -n 1 --target class:"
    (wrong, found), (right, passed) = copy.run(
        f"{fuzz}conformance.targets.unsigned.UnsignedTarget", f"{fuzz}mended.Mended"
    )
    assert wrong == 1 and "FAIL" in found, found
    assert right == 0, passed


def test_a_declaration(copy: Copy) -> None:
    """The declared failure fails no run any more; once it is mended, the run fails, and names the declaration."""
    copy.apply("A declaration")
    opinfo = "opinfo.runner --op neg --variant forward --dtype float32 --check-scripts 0 -n 1 --target"
    declared = "--expectations reports/expectations/mydevice.toml"
    (fails, undeclared), (passes, expected), (stale, mended) = copy.run(
        f"{opinfo} {FAULTY}", f"{opinfo} {FAULTY} {declared}", f"{opinfo} {CPU} {declared}"
    )
    assert fails == 1, undeclared
    assert passes == 0, expected
    assert stale == 1 and "the kernel returns -x + 1" in mended, mended
