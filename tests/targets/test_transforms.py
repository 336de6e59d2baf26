"""Targets that are no devices: each agrees with torch CPU, detects a planted fault, and declares exclusions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from conformance.engine.executor import Executor
from conformance.engine.loading import load_target
from conformance.engine.target import Target, TargetFacts
from conformance.program.calls import judge_program
from conformance.program.execute import ProgramSubject, functions
from conformance.program.model import Input, Program, Storage, dump
from conformance.program.script import script
from conformance.program.shadow import reference
from conformance.program.source import source
from conformance.program.steps.op import Step, tensor
from conformance.program.unsupported import unsupported_reason, unsupported_steps
from conformance.record.errors import TargetError
from conformance.sources.fuzzing.command import main
from conformance.sources.fuzzing.drawing import Drawing
from conformance.standalone.oracles import compare
from tests.run.campaign.saved import fuzz_result

A = Input("a", 0, "float32", (2, 3), (3, 1))
STORAGES = (Storage("float32", 6),)
WRITE_THROUGH_A_VIEW = Program(
    STORAGES,
    (A,),
    (
        Step("t", (tensor("a"),), out=("b",)),
        Step("add_", (tensor("b"), 1)),
        Step("sum.dim", (tensor("a"), 0, False), out=("c",)),
        Step("loop", body=(Step("setitem", (tensor("a"), {"i": [1, 0]}, {"i": [1, 1]})),), times=2),
    ),
)
RAISES = Program(STORAGES, (A,), (Step("view.count", (tensor("a"), 7), raises="RuntimeError"),))
VIEW_WITH_GAPS = Program(
    (Storage("float32", 22),),
    (Input("a", 0, "float32", (2, 2), (18, 3)),),
    (Step("view.error", (tensor("a"), [-1]), raises="RuntimeError"),),
)
FILLS_A_VIEW = Program(
    (Storage("float32", 5),),
    (Input("b", 0, "float32", (2, 2), (2, 1), 1),),
    (Step("fill_diagonal_", (tensor("b"), 0)),),
)
ERRS = Program(
    STORAGES,
    (A,),
    (
        Step("t", (tensor("a"),), out=("b",)),
        Step("setitem", (tensor("a"), {"tuple": [{"slice": [None, None, None]}, 5]}, 1), raises="IndexError"),
        Step("zero_", (tensor("a"),)),
    ),
)
BACKWARD = Program(
    STORAGES,
    (Input("a", 0, "float32", (2, 3), (3, 1), requires_grad=True),),
    (
        Step("mul.grad", (tensor("a"), 2), out=("b",)),
        Step("t", (tensor("b"),), out=("c",)),
        Step("mul_", (tensor("c"), 3)),
        Step("backward", (tensor("b"), {"tensor": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "dtype": "float32"})),
        Step("clone", (tensor("c"),), out=("d",)),
    ),
)
OVERLAPPING = Program(
    (Storage("float32", 1),),
    (Input("a", 0, "float32", (2,), (0,)),),
    (Step("add_", (tensor("a"), 1), raises="RuntimeError"),),
)
THREADED = Program(STORAGES, (A,), (Step("add_", (tensor("a"), 1), under=("thread",)),))
ASKS = Program(STORAGES, (A,), (Step("is_contiguous", (tensor("a"),)),))
UNFOLD_WITH_GAPS = Program(
    (Storage("float32", 5),),
    (Input("a", 0, "float32", (5,), (1,)),),
    (Step("unfold", (tensor("a"), 0, 1, 2), out=("b",)), Step("add_", (tensor("b"), 1))),
)

VIEWS_OF_NOTHING = Program(
    (Storage("int16", 0),),
    (Input("a", 0, "int16", (0, 11), (11, 1)),),
    (Step("view", (tensor("a"), [-1, 11]), out=("b",)), Step("view", (tensor("a"), [0, 11]), out=("c",))),
)


class Negating(Target):
    """A faulty transform: it negates the last result."""

    name = "negating"
    facts = TargetFacts(transforms_program=True)

    def transform(self, function):
        def wrong(*inputs):
            results = function(*inputs)
            return {**results, **{name: -value for name, value in list(results.items())[-1:]}}

        return wrong


class TestWhole:
    def test_the_function_is_the_programs_calls(self):
        """The source has the steps in order, loops included, and returns their results."""
        assert source(WRITE_THROUGH_A_VIEW) == (
            "def program(a):\n    b = a.t()\n    b.add_(1)\n    c = a.sum(0, False)\n    for i in range(2):\n"
            "        a[i] = i + 1\n    return {'b': b, 'c': c}\n"
        )

    def test_answers_are_results(self):
        """The answer of a question is returned under the step's number."""
        assert functions(ASKS, Negating().attempt)["program"](torch.ones(2, 3)) == {"step 1": True}

    def test_a_step_that_raises_is_a_function_of_its_own(self):
        """The program continues after the step, and its answer is the exception."""
        assert source(ERRS) == (
            "def program(a):\n    b = a.t()\n    def step_2(): a[:, 5] = 1\n    answer_2 = attempt(step_2)\n"
            "    a.zero_()\n    return {'b': b, 'step 2': answer_2}\n"
        )
        answer = functions(ERRS, Negating().attempt)["program"](torch.ones(2, 3))["step 2"]
        assert isinstance(answer, IndexError)

    def test_a_wrong_transform_is_caught_and_its_step_named(self):
        """The value oracle detects a planted fault, and the verdict has the first wrong step."""
        verdict = judge_program(WRITE_THROUGH_A_VIEW, Negating())
        assert verdict.mismatches[0].oracle == "value"
        assert verdict.bad_step == 1

    @pytest.mark.parametrize("spec", ["functionalize", "meta", "fake"])
    def test_a_script_runs_by_itself(self, spec, tmp_path, standalone):
        """The standalone script of a program that agrees shows no difference."""
        path = tmp_path / "script.py"
        path.write_text(script(WRITE_THROUGH_A_VIEW, load_target(spec)))
        said = standalone(path)
        assert said.returncode == 0, said.stderr
        assert "no difference here" in said.stdout

    def test_a_script_shows_a_real_bug(self, tmp_path, standalone):
        """The script prints both answers, and only promised facts. Regression test: the scripts of whole programs
        failed in their own inputs on both sides, and so never showed a difference."""
        path = tmp_path / "script.py"
        target = load_target("functionalize")
        path.write_text(script(UNFOLD_WITH_GAPS, target, judge_program(UNFOLD_WITH_GAPS, target).mismatches))
        said = standalone(path)
        assert said.returncode == 1, said.stderr
        assert said.stdout.splitlines()[:2] == [
            "cpu [1.0, 1.0, 3.0, 3.0, 5.0]",
            "functionalize [1.0, 0.0, 3.0, 0.0, 5.0]",
        ]
        assert "value of a: expected [1.0, 1.0, 3.0, 3.0, 5.0], got [1.0, 0.0, 3.0, 0.0, 5.0]" in said.stdout
        assert "stride of" not in said.stdout

    def test_a_name_is_returned_once(self):
        """A name that two steps assign is one key of the result. Regression test: a name that two steps assign was a
        key of the result twice."""
        twice = Program(STORAGES, (A,), tuple(Step("mul", (tensor("a"), 2), out=("b",)) for _ in range(2)))
        assert source(twice, also=["a"]).endswith("return {'b': b, 'a': a}\n")

    def test_a_script_tells_errors_as_the_harness_does(self, tmp_path, standalone):
        """The script unwraps errors like the harness: Dynamo wraps the error of a step in its own, and that of a
        backend in another. Regression test: the script compared the wrong one, and ended with 0."""
        path, target = tmp_path / "script.py", load_target("compile:aot_eager")
        mismatches = judge_program(VIEW_WITH_GAPS, target).mismatches
        assert [(mismatch.oracle, mismatch.expected, mismatch.actual) for mismatch in mismatches] == [
            ("error", "RuntimeError", "ValueError")
        ]
        path.write_text(script(VIEW_WITH_GAPS, target, mismatches, bad_step=1))
        said = standalone(path)
        assert said.returncode == 1, said.stdout + said.stderr
        assert "\nerror of step 1: expected RuntimeError, got ValueError (" in said.stdout

    def test_a_script_of_a_compiler_logs_nothing(self, tmp_path, standalone):
        """The script prints the original error instead of its wrapper. Regression test: Dynamo's log of a failing call
        appeared between the answers."""
        path, target = tmp_path / "script.py", load_target("compile:aot_eager")
        mismatches = judge_program(FILLS_A_VIEW, target).mismatches
        path.write_text(script(FILLS_A_VIEW, target, mismatches, bad_step=1))
        said = standalone(path)
        assert "\nerror of the whole run: expected no error, got RuntimeError (" in said.stdout
        assert "torch/_subclasses" not in said.stdout + said.stderr

    def test_a_script_of_what_raises_says_so_in_a_line(self, tmp_path, standalone):
        """The output has the error alone, without a list of the CPU's answers."""
        path = tmp_path / "script.py"
        counts = Program(
            (Storage("int32", 1),),
            (Input("a", 0, "int32", (), ()),),
            (Step("expand", (tensor("a"), []), out=("b",)), Step("add_", (tensor("b"), 1))),
        )
        path.write_text(script(counts, load_target("functionalize")))
        said = standalone(path)
        assert said.returncode == 1, said.stderr
        lines = said.stdout.splitlines()
        assert lines[1].startswith("functionalize RuntimeError('!value_.key_set()")
        assert lines[2].startswith("error of the whole run: expected no error, got RuntimeError (!value_.key_set()")
        assert " of " not in "".join(line.partition("(")[0] for line in lines[3:] if not line.startswith("where"))

    @pytest.mark.parametrize("spec", ["cpu", "functionalize", "meta"])
    def test_scripts_of_drawn_programs_run(self, spec, capsys):
        """In each script, torch CPU has an answer, and the script reports a difference exactly if the verdict has one.
        Regression test: a script with `from_host_view` lacked a function that it calls."""
        target, ran = load_target(spec), 0
        for number in range(40):
            program = Drawing(without=unsupported_steps(target.facts)).numbered(31, number)
            verdict = judge_program(program, target, locate=False)
            if verdict.unsupported:
                continue
            text = script(program, target, verdict.mismatches)
            with pytest.raises(SystemExit) as end:
                exec(compile(text, "<script>", "exec"), {"__name__": "__main__"})  # noqa: S102
            assert (end.value.code, "no difference here" in capsys.readouterr().out) == (
                not verdict.passed,
                verdict.passed,
            ), number
            ran += 1
        assert ran > 15


class Forgiving(Target):
    """A faulty transform: a step that must raise does not."""

    name = "forgiving"
    facts = TargetFacts(transforms_program=True)

    def transform(self, function):
        def call(*inputs):
            return function(*inputs)

        return call

    def attempt(self, step, *tensors):
        super().attempt(step, *tensors)
        return "no error"


class Forgetful(Target):
    """A faulty transform: gradients are twice their right value."""

    name = "forgetful"
    facts = TargetFacts(transforms_program=True)

    def transform(self, function):
        def wrong(*inputs):
            results = function(*inputs)
            for one in inputs:
                if one.grad is not None:
                    one.grad.mul_(2)
            return results

        return wrong


class TestErrorsAndGradients:
    @pytest.mark.parametrize("spec", ["functionalize", "aot_eager"])
    def test_a_step_that_raises_agrees(self, spec):
        """The error's type is the CPU's, and the later steps run."""
        for program in (RAISES, *([ERRS, OVERLAPPING] if spec == "aot_eager" else [])):
            verdict = judge_program(program, load_target(spec))
            assert verdict.passed, verdict.mismatches

    def test_gradients_agree(self):
        """The program has inputs that require grad, a write through a view, backward, and a later use of the
        gradient."""
        verdict = judge_program(BACKWARD, load_target("aot_eager"))
        assert verdict.passed, verdict.mismatches

    def test_what_depends_on_who_looks_is_left_out(self):
        """For a view whose base later requires grad, torch CPU itself has another answer in one function, so the
        program is excluded."""
        program = Program(
            (Storage("float32", 2), Storage("float32", 1)),
            (Input("a", 0, "float32", (2,), (1,)), Input("b", 1, "float32", (), (), requires_grad=True)),
            (
                Step("narrow", (tensor("a"), 0, 0, 1), out=("c",)),
                Step("mul_", (tensor("a"), tensor("b"))),
                Step("add_", (tensor("c"), 1)),
            ),
        )
        assert judge_program(program, load_target("cpu")).passed
        verdict = judge_program(program, load_target("aot_eager"))
        assert verdict.unsupported.startswith("a program whose result depends on whether")
        assert not verdict.passed

    def test_an_error_that_is_not_raised_is_caught(self):
        """A transform that suppresses the error fails the error oracle at that step."""
        verdict = judge_program(ERRS, Forgiving())
        assert [(mismatch.oracle, mismatch.where) for mismatch in verdict.mismatches] == [("error", "step 2")]
        assert verdict.bad_step == 2

    def test_a_wrong_gradient_is_caught(self):
        """A wrong gradient fails the oracle `grad`."""
        verdict = judge_program(BACKWARD, Forgetful())
        assert verdict.mismatches[0].oracle == "grad"
        assert verdict.bad_step == 4

    def test_drawn_programs_with_gradients_run(self):
        """Compilers get programs of the family `autograd`, which agree."""
        target = load_target("aot_eager")
        drawing = Drawing(steps=(4, 8), only=("autograd",), without=unsupported_steps(target.facts))
        ops = set()
        for number in (3, 13, 14, 17, 19, 20):
            program = drawing.numbered(9, number)
            verdict = judge_program(program, target, locate=False)
            assert verdict.passed, (number, verdict.mismatches[:1])
            ops |= {step.op for step in program.steps}
        assert "backward" in ops

    def test_a_script_with_a_step_that_raises_runs_by_itself(self, tmp_path, standalone):
        """Both answers are the error's type."""
        path = tmp_path / "script.py"
        path.write_text(script(ERRS, load_target("aot_eager")))
        said = standalone(path)
        assert said.returncode == 0, said.stderr
        assert "no difference here" in said.stdout


class TestTargets:
    @pytest.mark.parametrize("spec", ["meta", "fake", "functionalize", "aot_eager"])
    def test_a_plain_program_agrees(self, spec):
        """A write through a view, a reduction and a loop are right on each target."""
        verdict = judge_program(WRITE_THROUGH_A_VIEW, load_target(spec))
        assert verdict.passed, verdict.mismatches

    @pytest.mark.slow
    def test_inductor_agrees(self):
        """Generated C++ code agrees too."""
        assert judge_program(WRITE_THROUGH_A_VIEW, load_target("inductor")).passed

    @pytest.mark.parametrize("spec", ["functionalize", "aot_eager"])
    def test_a_real_bug_is_found(self, spec):
        """torch 2.13's functionalization zeroes the gaps of a written unfold."""
        verdict = judge_program(UNFOLD_WITH_GAPS, load_target(spec))
        assert [mismatch.oracle for mismatch in verdict.mismatches][:1] == ["value"]
        assert verdict.bad_step == 2

    def test_an_answer_follows_from_the_program_alone(self):
        """Each run has the same mismatch. Regression test: FakeTensorMode caches calls, so the first run had another
        answer than all later ones (see the findings). A campaign reported FLAKY."""
        seen = [judge_program(VIEWS_OF_NOTHING, load_target("fake"), locate=False).mismatches for _ in range(3)]
        assert seen[0] == seen[1] == seen[2]
        assert [mismatch.oracle for mismatch in seen[0]] == ["alias"]

    @pytest.mark.parametrize("spec", ["meta", "fake"])
    def test_wrong_metadata_is_caught(self, spec, monkeypatch):
        """A transposition without effect changes the shape, which is detected without values."""
        monkeypatch.setattr("conformance.program.steps.op.Op.run", lambda op, args, kwargs: args[0])
        target = load_target(spec)
        got = (
            Executor(target)
            .run(ProgramSubject(WRITE_THROUGH_A_VIEW.with_steps(WRITE_THROUGH_A_VIEW.steps[:1])))
            .observations[-1]
        )
        monkeypatch.undo()
        want = reference(WRITE_THROUGH_A_VIEW.with_steps(WRITE_THROUGH_A_VIEW.steps[:1])).observation
        assert {"shape", "stride"} <= {mismatch.oracle for mismatch in compare(want, got, oracles=target.facts.oracles)}

    def test_inductor_without_a_compiler_is_one_sentence(self, monkeypatch):
        """The error names the missing compiler and the remedy."""
        builder = pytest.importorskip("torch._inductor.cpp_builder")
        from torch._inductor.exc import InvalidCxxCompiler

        def none_here():
            raise InvalidCxxCompiler

        monkeypatch.setattr(builder, "get_cpp_compiler", none_here)
        with pytest.raises(TargetError, match="install g\\+\\+"):
            load_target("inductor")


class TestLeftOut:
    @pytest.mark.parametrize(
        ("spec", "program", "reason"),
        [
            ("functionalize", BACKWARD, "backward"),
            ("aot_eager", BACKWARD, ""),
            ("aot_eager", BACKWARD.with_steps((*BACKWARD.steps, BACKWARD.steps[3])), "a second backward"),
            ("functionalize", OVERLAPPING, "a write that raises"),
            ("meta", OVERLAPPING, "a write that raises"),
            ("meta", ASKS, "questions"),
            ("meta", RAISES, ""),
            ("meta", THREADED, ""),
            ("fake", THREADED, "under thread"),
            ("functionalize", ASKS, "is_contiguous"),
            ("functionalize", WRITE_THROUGH_A_VIEW, ""),
        ],
    )
    def test_a_program_is_left_out_by_the_targets_own_words(self, spec, program, reason):
        """The target's declaration decides without a run, and the verdict is neither a pass nor a failure."""
        target = load_target(spec)
        assert unsupported_reason(program, target.facts) == reason
        if reason:
            verdict = judge_program(program, target)
            assert not verdict.passed
            assert not verdict.mismatches

    def test_inputs_that_share_a_storage(self):
        """functionalize assumes that its inputs are independent tensors."""
        program = Program(STORAGES, (A, Input("b", 0, "float32", (1,), (1,))))
        assert unsupported_reason(program, load_target("functionalize").facts) == "inputs that share a storage"

    def test_a_dtype_that_the_target_cannot_hold(self):
        """A target declares its dtypes too."""
        target = load_target("cpu")
        target.facts = replace(target.facts, dtypes=frozenset({torch.int64}))
        assert unsupported_reason(WRITE_THROUGH_A_VIEW, target.facts) == "dtype float32"

    @pytest.mark.parametrize(
        ("args", "reason"),
        [
            ([tensor("a"), {"dtype": "complex64"}], "dtype complex64"),
            ([tensor("a"), {"tensor": 1, "dtype": "float16"}], "dtype float16"),
            ([tensor("a"), {"tensor": 1, "dtype": "float16", "host": True}], ""),
        ],
    )
    def test_a_dtype_that_only_a_step_names(self, args, reason):
        """A constant on the CPU may have any dtype. Regression test: a conversion to an unsupported dtype was a
        failure."""
        target = load_target("cpu")
        target.facts = replace(target.facts, dtypes=frozenset({torch.float32}))
        loop = Step("loop", times=2, body=(Step("to", tuple(args), out=("b",)),))
        for step in (Step("to", tuple(args), out=("b",)), loop):
            assert unsupported_reason(Program(STORAGES, (A,), (step,)), target.facts) == reason

    def test_what_is_left_out_is_not_drawn(self):
        """Unsupported families and steps restrict the drawing; traits cannot."""
        assert "questions" in unsupported_steps(load_target("meta").facts)
        assert "a write that raises" not in unsupported_steps(load_target("meta").facts)

    def test_a_replay_of_it_says_so(self, tmp_path, capsys):
        """A replay of a program that the target excludes compares nothing and exits with 2."""
        path = tmp_path / "asks.json"
        path.write_text(dump(ASKS))
        assert main(["--target", "meta", "--replay", str(path)]) == 2
        assert "leaves out questions" in capsys.readouterr().err
        assert main(["--target", "meta", "--replay", str(tmp_path)]) == 2
        assert "0 of 1 programs agree with torch CPU, 1 were not run" in capsys.readouterr().out

    def test_a_campaign_counts_it(self, tmp_path):
        """The report counts programs that did not run, by reason."""
        words = ["--target", "decompositions", "--programs", "12", "--only", "view", "--check-scripts", "0"]
        main([*words, "--reports", str(tmp_path)])
        report = fuzz_result(Path(tmp_path))
        assert report["programs"] - sum(report["unsupported"].values()) == 12  # others replaced these
        assert sum(report["unsupported"].values()) > 0
