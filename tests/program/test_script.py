"""Programs' scripts: the bug is on the first screen, and each runs alone, also where the target lies."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conformance.core.loading import load_target
from conformance.core.oracles import Mismatch
from conformance.core.script import CARRIED, own_part, unjudged
from conformance.core.target import Target
from conformance.fuzzing.drawing import Drawing
from conformance.program.model import Input, Program, Storage
from conformance.program.script import script
from conformance.program.steps.op import Step, tensor

TRANSFORM = """DEVICE = 'lying'

def transform(function):
    def wrong(*given):
        made = function(*given)
        return {**made, 'and more': 1} if LIES else made
    return wrong
"""


class Scripted(Target):
    """Torch CPU with any script of its own."""

    name = "scripted"

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def script(self) -> str:
        return self.text


class TestFirstScreen:
    def test_three_steps_are_25_lines(self):
        """With two inputs, the finding's notes and a step that is wrong: the inputs, the calls, one comparison."""
        program = Program(
            (Storage("float32", 6), Storage("int64", 4)),
            (Input("a", 0, "float32", (2, 3), (3, 1)), Input("b", 1, "int64", (2, 2), (1, 2))),
            (
                Step("t", (tensor("a"),), out=("c",)),
                Step("add_", (tensor("c"), 1)),
                Step("sum", (tensor("b"),), out=("d",)),
            ),
        )
        notes = ["FAIL in 3 programs: value / add_", "Again: a command", "Found by: a command", "With: torch 2"]
        text = script(program, load_target("cpu"), [Mismatch("value", "a", "1", "2")], notes, 2)
        own = own_part(text).splitlines()
        assert len(own) <= 25
        assert own[-13:] == [
            "def inputs(device):",
            "    a = torch.arange(6.0).to(device).view(2, 3)",
            "    b = torch.arange(4).to(device).view(2, 2).t()",
            "    return {'a': a, 'b': b}",
            "",
            "def program(a, b):",
            "    c = a.t()",
            "    c.add_(1)",
            "    d = b.sum()",
            "    return {'c': c, 'd': d}",
            "",
            "def main():",
            "    compare(inputs, program, DEVICE)",
        ]
        assert len(text.splitlines()) < 240

    def test_what_is_carried_is_one_text(self):
        """Whatever the program: a second kind of comparison would be another judge."""
        texts = {script(Drawing().numbered(3, number), load_target("cpu")).partition(CARRIED)[2] for number in range(5)}
        assert len(texts) == 1

    def test_what_is_not_judged_is_named(self):
        """Strides that mean something are judged where the others are not."""
        assert unjudged(load_target("meta").oracles) == ["value", "storage", "version", "insignificant stride"]


class TestAlone:
    @pytest.mark.slow
    @pytest.mark.timeout(300)
    def test_drawn_programs(self, tmp_path):
        """Thirty of them in a process that never sees this package: a planted difference is marked, and no other."""
        shown = []
        for number in range(30):
            lies = number % 2 == 1
            target = Scripted(TRANSFORM.replace("LIES", str(lies)))
            (tmp_path / f"{number:02}.py").write_text(script(Drawing().numbered(41, number), target))
            shown.append(lies)
        runner = (
            "import pathlib, sys\n"
            "for path in sorted(pathlib.Path('.').glob('*.py')):\n"
            "    print('=====', path)\n"
            "    exec(compile(path.read_text(), path, 'exec'), {'__name__': 'script'})\n"
            "assert not any(name.startswith('conformance') for name in sys.modules)\n"
        )
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", runner], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        for marked, said in zip(shown, done.stdout.split("=====")[1:], strict=True):
            assert ("DIFFERS" in said, "no difference here" in said, "raises" in said) == (marked, not marked, False)
