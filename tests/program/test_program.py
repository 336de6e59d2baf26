"""Programs as data: JSON, running on a target, scripts, and one sentence for invalid data."""

from __future__ import annotations

import ast
import json
from dataclasses import replace

import pytest
import torch

from conformance.engine.executor import Executor
from conformance.engine.loading import load_target
from conformance.engine.target import Target, TargetFacts
from conformance.program.calls import judge_program
from conformance.program.execute import ProgramSubject
from conformance.program.model import Input, Program, ProgramError, Storage, connected, dump, read_program
from conformance.program.script import script
from conformance.program.shadow import reference
from conformance.program.steps.op import Step, StepError, decode, render, render_index
from conformance.program.steps.table import OPS
from conformance.program.trial import CpuAnswer
from conformance.record.measurements import KERNELS, Measurements
from conformance.selftest.faults import FAULTS, Fault
from conformance.selftest.mutants import MutantTarget, Planted
from conformance.standalone.observation import Raised
from conformance.standalone.oracles import Mismatch
from conformance.standalone.script import MARKER
from conformance.targets.cpu import CpuTarget


def t(name: str) -> dict[str, str]:
    return {"t": name}


def program(*steps: Step, size=(2, 3), stride=(3, 1), offset=0, cells=6, dtype="float32", grad=False) -> Program:
    return Program((Storage(dtype, cells),), (Input("a", 0, dtype, size, stride, offset, grad),), steps)


TRANSPOSE_AND_WRITE = program(Step("t", (t("a"),), out=("b",)), Step("fill_", (t("b"), 7)))


@pytest.fixture
def cpu() -> Target:
    return load_target("cpu")


class TestConnected:
    STEPS = (
        Step("neg", (t("a"),), out=("b",)),
        Step("neg", (t("p"),), out=("q",)),
        Step("add_", (t("c"), t("b"))),
        Step("neg", (t("q"),), out=("r",)),
        Step("full", ([2], 1), out=("s",)),
    )

    @pytest.mark.parametrize(
        ("number", "expected"), [(1, (1, 3)), (3, (1, 3)), (2, (2, 4)), (4, (2, 4)), (5, (5,)), (6, (6,))]
    )
    def test_steps_that_share_memory(self, number, expected):
        """Steps share a tensor, or inputs on one storage. Here `c` and `d` are on one."""
        inputs = [Input(name, at, "float32", (2,), (1,)) for name, at in (("a", 0), ("p", 1), ("c", 2), ("d", 3))]
        some = Program(
            tuple(Storage("float32", 4) for _ in range(4)), tuple(inputs), (*self.STEPS, Step("relu_", (t("d"),)))
        )
        assert connected(some, number) == expected
        shared = replace(some, inputs=(*inputs[:3], replace(inputs[3], storage=2)))
        assert connected(shared, number) == ((1, 3, 6) if {1, 3, 6} & {number} else expected)


class TestJson:
    def test_round_trip(self):
        """A program survives a round trip through JSON."""
        loop = Step("loop", body=(Step("setitem", (t("a"), {"i": [1, 0]}, {"i": [2, 1]})),), times=2)
        written = program(loop, Step("view.error", (t("a"), [7]), raises="RuntimeError"))
        assert Program.from_json(json.loads(dump(written))).to_json() == written.to_json()

    def test_names_change_in_every_marker(self):
        """Tensors are renamed in nested arguments, in keyword arguments and in the body of a loop, and nowhere else."""
        write = Step("setitem", (t("a"), {"tuple": [{"i": [1, 0]}, {"slice": [None, None, 2]}]}, t("b")))
        cat = Step("cat", ([t("a"), t("c")], {"arg": "a", "value": 0}), {"out": t("b"), "t": "a"}, ("a",))
        loop = Step("loop", body=(write,), times=2)
        names = {"a": "x", "b": "y"}
        assert cat.renamed(names).to_json() == {
            "op": "cat",
            "args": [[t("x"), t("c")], {"arg": "a", "value": 0}],
            "kwargs": {"out": t("y"), "t": "a"},
            "out": ["a"],
        }
        assert loop.renamed(names).names() == ["x", "y"]
        assert loop.renamed({"x": "a"}) == loop

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"schema": 0}, "schema 0"),
            ({"steps": [{"op": "no_such_op"}]}, "unknown op 'no_such_op'"),
            ({"steps": [{"op": "t", "args": [{"t": "z"}]}]}, "'z', which is not defined"),
            ({"steps": [{"op": "t", "args": 3}]}, "wrong type"),
            ({"steps": ["t"]}, "a step is an object"),
            ({"steps": [{"op": "t", "argz": []}]}, "unknown fields: argz"),
            ({"steps": [{"op": "t", "args": [{"t": "a"}], "out": ["a b"]}]}, "must be an identifier"),
            ({"inputs": [{"name": "a"}]}, "damaged"),
            (
                {"inputs": [{"name": "a", "storage": 3, "dtype": "float32", "size": [1], "stride": [1]}]},
                "input 'a' lies on storage 3",
            ),
            (
                {"inputs": [{"name": "a", "storage": 0, "dtype": "float32", "size": [9], "stride": [1]}]},
                "reaches cell 8",
            ),
            ({"inputs": [{"name": "a", "storage": 0, "dtype": "float32", "size": [2], "stride": [-1]}]}, "negative"),
            (
                {"inputs": [{"name": "a", "storage": 0, "dtype": "float99", "size": [2], "stride": [1]}]},
                "unknown dtype",
            ),
            ({"storages": [{"dtype": "float32", "size": 3, "values": [1]}]}, "3 cells is given 1 values"),
            ({"storages": 3}, "damaged"),
            ({"step": []}, "unknown parts: step"),
            (
                {"inputs": [{"name": "a", "storage": 0, "dtype": "float32", "size": [2, 1], "stride": [1]}]},
                "2 dimensions and 1 strides",
            ),
            # The following ended in a traceback: a name of another type, arguments that a rule inspects.
            ({"steps": [{"op": "t", "args": [{"t": ["x"]}]}]}, r"uses \['x'\], which is not defined"),
            ({"steps": [{"op": "neg_"}]}, "has 0 arguments and needs 1"),
            ({"steps": [{"op": "setitem", "args": [{"t": "a"}, 0]}]}, "has 2 arguments and needs 3"),
            (
                {"inputs": [{"name": 3, "storage": 0, "dtype": "float32", "size": [1], "stride": [1]}]},
                "named 3, which is",
            ),
            (
                {
                    "inputs": [
                        {"name": "a", "storage": 0, "dtype": "float32", "size": [1], "stride": [1], "offset": True}
                    ]
                },
                "not a whole number",
            ),
            (
                {
                    "inputs": [
                        {"name": "a", "storage": 0, "dtype": "float32", "size": [1], "stride": [1], "requires_grad": 3}
                    ]
                },
                "give true or false",
            ),
            # These were accepted, but did not end, had another meaning in each run, or gave an invalid script.
            ({"steps": [{"op": "loop", "times": 10**9, "body": []}]}, "runs 1000000000 times: give at most 1000"),
            ({"steps": [{"op": "loop", "times": 2, "body": [{"op": "loop", "times": 2}]}]}, "a loop within a loop"),
            ({"steps": [{"op": "t", "args": [{"t": "a"}], "body": [{"op": "t"}]}]}, "only a loop has one"),
            ({"storages": [{"dtype": "float32", "size": 6, "values": {"seed": None}}]}, "with a whole number n"),
            (
                {"storages": [{"dtype": "float32", "size": 6, "values": {"seed": 1, "special": 1}}]},
                "with a whole number n",
            ),
            (
                {"storages": [{"dtype": "float32", "size": 10**12}]},
                "1000000000000 cells: give a whole number of at most",
            ),
            ({"steps": [{"op": "t", "args": [{"t": "a"}], "out": ["for"]}]}, "must be an identifier"),
            (
                {"inputs": 2 * [{"name": "a", "storage": 0, "dtype": "float32", "size": [1], "stride": [1]}]},
                "two inputs are named 'a'",
            ),
        ],
    )
    def test_bad_data_is_one_sentence(self, change, message, tmp_path):
        """The sentence names the file and the error."""
        path = tmp_path / "bad.json"
        path.write_text(json.dumps({**TRANSPOSE_AND_WRITE.to_json(), **change}))
        with pytest.raises(ProgramError, match=message) as caught:
            read_program(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("text", ["", "{", "[]", "3", '"x"', "\x00"])
    def test_what_is_no_program_is_one_sentence(self, text, tmp_path):
        """Truncated files and files of other formats give one sentence too."""
        path = tmp_path / "bad.json"
        path.write_text(text)
        with pytest.raises(ProgramError, match="bad"):
            read_program(path)

    def test_a_constant_that_its_dtype_cannot_hold(self):
        """The sentence has the step's number. Regression test: torch's error was a traceback."""
        large = program(Step("add_", (t("a"), {"tensor": 10**9, "dtype": "uint8"})))
        with pytest.raises(ProgramError, match="step 1: value cannot be converted to type uint8"):
            reference(large)


class TestRun:
    def test_lazy_observes_the_end_and_eager_every_step(self, cpu):
        """A lazy run has one observation, and an eager run has one per step."""
        assert len(Executor(cpu).run(ProgramSubject(TRANSPOSE_AND_WRITE)).observations) == 1
        first, second = Executor(cpu).run(ProgramSubject(TRANSPOSE_AND_WRITE), stepwise=True).observations
        assert first.tensors["b"].value.tolist() == [[0, 3], [1, 4], [2, 5]]
        assert second.tensors["a"].value.tolist() == [[7, 7, 7], [7, 7, 7]]

    def test_inputs_may_share_a_storage(self, cpu):
        """A write to one input changes the other."""
        shared = Program(
            (Storage("float32", 4),),
            (Input("a", 0, "float32", (4,), (1,)), Input("b", 0, "int32", (2,), (1,), 2)),
            (Step("zero_", (t("b"),)),),
        )
        seen = Executor(cpu).run(ProgramSubject(shared)).observations[0]
        assert seen.tensors["a"].value.tolist() == [0, 1, 0, 0]
        assert seen.tensors["b"].alias == "a"

    def test_a_declared_error_is_an_answer(self, cpu):
        """The run continues after an error that the program declares."""
        seen = Executor(cpu).run(
            ProgramSubject(program(Step("view.error", (t("a"), [7]), raises="RuntimeError"), Step("zero_", (t("a"),))))
        )
        answer = seen.observations[0].others["step 1"]
        assert isinstance(answer, Raised)
        assert answer.kind == "RuntimeError"
        assert not seen.observations[0].tensors["a"].value.any()

    def test_an_error_that_is_not_declared_ends_the_run(self, cpu):
        """The outcome has the failed step and its error."""
        outcome = Executor(cpu).run(
            ProgramSubject(program(Step("zero_", (t("a"),)), Step("view.error", (t("a"), [7]))))
        )
        assert outcome.failed_step == 2
        assert outcome.observations[-1].error is not None

    @pytest.mark.tiny
    def test_what_earlier_programs_taught_is_forgotten(self):
        """A number that changes between calls is data. Regression test: a program's kernels depended on the programs
        before it."""
        tiny = load_target("tiny")

        def copies(number: float) -> int:
            before = tiny.backend.stats()["copies_in"]
            Executor(tiny).run(ProgramSubject(program(Step("mul_", (t("a"), number)))))
            return tiny.backend.stats()["copies_in"] - before

        assert {copies(number) for number in (0.25, 0.5, 0.75, 1.25, 1.5)} == {1}

    def test_values_are_exact_in_every_dtype(self):
        """Seeded values are the same numbers in each dtype that can represent them."""
        for dtype in ("float32", "bfloat16", "uint8", "bool", "complex64", "int8"):
            one, two = (Storage(dtype, 5, {"seed": 3}).make() for _ in range(2))
            assert torch.equal(one, two)


class TestVerdict:
    def test_the_first_bad_step_is_named(self):
        """A failure of a lazy run is located by a replay that observes after each step."""
        steps = (
            Step("zero_", (t("a"),)),
            Step("getitem", (t("a"), 1), out=("b",)),
            Step("fill_", (t("b"), 5)),
            Step("add_", (t("a"), 1)),
        )
        verdict = judge_program(program(*steps), MutantTarget("fill_ ignores the offset"))
        assert verdict.bad_step == 3

    def test_cpu_agrees_with_itself(self):
        """The harness against itself passes, kernel counts included."""

        bound = CpuAnswer(TRANSPOSE_AND_WRITE).most_kernels
        assert bound is not None

        class Counting(CpuTarget):
            facts = replace(CpuTarget.facts, measures=(KERNELS,))
            total, each = 0, bound

            def counters(self) -> dict[str, int]:
                self.total += self.each
                return {"kernels": self.total}

        verdict = judge_program(TRANSPOSE_AND_WRITE, Counting())
        assert verdict.passed
        assert verdict.measured == Measurements({"kernels": bound}, {"kernels": bound})
        Counting.each = bound + 1
        assert [mismatch.oracle for mismatch in judge_program(TRANSPOSE_AND_WRITE, Counting()).mismatches] == [
            "kernels"
        ]

    def test_not_implemented_is_never_a_pass(self):
        """If the CPU raises RuntimeError, an unsupported op still fails."""

        def missing(call: object) -> None:
            raise NotImplementedError("no such op")

        target = MutantTarget("zero_ clears the storage")
        target.mode = Planted(Fault("view zero_", missing, "a missing op"))
        for step in (Step("view.error", (t("a"), [7]), raises="RuntimeError"), Step("zero_", (t("a"),))):
            verdict = judge_program(program(step), target)
            assert verdict.mismatches[0].oracle == "error"
            assert "never a pass" in verdict.mismatches[0].detail
            assert verdict.bad_step == 1


class Negative(Target):
    """Target that negates every tensor in the move."""

    name = "negative"

    def upload(self, flats):
        return [-flat for flat in flats]


class TestScript:
    def test_it_runs_alone_and_shows_both_answers(self, tmp_path, standalone):
        """The script needs torch only, here with cpu as the target."""
        path = tmp_path / "shown.py"
        path.write_text(script(TRANSPOSE_AND_WRITE, load_target("device:cpu")))
        shown = standalone(path)
        assert shown.stdout.count("[7., 7.]") == 6
        assert "no difference here" in shown.stdout

    def test_it_opens_with_what_is_wrong_and_where(self):
        """The script starts with the difference and the first wrong step; the part after the marker has the command to
        repeat it."""
        text = script(
            TRANSPOSE_AND_WRITE,
            load_target("cpu"),
            [Mismatch("value", "a", "7", "8")],
            ["FAIL in 3 programs: value / fill_ / permuted", "Again: a command"],
            2,
        )
        assert ast.get_docstring(ast.parse(text)) == "a should be 7 and is 8"
        assert "    b.fill_(7)  # the first wrong step\n" in text
        behind = text.partition(f"{MARKER}\n")[2].splitlines()
        assert behind[1:3] == ["# FAIL in 3 programs: value / fill_ / permuted", "# Again: a command"]

    def test_definitions_travel_along(self):
        """The script contains functions that torch does not have."""
        text = script(program(Step("swap_rows_", (t("a"), 0, 1))), load_target("cpu"))
        assert "def swap_rows_(tensor, i, j)" in text
        assert "swap_rows_(a, 0, 1)" in text

    def test_hostile_text_stays_inert(self):
        """A note cannot end the docstring."""
        noted = Program(TRANSPOSE_AND_WRITE.storages, TRANSPOSE_AND_WRITE.inputs, (), 'x""" + \\ \x1b[31m')
        compile(script(noted, load_target("cpu")), "script", "exec")
        assert "\x1b" not in script(noted, load_target("cpu"))

    @pytest.mark.parametrize(("factor", "marked"), [(1.001, True), (1.0000001, False)])
    def test_what_a_script_prints_of_a_wrong_target(self, factor, marked, tmp_path, standalone):
        """The script prints both answers and the layouts of both sides. Regression test: a rounding within the
        tolerance was marked, and the picture was a comment."""

        class Wrong(Target):
            name = "wrong"
            facts = TargetFacts(transforms_program=True)

            def script(self):
                return (
                    "DEVICE = 'wrong'\n\n\ndef transform(function):\n    def wrong(a):\n"
                    f"        return {{key: made.contiguous() * {factor} for key, made in function(a).items()}}\n"
                    "    return wrong"
                )

        written = program(Step("t", (t("a"),), out=("b",)), Step("exp", (t("a"),), out=("c",)), cells=8)
        path = tmp_path / "shown.py"
        path.write_text(script(written, Wrong()))
        ran = standalone(path)
        assert ran.returncode == 1, ran.stderr
        shown = ran.stdout
        assert "stride of b: expected (1, 3), got (2, 1)\n" in shown
        assert ("value of c: expected [[1.0" in shown) == marked
        assert (
            """\
where the elements of a lie in their storage before the first step:
    cell      0 1 2 3 4 5 6 7
    a (2, 3)  0 1 2 3 4 5 . .
where the elements of b lie at the end:
    cell           0 1 2 3 4 5 6 7
    cpu (3, 2)     0 2 4 1 3 5 . .
    target (3, 2)  0 1 2 3 4 5 . .
"""
            in shown
        )

    @pytest.mark.parametrize("make", [lambda: MutantTarget("transpose is stale"), Negative])
    def test_a_script_that_cannot_show_it_says_so(self, make, capsys):
        """A planted fault or a target's own move is not in the script, so it reports no difference. Regression test: it
        printed nothing."""
        target = make()
        written = program(Step("t", (t("a"),), out=("b",)), Step("add_", (t("b"), 1)))
        verdict = judge_program(written, target)
        assert verdict.mismatches
        text = script(written, target, verdict.mismatches)
        with pytest.raises(SystemExit) as end:
            exec(compile(text, "<script>", "exec"), {"__name__": "__main__"})  # noqa: S102
        assert not end.value.code
        said = capsys.readouterr().out
        assert "no difference here: either it is mended, or what was found lies in what a script lacks" in said

    @pytest.mark.parametrize(
        ("index", "text"),
        [
            (3, "3"),
            ({"slice": [None, None, 2]}, "::2"),
            ({"tuple": [{"slice": [1, -1, None]}, None, {"ellipsis": 0}]}, "1:-1, None, ..."),
            ({"tuple": [2]}, "2,"),
            ({"i": [1, -1]}, "i - 1"),
            ({"i": [2, 1]}, "2 * i + 1"),
            ({"tuple": []}, "()"),
        ],
    )
    def test_indices_read_as_python(self, index, text):
        """An index is printed in ordinary Python with the same meaning."""
        assert render_index(index) == text
        decode(index, {}, torch.device("cpu"))


class TestArguments:
    @pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "bool", "complex64"])
    def test_special_integers_are_extremes(self, dtype):
        """The values include small numbers and the minimum and maximum of the dtype, so that sums wrap around."""
        tensor = Storage(dtype, 60, {"special": 3}).make()
        if dtype in ("bool", "complex64"):
            assert tensor.abs().max() <= 8 if tensor.is_complex() else tensor.any()
        else:
            info = torch.iinfo(tensor.dtype)
            assert {info.min, info.max} < set(tensor.tolist())
            assert tensor.unique().numel() > 5

    def test_special_numbers_survive(self):
        """nan and the infinities can be written in JSON."""
        value = decode({"number": "nan"}, {}, torch.device("cpu"))
        assert value != value
        assert render({"number": "inf"}) == "float('inf')"

    @pytest.mark.parametrize("bad", [{"no": 1}, {"slice": 3}, {"tensor": [1], "dtype": "x"}, {"t": "q"}])
    def test_what_is_not_understood_is_a_step_error(self, bad):
        """The error names the argument."""
        with pytest.raises(StepError):
            decode(bad, {}, torch.device("cpu"))


class TestTable:
    def test_every_call_exists(self):
        """Each row's name is callable in torch or in the definitions."""
        assert all(callable(op.draw) and op.family for op in OPS.values())
        assert len({op.name for op in OPS.values()}) == len(OPS)

    def test_faults_name_ops_that_exist(self):
        """Each fault names existing aten ops."""
        for fault in FAULTS.values():
            assert all(hasattr(torch.ops.aten, name) for name in fault.ops.split())
