"""The executor runs every kind of target, and both commands detect a faulty target of each kind."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from conformance.engine.executor import Executor, HarnessFault, StepFailed, is_lost
from conformance.engine.loading import describe_target, load_target
from conformance.engine.target import Capture, Target
from conformance.program.calls import judge_program, unsupported_call
from conformance.program.execute import ProgramSubject, SteppedProgram, make_inputs
from conformance.program.model import Call, Input, Program, Storage, dump
from conformance.program.script import script
from conformance.program.steps.op import Step, tensor
from conformance.program.verdict import UNCAPTURED
from conformance.record.errors import TargetError
from conformance.record.measurements import COMPILED, NOT_COMPILED, PARTLY
from conformance.record.result import Outcome, Result, load
from conformance.standalone.oracles import Mismatch
from conformance.standalone.script import own_part
from conformance.targets.cpu import CpuTarget

ROOT = Path(__file__).parent.parent.parent
PLANTED = Path(__file__).parent.parent / "planted"
PROGRAM = Program(
    (Storage("float32", 6),), (Input("a", 0, "float32", (2, 3), (3, 1)),), (Step("neg", (tensor("a"),), out=("b",)),)
)
LIARS = {
    "class:liars.ValueDevice": "value",
    "class:liars.StrideDevice": "stride",
    "class:liars.Meta": "stride",
    "class:liars.ValueTransform": "value",
    "class:liars.StrideTransform": "stride",
    "class:liars.RaisingTransform": "error",
    "class:liars.LeavingTransform": "error",
    "class:liars.LeavingAndRaisingTransform": "error",
    "class:liars.IdleTransform": "structure",
    "compile:off_by_one,import=liars": "value",
    "compile:by_columns,import=liars": "stride",
}


@pytest.fixture(autouse=True)
def liars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the planted targets importable."""
    monkeypatch.syspath_prepend(str(PLANTED))


def case_of(op: str, variant: str = "forward"):
    """A float32 case of op_db with two samples."""
    from conformance.sources.opinfo.plan import Case

    return Case(op, "", "unary", "float32", variant, "as_sampled", 2)


def compiled(result: Result) -> tuple[int | None, ...]:
    """The samples by how much of them reached the compiler."""
    return tuple(map(result.measurements.get, (COMPILED, PARTLY, NOT_COMPILED)))


class TestLies:
    @pytest.mark.parametrize(("spec", "oracle"), LIARS.items())
    def test_programs_catch_it(self, spec: str, oracle: str) -> None:
        """In a program, each fault is a mismatch of its oracle."""
        assert oracle in {
            mismatch.oracle for mismatch in judge_program(PROGRAM, load_target(spec), locate=False).mismatches
        }

    @pytest.mark.parametrize(("spec", "oracle"), LIARS.items())
    def test_op_db_catches_it(self, spec: str, oracle: str) -> None:
        """In an op_db sample, each fault is a failure too. Regression test: `opinfo` compared torch CPU with itself for
        every transforming target."""
        from conformance.sources.opinfo.case import run_case

        target = load_target(spec)
        for op in ("neg", "mul", "t"):
            result = run_case(case_of(op), target)
            if {oracle, "structure"} & {failure.oracle for failure in result.failures}:
                return
        pytest.fail(f"{spec} agrees")

    @pytest.mark.parametrize("variant", ["inplace", "method", "out", "backward", "error_inputs"])
    def test_a_lying_compiler_is_caught_in_every_variant(self, variant: str) -> None:
        """A backend that is off by one is detected in each way to call an op. A backend that never raises is detected
        with error inputs."""
        from conformance.sources.opinfo.case import run_case

        spec = "class:liars.IdleTransform" if variant == "error_inputs" else "compile:off_by_one,import=liars"
        result = run_case(case_of("add" if variant == "error_inputs" else "mul", variant), load_target(spec))
        assert result.failures, result

    @pytest.mark.parametrize("op", ["nn.functional.dropout", "randn_like", "bernoulli"])
    def test_a_lie_about_random_numbers_is_caught(self, op: str) -> None:
        """A backend that is off by one in random numbers is detected. Regression test: such ops were never compiled,
        because op_db calls them in a wrapper that sets a seed, which Dynamo cannot trace."""
        from conformance.sources.opinfo.case import run_case

        result = run_case(case_of(op), load_target("compile:off_by_one,import=liars"))
        assert "value" in result.oracles, result

    def test_a_transform_that_gives_its_function_back_is_refused(self) -> None:
        """Such a target gives one sentence and no result, for programs and samples."""
        from conformance.sources.opinfo.case import run_case

        target = load_target("class:liars.IdentityTransform")
        with pytest.raises(TargetError, match="transforms nothing"):
            judge_program(PROGRAM, target)
        with pytest.raises(TargetError, match="transforms nothing"):
            run_case(case_of("neg"), target)

    def test_a_backend_that_refuses_is_one_sentence(self) -> None:
        """The error comes before anything runs."""
        with pytest.raises(TargetError, match="this backend compiles nothing"):
            load_target("compile:refuses,import=liars")

    @pytest.mark.slow
    @pytest.mark.parametrize("command", [["fuzz", "--programs", "20", "--seed", "1"], ["opinfo", "--op", "mul"]])
    @pytest.mark.parametrize(
        ("spec", "code"),
        [("class:liars.ValueTransform", 1), ("class:liars.StrideDevice", 1), ("class:liars.IdentityTransform", 2)],
    )
    def test_the_commands_say_so(self, command: list[str], spec: str, code: int, tmp_path: Path) -> None:
        """A fault gives exit code 1. A target that transforms nothing gives exit code 2 and one sentence."""
        words = [sys.executable, "-m", "conformance", *command, "--target", spec, "--reports", str(tmp_path)]
        env = {"PYTHONPATH": f"{ROOT}:{PLANTED}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        said = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
        assert said.returncode == code, said.stdout + said.stderr
        assert "Traceback" not in said.stderr
        assert code == 1 or "transforms nothing" in said.stderr


class TestWatch:
    """`watch` receives each step before it runs, and whether the target may compile kernels for it."""

    @staticmethod
    def progress(target: Target, program: Program = PROGRAM) -> list[tuple[int, bool]]:
        calls: list[tuple[int, bool]] = []
        Executor(target).run(ProgramSubject(program), watch=lambda number, builds: calls.append((number, builds)))
        return calls

    def test_the_first_run_builds(self) -> None:
        """For a signature that is new to the target, the move, the step and the observation may all compile."""
        target = load_target("cpu")
        assert self.progress(target) == [(0, True), (1, True), (2, True), (2, False)]
        assert self.progress(target) == [(0, False), (1, False), (2, False), (2, False)]

    def test_dtype_and_rank_are_part_of_it(self) -> None:
        """Another dtype or rank needs another kernel."""
        target = load_target("cpu")
        self.progress(target)
        for dtype, shape, stride in (("float64", (2, 3), (3, 1)), ("float32", (6,), (1,))):
            other = Program((Storage(dtype, 6),), (Input("a", 0, dtype, shape, stride),), PROGRAM.steps)
            assert self.progress(target, other) == [(0, True), (1, True), (2, True), (2, False)]
            assert self.progress(target, other)[1] == (1, False)

    def test_a_new_step_after_a_known_one(self) -> None:
        """Only the new step and the observation after it may compile."""
        target = load_target("cpu")
        self.progress(target)
        longer = PROGRAM.with_steps((*PROGRAM.steps, Step("exp", (tensor("b"),), out=("c",))))
        assert self.progress(target, longer) == [(0, False), (1, False), (2, True), (3, True), (3, False)]

    def test_a_compiler_builds_every_time(self) -> None:
        """Each program is a new function for a compiler."""
        target = load_target("aot_eager")
        for _ in range(2):
            assert self.progress(target)[1] == (1, True)

    @pytest.mark.parametrize(("spec", "lazy"), [("tiny", True), ("device:xla", True), ("device:cpu", False)])
    def test_a_lazy_device_builds_every_time(self, spec: str, lazy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """A lazy device fuses whole programs and compiles when their results are observed."""
        assert describe_target(spec).facts.lazy is lazy
        target = load_target("cpu")
        target.facts = replace(target.facts, lazy=lazy)
        self.progress(target)
        assert self.progress(target) == [(0, lazy), (1, lazy), (2, lazy), (2, False)]


class TestNotCompiled:
    def test_a_program_is_no_pass(self) -> None:
        """A program without captured ops agrees trivially, so it counts as unsupported."""
        verdict = judge_program(PROGRAM, load_target("class:liars.UncapturedTransform"))
        assert (verdict.passed, verdict.unsupported) == (False, UNCAPTURED)

    def test_a_sample_is_no_pass(self) -> None:
        """The case compares nothing, and its reason says why."""
        from conformance.sources.opinfo.case import run_case

        result = run_case(case_of("neg"), load_target("class:liars.UncapturedTransform"))
        assert (result.outcome, result.samples) == ("SKIP", 0)
        assert "not compiled" in result.reason

    @pytest.mark.parametrize("op", ["nn.functional.dropout2d", "randn", "multinomial", "nn.functional.rrelu"])
    def test_random_numbers_are_compiled(self, op: str) -> None:
        """Both sides use the seed that the harness sets, and the backend receives the op; afterwards op_db's own
        seeding is restored."""
        from torch.testing._internal import common_methods_invocations as invocations

        from conformance.sources.opinfo.case import run_case

        wrapper = invocations.wrapper_set_seed
        result = run_case(case_of(op), load_target("compile:aot_eager"))
        assert (result.outcome, compiled(result)) == ("PASS", (2, 0, 0)), result
        assert invocations.wrapper_set_seed is wrapper

    def test_a_graph_break_on_the_op_itself_is_not_compiled(self) -> None:
        """The output size of `masked_select` depends on values, so Dynamo passes no graph to the backend."""
        from conformance.sources.opinfo.case import run_case

        result = run_case(case_of("masked_select"), load_target("compile:eager"))
        assert (result.outcome, result.samples, result.skipped) == ("SKIP", 0, 2)
        assert compiled(result) == (0, 0, 2)

    @pytest.mark.parametrize(
        ("capture", "extent"),
        [(Capture(), "not compiled"), (Capture(1, 3), "compiled"), (Capture(2, 3, 1), "partly compiled")],
    )
    def test_extent(self, capture: Capture, extent: str) -> None:
        """The ops in graphs and the graph breaks decide how far a function was compiled."""
        assert capture.extent == extent


class TestCompileSpec:
    @pytest.mark.parametrize(
        ("spec", "text"),
        [
            (
                "compile:aot_egaer",
                "knows no backend 'aot_egaer': write compile:aot_egaer,import=MODULE, .*; did you mean aot_eager",
            ),
            ("compile:aot_eager,impotr=x", r"is not understood \(it has no option 'impotr'\): write compile:NAME"),
            ("compile:aot_eager,dynamic=maybe", "is not understood: write compile:NAME"),
            ("compile:aot_eager,device=cdua", "no device 'cdua': write compile:aot_eager,device=cdua,import=MODULE"),
            ("compile:aot_eager,device=cuda", "no usable device 'cuda' here"),
            ("compile:", "is not understood: write compile:NAME"),
            ("compile:eager,import=not_there", "No module named 'not_there'"),
            ("compile:eager,import=liars,call=not_there", "has no function 'not_there'"),
        ],
    )
    def test_bad_input_is_one_sentence(self, spec: str, text: str) -> None:
        """A typo gets the nearest name; a module that cannot be imported gets its own error."""
        with pytest.raises(TargetError, match=text):
            load_target(spec)

    def test_a_function_is_called_after_the_import(self) -> None:
        """Some packages register their backend only in an explicit call."""
        Path(PLANTED, "liars.py")  # registers when it is imported; `off_by_one` is called with no tensor
        with pytest.raises(TargetError, match="off_by_one"):
            load_target("compile:eager,import=liars,call=off_by_one")


class TestCompileOnADevice:
    """`compile:NAME,device=DEVICE`: the inputs move, and the compiled function runs there."""

    SPEC = "compile:aot_eager,device=tiny,import=conformance.backend"

    def test_it_is_probed_like_a_device(self) -> None:
        """A probe must find the features of a device; it runs none for the CPU. Each layer uses the same device."""
        target = describe_target(self.SPEC)
        assert (target.facts.probed, target.facts.compiles, target.facts.on) == (True, True, "tiny")
        assert target.facts.siblings == ("compile:eager,device=tiny,import=conformance.backend",)
        known = describe_target(f"{self.SPEC},without=random+version")
        assert (known.facts.probed, known.facts.lacks) == (False, {"random", "version"})
        assert "version" not in known.facts.oracles
        assert not describe_target("compile:aot_eager").facts.probed

    def test_the_function_runs_there(self) -> None:
        """The compiled function receives tensors of the device. The judge compares its result and the tensor that a
        factory in it creates."""
        target, places = load_target(f"{self.SPEC},without=nothing"), set[str]()
        transform = target.transform

        def noting(function: Any) -> Any:
            compiled = transform(function)
            return lambda *inputs: [places.update(one.device.type for one in inputs), compiled(*inputs)][1]

        target.transform = noting  # type: ignore[method-assign]
        ones = Step("op_db:ones", ([2, 3],), {"device": {"device": 0}}, ("c",))
        verdict = judge_program(PROGRAM.with_steps((*PROGRAM.steps, ones)), target)
        assert (verdict.mismatches, verdict.unsupported, places) == ((), "", {"tiny"})
        assert "ON = 'tiny'" in target.script()

    def test_the_script_moves_its_inputs(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The inputs of each call are on the device. Formerly a script compiled a function of CPU tensors."""
        program = PROGRAM.with_steps((*PROGRAM.steps, Step("add_", (tensor("b"), tensor("b")))))
        program = dataclasses.replace(program, calls=(Call(under=("no_grad",)),))
        difference = Mismatch("value", "b", "[0.0]", "[1.0]", "1 of 6 elements differ (bits)")
        text = script(program, describe_target(f"{self.SPEC},without=nothing"), [difference])
        shown = own_part(text)
        assert shown.count(".to(device)") == 2 and "run(*inputs_1(ON).values())" in shown
        scope: dict[str, Any] = {}
        exec(compile(shown, "<script>", "exec"), scope)  # noqa: S102 - our own script
        out = capsys.readouterr().out
        assert [line.partition(" ")[0] for line in out.splitlines()] == ["cpu", "aot_eager"]
        assert scope["inputs_1"]("tiny")["a"].device.type == "tiny"

    def test_autocast_of_cpu_tensors_is_left_out(self) -> None:
        """It has no effect on another device, and was a false alarm there."""
        program = dataclasses.replace(PROGRAM, calls=(Call(under=("whole_autocast:bfloat16",)),))
        assert unsupported_call(program, describe_target(self.SPEC)) == "under whole_autocast:bfloat16"
        assert not unsupported_call(program, describe_target("compile:aot_eager"))


class TestForwardAD:
    """A run that leaves forward-mode AD entered is wrong, and spoils no later run. Regression test: a compiler that
    failed inside `jvp` made torch CPU refuse each later one."""

    @pytest.mark.parametrize("kind", ["LeavingTransform", "LeavingAndRaisingTransform"])
    def test_a_later_jvp_works(self, kind: str) -> None:
        """The verdict names the error, and `jvp` works again after the run."""
        (first, *_) = judge_program(PROGRAM, load_target(f"class:liars.{kind}"), locate=False).mismatches
        raised = {"LeavingTransform": ("a later jvp", "Nested forward mode AD"), "": ("the whole run", "no kernel")}
        where, text = raised[kind if kind in raised else ""]
        assert (first.oracle, first.where) == ("error", where) and text in first.detail
        assert torch.func.jvp(torch.sin, (torch.zeros(2),), (torch.ones(2),))[1].tolist() == [1, 1]

    def test_the_users_own_level_stays(self) -> None:
        """A level that Python code entered is not a leak."""
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(torch.zeros(2), torch.ones(2))
            assert not judge_program(PROGRAM, load_target("cpu"), locate=False).mismatches
            assert torch.autograd.forward_ad.unpack_dual(dual.sin()).tangent.tolist() == [1, 1]


class MetaFactories(CpuTarget):
    """A target with a mode under which a factory makes a meta tensor, as torchax makes one of its own."""

    name = "meta factories"

    def entered(self) -> contextlib.AbstractContextManager[None]:
        return torch.device("meta")


class TestModes:
    """Formerly the inputs of each program were made under the target's modes, and torchax lost its device at each."""

    def test_the_inputs_are_made_before_the_modes_of_the_target(self) -> None:
        execution = Executor(MetaFactories()).run(ProgramSubject(PROGRAM))
        assert execution.last.error is None
        assert execution.last.tensors["b"].value.tolist() == [[0.0, -1.0, -2.0], [-3.0, -4.0, -5.0]]

    def test_the_check_of_a_lost_device_runs_under_them(self) -> None:
        target, entered = MetaFactories(), list[bool]()
        upload = target.upload

        def noting(flats: Any) -> Any:
            entered.append(torch.zeros(1).is_meta)
            return upload(flats)

        target.upload = noting  # type: ignore[method-assign]
        assert not is_lost(target)
        with target.entered():
            assert not is_lost(target)
        assert entered == [True, True]


class TestLostDevice:
    """An error that leaves the device unusable ends the worker, since every later answer would be wrong."""

    def test_the_check_is_not_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The check calls the device, so the executor reads the counters before it."""
        target, order = load_target("tiny"), list[str]()
        counters = target.counters

        @contextlib.contextmanager
        def fails() -> Iterator[None]:
            raise RuntimeError("no step runs")
            yield

        monkeypatch.setattr(target, "active", fails)
        monkeypatch.setattr(target, "counters", lambda: [order.append("counters"), counters()][1])
        monkeypatch.setattr("conformance.engine.executor.is_lost", lambda target: [order.append("check"), False][1])
        assert Executor(target).run(ProgramSubject(PROGRAM)).last.error is not None
        assert order == ["counters", "counters", "check"]

    def test_a_device_without_values(self) -> None:
        """An error on the meta device is an answer. Regression test: each one ended the worker, as a crash "the target
        was lost", since the check reads a number."""
        target, asks = load_target("meta"), PROGRAM.with_steps((Step("tolist", (tensor("a"),), out=("b",)),))
        raised = Executor(target).run(ProgramSubject(asks)).last.error
        assert raised is not None and "meta" in raised.text

    REFUSED = Program(
        (Storage("float32", 6),),
        PROGRAM.inputs,
        (Step("view.error", (tensor("a"), [7]), raises="RuntimeError"), Step("neg", (tensor("a"),), out=("b",))),
    )

    @pytest.mark.parametrize("lost", [True, False])
    def test_a_late_error_belongs_to_the_refused_call(self, monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
        """CUDA reports an index out of range at a later call. Formerly the report named that call: `matmul`, `lcm_`."""
        target = load_target("cpu")

        def late() -> None:
            raise RuntimeError("device-side assert")

        monkeypatch.setattr(target, "synchronize", late)
        monkeypatch.setattr("conformance.program.execute.is_lost", lambda target: lost)
        running = SteppedProgram(self.REFUSED, make_inputs(self.REFUSED), target)
        running.advance(1)  # the CPU refuses this call at once, so there is no need to wait
        assert "invalid for input" in running.answers["step 1"].text
        monkeypatch.setattr(running, "call", lambda op, args, kwargs: None)
        running.done = 0
        if lost:
            with pytest.raises(StepFailed, match=r"step 1 \(view\.error\)"):
                running.advance(1)
        else:
            running.advance(1)
            assert running.answers["step 1"].text == "device-side assert"

    PROGRAMS: ClassVar[dict[str, str]] = {"exp": "exp", "sort": "op_db:msort", "neg": "neg"}

    @pytest.mark.timeout(120)
    def test_a_campaign_goes_on(self, tmp_path: Path) -> None:
        """The program that lost the device is a crash with the device's error; the programs after it pass."""
        (tmp_path / "corpus").mkdir()
        for name, op in self.PROGRAMS.items():
            program = Program(PROGRAM.storages, PROGRAM.inputs, (Step(op, (tensor("a"),), out=("b",)),))
            (tmp_path / "corpus" / f"{name}.json").write_text(dump(program))
        words = [sys.executable, "-m", "conformance", "fuzz", "--target", "device:toy,import=toy_device"]
        words += ["--programs", "0", "--corpus", "corpus", "--reports", str(tmp_path), "-n", "1"]
        env = {"PYTHONPATH": f"{ROOT}:{PLANTED}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        env["TOY_FAULTS"] = "lost_after_sort"
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
        assert done.returncode == 1, done.stdout + done.stderr
        run = load(tmp_path / "fuzz.json")
        assert [result.outcome for result in run.unexpected] == [Outcome.CRASH]
        assert "was lost (RuntimeError: toy error: assertion failed in sort)" in str(run.unexpected[0].failures[0])
        assert "2 passed, 1 failed" in done.stdout
        assert "1 of 1 script shows its headline" in done.stdout


def test_a_fault_of_the_harness_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression test: an error in a signature was the answer of both sides, so 547 cases of op_db passed."""

    def signature(self: SteppedProgram, number: int) -> None:
        raise NameError("name 'tensors' is not defined")

    monkeypatch.setattr(SteppedProgram, "signature", signature)
    with pytest.raises(HarnessFault, match=r"^signature of step 1: NameError: name 'tensors' is not defined$"):
        Executor(load_target("cpu")).run(ProgramSubject(PROGRAM))


def test_nothing_else_runs_anything_on_a_target() -> None:
    """Outside the targets, only the executor sends tensors, enters a target's mode or applies its transform."""
    calls = {"send", "transform", "active", "capture"}
    # A program on given inputs draws directions of derivation, and sends those with the function of its target.
    # A reported bug is a function of Python that its file calls several times; it is no subject. A check of an operator
    # is a function that scripts carry, so it gets the compiler's transform, and sees whether that received anything.
    direct = {"repros.py", "checks.py"}
    violations = []
    for path in (ROOT / "conformance").rglob("*.py"):
        if {"backend", "targets"} & set(path.parts) or path.name in {"executor.py", *direct}:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in calls:
                owner = ast.unparse(node.func.value)
                if "target" in owner.lower():
                    violations.append(f"{path.name}: {owner}.{node.func.attr}")
    assert violations == []


def test_steps_are_run_one_by_one() -> None:
    """With `each`, every step has an observation, and the last one equals that of a normal run."""
    cpu = load_target("cpu")
    both = PROGRAM.with_steps((*PROGRAM.steps, Step("zero_", (tensor("b"),))))
    seen = Executor(cpu).run(ProgramSubject(both), stepwise=True)
    assert [observation.tensors["b"].value.abs().sum().item() for observation in seen.observations] == [15.0, 0.0]
    assert torch.equal(seen.last.tensors["b"].value, Executor(cpu).run(ProgramSubject(both)).last.tensors["b"].value)
