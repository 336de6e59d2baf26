"""Scripts of programs: the bug on the first screen, standalone, both answers, and the exit code."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import re
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest

from conformance.engine.loading import describe_target, load_target
from conformance.engine.target import Target
from conformance.program.calls import judge_program
from conformance.program.model import LOOP, Input, Program, Storage
from conformance.program.reduce import reduce_program
from conformance.program.script import script
from conformance.program.steps.op import Step, snippet_sources, tensor
from conformance.run.failing_program import FailingProgram, ended
from conformance.selftest.faults import FAULTS
from conformance.sources.fuzzing.drawing import Drawing
from conformance.standalone.oracles import Mismatch
from conformance.standalone.script import MARKER, bare, comparison_options, own_part
from tests.planted import liars

TRANSFORM = """DEVICE = 'lying'

def transform(function):
    def wrong(*given):
        made = function(*given)
        return {**made, 'and more': 1} if LIES else made
    return wrong
"""


class Scripted(Target):
    """Torch CPU with a configurable script."""

    name = "scripted"

    def __init__(self, text: str, oracles: frozenset[str] | None = None) -> None:
        super().__init__()
        self.text = text
        self.facts = replace(self.facts, oracles=oracles or self.facts.oracles)

    def script(self) -> str:
        return self.text


def own_lines(text: str) -> int:
    """Number of lines of a script's own part, without its functions. These are definitions of steps and the helper for
    steps that raise, with their imports."""
    first, *kept = own_part(text).split("\n\n")
    kept = [first, *itertools.dropwhile(lambda part: not _own(part), kept)]
    return sum(len(part.splitlines()) + 1 for part in kept) - 1


def _own(part: str) -> bool:
    return part.startswith(("def inputs(", "def program("))


def printed(text: str) -> list[str]:
    """Output of the own part of a script for each side, without the rest of the script. A faulty target may end it with
    an error, such as a split into too few parts."""
    return outputs(own_part(text))


def outputs(text: str) -> list[str]:
    """Output of a text for each side."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            exec(compile(text, "script", "exec"), {"__name__": "__main__"})  # noqa: S102 - rendered here
        except ValueError as error:
            print("target", error)
    return re.split(r"^(?:cpu|target|lying|off_by_one) ", said.getvalue(), flags=re.MULTILINE)[1:]


def exit_code(text: str) -> int:
    """Exit code of a script."""
    try:
        outputs(text)
    except SystemExit as end:
        return int(end.code or 0)
    raise AssertionError("the script never ends")


class TestFirstScreen:
    def test_three_steps_are_25_lines(self):
        """A program with two inputs, two findings, notes and a wrong step has the inputs, the calls and one print."""
        program = Program(
            (Storage("float32", 6), Storage("int64", 4)),
            (Input("a", 0, "float32", (2, 3), (3, 1)), Input("b", 1, "int64", (2, 2), (1, 2))),
            (
                Step("t", (tensor("a"),), out=("c",)),
                Step("add_", (tensor("c"), 1)),
                Step("sum", (tensor("b"),), out=("d",)),
            ),
        )
        mismatches = [Mismatch("stride", "a", "(3, 1)", "(1, 2)"), Mismatch("value", "a", "1", "2", "1 of 1")]
        text = script(program, load_target("cpu"), mismatches, ["Again: a command", "With: torch 2"], 2)
        assert own_part(text).splitlines() == [
            '"""a should have strides (3, 1) and has (1, 2)"""',
            "import torch",
            "DEVICE = 'cpu'",
            "",
            "def inputs(device):",
            "    a = torch.arange(6.).to(device).view(2, 3).data",
            "    b = torch.arange(4).to(device).view(2, 2).t().data",
            "    return {'a': a, 'b': b}",
            "",
            "def program(a, b):",
            "    c = a.t()",
            "    c.add_(1)  # the first wrong step",
            "    d = b.sum()",
            "    return {'c': c, 'd': d, 'a': a}",
            "",
            'for device in "cpu", DEVICE:',
            "    print(device, program(*inputs(device).values())['a'].stride())",
        ]
        loaded = script(program, describe_target("device:some,import=backend,call=f"), mismatches, bad_step=2)
        assert len(own_part(loaded).splitlines()) <= 25, own_part(loaded)
        assert text.partition(MARKER)[2].splitlines()[1:5] == [
            "# stride of a: expected (3, 1), got (1, 2)",
            "# value of a: expected 1, got 2 (1 of 1)",
            "# Again: a command",
            "# With: torch 2",
        ]

    @pytest.mark.parametrize("spec", ["device:some,import=some_backend", "compile:aot_eager", "functionalize", "fake"])
    def test_drawn_programs_of_three_steps_are_25_lines(self, spec):
        """The limit holds before shrinking, for any program and answer; functions that torch does not have come on top.
        An op_db entry may take ten tensors, and is shrunk to one call."""
        target = describe_target(spec)
        for number in range(100):
            program = Drawing(steps=(3, 3), without=("op_db",)).numbered(17, number)
            wrong = Mismatch("stride", program.inputs[number % len(program.inputs)].name, "(1,)", "(2,)")
            lines = own_lines(script(program, target, [wrong]))
            bodies = sum(len(step.body) for step in program.steps if step.op == LOOP)
            states = 5 if any(step.under for step in program.steps) else 0  # a `with` or a `def` for each step
            more = len(program.steps) - 3  # a hazard draws several steps
            assert lines - bodies - states - more <= 25, own_part(script(program, target, [wrong]))

    def test_a_death_is_told(self):
        """The script of a crash starts with the crash. Regression test: it started with "A program of view and in-place
        steps."."""
        finding = replace(ended("CRASH", 0, 0, numbered(0), 1), said="killed its process with SIGSEGV")
        text = script(finding.program, load_target("cpu"), (), (), finding.bad_step, finding.death())
        said = f"CRASH at {finding.op}: the device killed its process with SIGSEGV (signal 11)"
        assert text.startswith(f'"""{said}"""')
        assert FailingProgram.from_json(finding.to_json()) == finding

    def test_what_is_carried_is_one_text(self):
        """The comparison code is the same in every script, so that there is only one judge. Its last line has the
        script's options."""
        texts = (script(Drawing().numbered(3, number), load_target("cpu")).partition(MARKER)[2] for number in range(5))
        assert len({text.rpartition("raise SystemExit")[0] for text in texts}) == 1

    def test_what_is_judged_is_named(self):
        """Significant strides are judged if the others are not."""
        assert comparison_options({"value", "significant_stride"}) == {"oracles": "['value', 'significant_stride']"}


@functools.cache
def numbered(number: int) -> Program:
    """A drawn program; most faults need the same few dozen."""
    return Drawing().numbered(0, number)


class TestShows:
    """The own part alone, run in this process, prints two different answers if the target is wrong."""

    @pytest.mark.parametrize("fault", sorted(FAULTS))
    def test_a_planted_fault(self, fault):
        """Each fault of the selftest, in the first program that shows it, slightly shrunk."""
        mutant = load_target(f"mutant:{fault}")
        program, verdict = next(
            (drawn, verdict)
            for number in range(4000)
            if (verdict := judge_program(drawn := numbered(number), mutant)).mismatches
        )
        first = verdict.mismatches[0]

        def fails(candidate):
            mismatches = judge_program(candidate, mutant, locate=False).mismatches
            return bool(mismatches) and mismatches[0].oracle == first.oracle

        small = reduce_program(program, fails, 60)
        verdict = judge_program(small, mutant)
        planted = (
            "from conformance.selftest.faults import FAULTS\nfrom conformance.selftest.mutants import Planted\n"
            # A storage of the next run may have the address of one of the last run, whose writes were counted.
            "class Forgetting(Planted):\n    def __enter__(self): self.memory.clear(); return super().__enter__()\n"
            f"DEVICE, MODE = 'cpu', Forgetting(FAULTS[{fault!r}])"
        )
        text = script(small, Scripted(planted, mutant.facts.oracles), verdict.mismatches, bad_step=verdict.bad_step)
        self.differs(text)
        assert exit_code(text) == 1

    @pytest.mark.parametrize(
        "liar",
        ["ValueDevice", "StrideDevice", "ValueTransform", "StrideTransform", "RaisingTransform", "IdleTransform"],
    )
    def test_a_lying_target(self, liar):
        """Faulty targets of the executor's tests, with their own scripts."""
        target = getattr(liars, liar)()
        program = Program(
            (Storage("float32", 6),),
            (Input("a", 0, "float32", (2, 3), (3, 1)),),
            (Step("mul", (tensor("a"), 2), out=("b",)),),
        )
        verdict = judge_program(program, target)
        assert verdict.mismatches
        text = script(program, target, verdict.mismatches, bad_step=verdict.bad_step)
        self.differs(text)
        assert exit_code(text) == 1

    def test_a_registered_compiler(self):
        """A registered backend runs through `torch.compile`, as in user code. Regression test: the full comparison used
        graphs of the printed calls, and lacked a difference that a replay shows."""
        target = load_target("compile:off_by_one,import=tests.planted.liars")
        program = Program(
            (Storage("float32", 6),),
            (Input("a", 0, "float32", (6,), (1,)),),
            (Step("neg", (tensor("a"),), out=("b",)),),
        )
        text = script(program, target, judge_program(program, target).mismatches)
        self.differs(text)
        assert exit_code(text) == 1
        *_, anew, _, _, end = text.splitlines()
        assert anew.startswith("    torch.compiler.reset()") and end == "end_script(main)"

    def differs(self, text):
        """Check that the two sides print different answers."""
        sides = printed(text)
        assert len(sides) == 2, (sides, own_part(text))
        assert sides[0] != sides[1], (sides, own_part(text))

    @pytest.mark.parametrize("oracle", ["value", "dtype", "shape", "stride", "storage_offset", "version", "storage"])
    def test_every_answer_is_an_expression(self, oracle):
        """Every answer is one expression, even for a large tensor, for which it is the differing element."""
        program = Program(
            (Storage("float32", 100),),
            (Input("a", 0, "float32", (10, 10), (10, 1)),),
            (Step("mul", (tensor("a"), 2), out=("b",)),),
        )
        for where in ("a", "b"):
            one = Mismatch(
                oracle, where, "100 elements, first [0.0]", "", "1 of 100 elements differ (bits), first at (0, 1):"
            )
            cpu, device = printed(script(program, load_target("cpu"), [one]))
            assert cpu == device
            assert oracle != "value" or cpu == f"{1.0 if where == 'a' else 2.0}\n"


class TestAlone:
    @pytest.mark.slow
    @pytest.mark.timeout(300)
    def test_drawn_programs(self, tmp_path):
        """Thirty scripts run in a process without this package: each exits with 1 if a difference is planted, and with
        0 otherwise."""
        shown = []
        for number in range(30):
            lies = number % 2 == 1
            target = Scripted(TRANSFORM.replace("LIES", str(lies)))
            (tmp_path / f"{number:02}.py").write_text(script(Drawing().numbered(41, number), target))
            shown.append(int(lies))
        runner = (
            "import pathlib, sys\n"
            "for path in sorted(pathlib.Path('.').glob('*.py')):\n"
            "    print('=====')\n"
            "    try:\n"
            "        exec(compile(path.read_text(), path, 'exec'), {'__name__': '__main__'})\n"
            "    except SystemExit as end:\n"
            "        print('ended', int(end.code))\n"
            "assert not any(name.startswith('conformance') for name in sys.modules)\n"
        )
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", runner], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        said = [part.splitlines()[-1] for part in done.stdout.split("=====\n")[1:]]
        assert said == [f"ended {code}" for code in shown]


def test_a_script_defines_custom_operators_of_its_own():
    """A script in this process replaced the package's operators, and later calls of them ended the process."""
    text = "\n".join(map(bare, snippet_sources(["add_to", "exchange"])))
    assert "'script::add_to'" in text and "'script::exchange'" in text
    assert "conformance::" not in text


def test_a_warning_of_torch_is_not_printed() -> None:
    """Writing a script runs the program on torch CPU, in the command's own process. Regression test: the command
    printed torch's warning among its findings."""
    call = Step("op_db.many:var_mean", (tensor("a"),), {"correction": 5}, out=("b", "c"))
    program = Program((Storage("float32", 2, [1.0, 2.0]),), (Input("a", 0, "float32", (2,), (1,)),), (call,))
    wrong = Mismatch("value", "b", "inf", "1.0", "1 of 1 elements differ (bits), first at (): expected inf, got 1.0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "torch.var_mean(" in script(program, Scripted("DEVICE = 'cpu'"), (wrong,), [], 1)


def test_the_marked_step_says_what_is_wrong_there() -> None:
    """A wrong step may precede the error that ends the program. The headline is about the error, so the mark tells the
    rest. Regression test: the headline named one step or tensor and the mark another, without a word."""
    steps = (Step("t", (tensor("a"),), out=("b",)), Step("view", (tensor("b"), [6]), out=("c",)))
    program = Program((Storage("float32", 6),), (Input("a", 0, "float32", (2, 3), (3, 1)),), steps)
    error = Mismatch("error", "step 2", "no error", "RuntimeError", "view size is not compatible")
    text = script(program, load_target("cpu"), [error], bad_step=1, wrong_first="b should share memory with a")
    assert "b = a.t()  # the first wrong step: b should share memory with a\n" in text


def test_an_error_in_place_of_an_answer_is_printed() -> None:
    """The step's answer is a list, and the device raises. Regression test: the script ended with a traceback."""
    program = Program(
        (Storage("float32", 2),), (Input("a", 0, "float32", (2,), (1,)),), (Step("tolist", (tensor("a"),)),)
    )
    mismatch = Mismatch("error", "step 1", "no error", "NotImplementedError", "Cannot copy")
    text = script(program, Scripted("DEVICE = 'meta'"), (mismatch,), bad_step=1)
    (said,) = printed(text)
    assert re.match(r"\{'step 1': \[0\.0, 1\.0\]\}\nmeta \w*Error\(", said)


def test_a_long_headline_keeps_its_end() -> None:
    """Regression test: `Expected self.dtype to [...]` lost what it should be equal to."""
    program = Program(
        (Storage("float32", 1),), (Input("a", 0, "float32", (1,), (1,)),), (Step("neg", (tensor("a"),), out=("b",)),)
    )
    said = "scatter(): Expected self.dtype to be equal to src.dtype"
    text = script(program, load_target("cpu"), [Mismatch("error", "the whole run", "no error", "RuntimeError", said)])
    about = text.split('"""')[1]
    assert " ".join(about.split()).endswith(said) and max(map(len, about.splitlines())) <= 110
