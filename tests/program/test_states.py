"""Steps under a state: the state takes effect, is always restored, prints as it runs, and can be removed by
reduction."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from conformance.declare.declaration import unsupported
from conformance.engine.executor import Executor
from conformance.engine.loading import describe_target, load_target
from conformance.program.calls import judge_program
from conformance.program.execute import ProgramSubject, RunningProgram
from conformance.program.float64 import truth_of
from conformance.program.model import Input, Program, ProgramError, Storage
from conformance.program.reduce import reduce_program
from conformance.program.script import script
from conformance.program.shadow import reference
from conformance.program.source import source
from conformance.program.steps import snippets
from conformance.program.steps.op import Step, tensor
from conformance.program.steps.stateful import TOPICS
from conformance.program.steps.states import OF_STEPS, STATES, ordered, within
from conformance.program.steps.table import OPS
from conformance.program.trial import CpuAnswer, CpuFunction
from conformance.program.unsupported import unsupported_reason
from conformance.sources.fuzzing import kinds
from conformance.sources.fuzzing.drawing import Drawing
from conformance.sources.fuzzing.kinds import PERIOD
from conformance.standalone.oracles import compare
from conformance.targets.cpu import CpuTarget

A = tensor("a")


def program(*steps: Step, dtype: str = "float32", grad: bool = False) -> Program:
    return Program((Storage(dtype, 6),), (Input("a", 0, dtype, (2, 3), (3, 1), 0, grad),), steps)


def settings() -> list[object]:
    """All global settings that a state changes."""
    subnormal = torch.full((), 2.0**-130) * 1.0
    values = [*snippets.global_state(), torch.get_default_device().type, bool(subnormal.item())]
    with torch.overrides._enable_torch_function():
        values += [len(torch.overrides._get_current_function_mode_stack())]
    values += [len(torch.utils._python_dispatch._get_current_dispatch_mode_stack())]
    return [*values, torch._C._functorch.maybe_current_level()]


class TestWithin:
    @pytest.mark.parametrize("name", STATES)
    def test_what_was_is_set_back(self, name):
        """Settings are restored after the call, and after one that raises, with its own exception."""
        before = settings()
        within((name,), "cpu", lambda: torch.ones(2))
        assert settings() == before
        with pytest.raises(ZeroDivisionError):
            within((name,), "cpu", lambda: 1 // 0)
        assert settings() == before

    def test_what_was_is_set_back_after_ctrl_c(self):
        """A KeyboardInterrupt, which is no Exception, also leaves every context."""

        def stopped():
            raise KeyboardInterrupt

        before = settings()
        for name in STATES:
            if not STATES[name].wraps:
                with pytest.raises(KeyboardInterrupt):
                    within((name,), "cpu", stopped)
                assert settings() == before

    @pytest.mark.parametrize(
        ("name", "call", "answer"),
        [
            ("default_dtype:float64", lambda: (torch.ones(2, dtype=torch.int64) / 2).dtype, torch.float64),
            ("default_dtype:bfloat16", lambda: torch.tensor([1.5]).dtype, torch.bfloat16),
            ("no_grad", torch.is_grad_enabled, False),
            ("inference_mode", lambda: torch.ones(2).is_inference(), True),
            ("autocast:bfloat16", lambda: (torch.ones(2, 2) @ torch.ones(2, 2)).dtype, torch.bfloat16),
            ("deterministic", lambda: torch.empty(2, dtype=torch.int8).tolist(), [127, 127]),
            ("flush_denormal", lambda: bool(torch.full((), 2.0**-130) * 1.0), False),
            ("vmap", lambda: torch._C._functorch.maybe_current_level() is None, False),
            ("vjp", lambda: torch._C._functorch.maybe_current_level() is None, False),
        ],
    )
    def test_the_call_is_made_in_the_state(self, name, call, answer):
        """The call has another result inside the state than outside."""
        assert within((name,), "cpu", call) == answer
        assert call() != answer or name == "no_grad"

    @pytest.mark.parametrize("name", sorted(STATES))
    def test_an_empty_answer_passes(self, name):
        """A call may have nothing to say, such as one that should warn and does not."""
        assert within((name,), "cpu", list) == []

    def test_threads_are_as_many_as_it_says(self):
        """The number of threads is set, whatever the process started with."""
        assert [within((name,), "cpu", torch.get_num_threads) for name in ("threads:1", "threads:2")] == [1, 2]

    def test_a_call_in_a_thread_has_the_states_of_that_thread(self):
        """Grad mode belongs to one thread, and the default dtype to all threads."""
        assert within(("no_grad", "thread"), "cpu", torch.is_grad_enabled)
        assert within(("default_dtype:float64", "thread"), "cpu", torch.get_default_dtype) is torch.float64

    def test_the_default_device_is_the_program_s(self):
        """New tensors without a device argument are on the target's device."""
        assert within(("default_device",), torch.device("meta"), lambda: torch.ones(2)).is_meta


class TestData:
    def test_a_step_without_states_is_written_as_before(self):
        """Programs, corpora and kernel baselines depend on the JSON of a program."""
        step = Step("neg", (A,), out=("b",))
        assert step.to_json() == {"op": "neg", "args": [A], "out": ["b"]}
        assert Step.from_json(step.to_json()) == step

    def test_states_survive_json(self):
        """States survive a round trip through JSON."""
        step = Step("neg", (A,), out=("b",), under=("no_grad", "thread"))
        assert Step.from_json(step.to_json()) == step

    @pytest.mark.parametrize(
        ("under", "message"),
        [
            (["nonsense"], "step 'neg' is under the unknown state 'nonsense'"),
            (["thread", "no_grad"], "the states thread, no_grad, of which one that takes a call must stand alone and"),
            (["vmap", "thread"], "the states vmap, thread, of which"),
        ],
    )
    def test_bad_states_are_one_sentence(self, under, message):
        """States that cannot be printed are rejected."""
        data = program(Step("neg", (A,), out=("b",))).to_json()
        data["steps"][0]["under"] = under
        with pytest.raises(ProgramError, match=message):
            Program.from_json(data)

    def test_a_loop_is_no_one_call(self):
        """A state that takes one call cannot contain a loop."""
        inner = Step("setitem", (A, {"i": [1, 0]}, 1))
        loop = Step("loop", body=(inner,), times=2, under=("thread",))
        with pytest.raises(ProgramError, match="step 1 is a loop under a state that takes one call"):
            program(loop).check()
        program(Step("loop", body=(inner,), times=2, under=("no_grad",))).check()

    def test_a_step_that_needs_a_state_means_nothing_without(self):
        """Uninitialized memory is undefined, unless deterministic algorithms fill it."""
        empty = Step("empty.state", ([2],), {"dtype": {"dtype": "int8"}, "device": {"device": 0}}, ("b",))
        with pytest.raises(ProgramError, match="no defined meaning: without the state that it needs"):
            reference(program(empty))
        under = Step(empty.op, empty.args, empty.kwargs, empty.out, under=("deterministic",))
        assert reference(program(under)).observation.tensors["b"].value.tolist() == [127, 127]

    def test_autocast_promises_products_only(self):
        """For other ops, each device chooses the dtype under autocast."""
        with pytest.raises(ProgramError, match="a state that promises nothing of the step"):
            reference(program(Step("exp", (A,), out=("b",), under=("autocast:bfloat16",))))


class TestScript:
    def test_states_are_lines_of_python(self):
        """A state is a `with` statement, or a function around the call; a statement becomes a function."""
        text = source(
            program(
                Step("neg", (A,), out=("b",), under=("default_dtype:float64", "no_grad")),
                Step("neg", (A,), out=("c",), under=("no_grad", "thread")),
                Step("setitem", (A, 0, 1), under=("vmap",)),
                Step("item", (A,), raises="RuntimeError", under=("thread",)),
            )
        )
        assert "    with default_dtype(torch.float64), torch.no_grad():\n        b = a.neg()\n" in text
        assert "    with torch.no_grad():\n        c = in_thread(lambda: a.neg())\n" in text
        assert "    def within_3(): a[0] = 1\n    in_vmap(within_3)\n" in text
        assert "    answer_4 = attempt(lambda: in_thread(lambda: a.item()))\n" in text

    def test_a_program_means_the_same_as_one_function(self):
        """The source as one function gives the results of the step-by-step run, for each of forty drawn programs that
        observation does not change."""
        compared = 0
        for number in range(40):
            drawn = Drawing().numbered(3, PERIOD * number + kinds.STATES.turns[0])
            if any(one.requires_grad for one in drawn.inputs) or any(s.op == "requires_grad_" for s in drawn.steps):
                continue
            expected = reference(drawn)
            ran = Executor(CpuFunction()).run(ProgramSubject(drawn)).last
            assert not compare(expected.observation, ran, oracles=CpuFunction.facts.oracles - {"version"})
            compared += 1
        assert compared > 15

    def test_a_script_needs_torch_only(self, standalone):
        """The script contains the code that enters its states, with its imports."""
        example = program(
            Step("true_divide.state", (A, 2), out=("b",), under=("default_dtype:float64", "thread")),
            Step("pickled_together", (A, A), out=("c", "d"), under=("function_mode",)),
            Step("warned", ("mask", {"device": 0}), under=("dispatch_mode", "vmap")),
            Step("seeded", ("rand", 3, {"device": 0})),
            Step("empty.state", ([2],), {"dtype": {"dtype": "int8"}, "device": {"device": 0}}, ("e",),
                 under=("deterministic", "vmap")),
            Step("full.state", ([2], 1.5), {"device": {"device": 0}}, ("f",), under=("vjp",)),
            dtype="int64",
        )  # fmt: skip
        none = "import sys\nsys.modules['conformance'] = None  # so that it cannot be imported\n"
        ran = standalone(none + script(example, describe_target("cpu")))
        assert ran.returncode == 0, ran.stderr
        assert "torch.float64" in ran.stdout


class TestJudging:
    @pytest.mark.parametrize(
        "step",
        [
            Step("true_divide.state", (A, 2), out=("b",), under=("default_dtype:float16",)),
            Step("matmul.state", (A, {"tensor": [[1.0]] * 3, "dtype": "float32"}), out=("b",),
                 under=("autocast:bfloat16",)),
        ],
    )  # fmt: skip
    def test_float64_is_asked_outside_of_what_narrows(self, step):
        """The reference computes in float64, whatever the default dtype or autocast."""
        narrow, wide = truth_of(program(step, dtype="int64" if "divide" in step.op else "float32"))
        assert narrow.tensors["b"].dtype in (torch.float16, torch.bfloat16)
        assert wide.tensors["b"].dtype is torch.float64

    def test_autocast_that_torch_disables_is_not_judged(self, monkeypatch):
        """On a device that does not list bfloat16, torch warns and casts nothing."""
        step = Step("matmul.state", (A, {"tensor": [[1.0]] * 3, "dtype": "float32"}), out=("b",),
                    under=("autocast:bfloat16",))  # fmt: skip
        assert judge_program(program(step), CpuTarget()).unsupported == ""
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
        assert judge_program(program(step), CpuTarget()).unsupported == "under autocast:bfloat16"

    def test_whether_autograd_will_record_is_seen(self):
        """An inference tensor differs in this fact only."""
        tensors = reference(program(Step("neg", (A,), out=("b",), under=("inference_mode",)))).observation.tensors
        assert ["inference" in tensors[name].metadata["contiguity"] for name in "ab"] == [False, True]

    def test_counting_changes_nothing(self):
        """Counting aten ops does not change an observed run. Regression test: under the counting mode, such a view did
        not require grad, and a correct program failed, but only when it ran with others."""
        view = program(Step("broadcast_to", (A, [2, 3]), out=("b",), under=("inference_mode",)), grad=True)
        cpu = CpuAnswer(view)
        assert cpu.most_kernels == 2  # the input to the device, and the results of both back
        assert cpu.end.observation.tensors["b"].requires_grad

    def test_compilers_get_what_goes_into_a_graph(self):
        """Compilers get only the states that a graph can record; the others are for devices."""
        target = describe_target("aot_eager")
        recorded = Step("neg", (A,), out=("b",), under=("no_grad",))
        assert unsupported_reason(program(recorded), target.facts) == ""
        threaded = Step("neg", (A,), out=("b",), under=("no_grad", "thread"))
        assert unsupported_reason(program(threaded), target.facts) == "under thread"

    def test_a_target_may_leave_a_state_out(self):
        """A target may exclude a state with or without its argument."""
        target = describe_target("cpu")
        threaded = program(Step("neg", (A,), out=("b",), under=("threads:2",)))
        for name in ("threads", "threads:2"):
            target.facts = replace(target.facts, declarations=(unsupported("so", state=name),))
            assert unsupported_reason(threaded, target.facts) == "under threads:2"

    def test_a_stale_answer_is_found_in_the_program_that_taught_it(self):
        """The program runs the op under another default dtype, and then under the usual one."""
        twice = program(
            Step("true_divide.state", (A, 2), out=("b",), under=("default_dtype:float64",)),
            Step("true_divide.state", (A, 2), out=("c",)),
            dtype="int64",
        )
        verdict = judge_program(twice, load_target("mutant:promotion remembers the default dtype"))
        assert (verdict.mismatches[0].oracle, verdict.mismatches[0].where, verdict.bad_step) == ("dtype", "c", 2)


class TestReduce:
    def test_states_that_do_not_matter_go(self):
        """Of three states, only the one that shows the fault remains."""
        target = load_target("mutant:a write in a transform is lost")
        whole = program(
            Step("neg", (A,), out=("b",), under=("default_dtype:float64", "thread")),
            Step("add_", (A, 1), under=("no_grad", "function_mode", "vmap")),
        )
        small = reduce_program(whole, lambda one: not judge_program(one, target, locate=False).passed)
        assert [(step.op, step.under) for step in small.steps] == [("add_", ("vmap",))]


@pytest.fixture(scope="module")
def drawn_with_states():
    """Five programs that change states for each topic; drawn here rather than at test collection."""
    count = 5 * len(TOPICS)
    return [Drawing().numbered(0, number) for number in range(kinds.STATES.turns[0], PERIOD * count, PERIOD)]


class TestDrawing:
    @pytest.mark.parametrize("blocks", [8, pytest.param(84, marks=pytest.mark.slow)])
    def test_one_program_in_eight_changes_states(self, blocks):
        """No other program does, so the programs between them are those of a generator without states."""
        for number in range(PERIOD * blocks):
            drawn = Drawing().numbered(0, number)
            stateful = any(s.under or OPS[s.op].family == "state" for s in drawn.steps)
            assert stateful <= (number % PERIOD == kinds.STATES.turns[0])

    def test_each_state_is_reached(self, drawn_with_states):
        """These programs make calls under every state, and again outside it."""
        repeated = {
            name
            for drawn in drawn_with_states
            for one, two in zip(drawn.steps, drawn.steps[1:])
            if one.op == two.op and one.args == two.args
            for name in {*one.under} ^ {*two.under}
        }
        assert repeated == {*OF_STEPS}

    def test_no_step_is_under_the_state_of_a_whole_function(self, drawn_with_states):
        """Formerly a step ran under autocast of CPU tensors. It changes nothing on a device, so `mm` was a finding."""
        assert not {name for one in drawn_with_states for step in one.steps for name in step.under} - {*OF_STEPS}
        whole = {name.partition(":")[0] for name in set(STATES) - set(OF_STEPS)}
        assert whole == {"whole_autocast", "object", "seed"}

    def test_each_step_of_the_family_is_drawn(self, drawn_with_states):
        """A row that is never drawn tests nothing."""
        drawn = {step.op for one in drawn_with_states for step in one.steps}
        assert {op.name for op in OPS.values() if op.family == "state"} - drawn == set()

    def test_each_is_restored_by_the_end(self, drawn_with_states):
        """Most of these programs end with a query of global state, which detects a device that leaves it changed."""
        ends = [one.steps[-1].op for one in drawn_with_states]
        assert ends.count("global_state") > len(ends) / 2

    def test_without_the_family_no_states_are_drawn(self):
        """A target that excludes the family gets no states."""
        plain = Drawing(without=("state",)).numbered(0, kinds.STATES.turns[0])
        assert not any(step.under for step in plain.steps)

    def test_torch_cpu_agrees_with_itself(self, drawn_with_states):
        """Sixty programs, run as a target."""
        target = load_target("cpu")
        for drawn in drawn_with_states[:60]:
            assert judge_program(drawn, target).passed

    def test_states_stand_as_they_can_be_printed(self):
        """Contexts come first, and each state occurs once."""
        assert ordered(("thread", "no_grad", "no_grad")) == ("no_grad", "thread")


class LeavesGradOff(type(describe_target("cpu"))):
    """Torch CPU that leaves gradient recording disabled after its calls."""

    def active(self):
        torch.set_grad_enabled(False)
        return super().active()


def test_a_setting_that_is_not_set_back_is_found():
    """The query of global state at the end detects it."""
    before = torch.is_grad_enabled()
    try:
        running = RunningProgram(program(Step("global_state")))
        running.step(running.program.steps[0])
        expected = reference(running.program)
        seen = Executor(LeavesGradOff()).run(ProgramSubject(running.program)).last
    finally:
        torch.set_grad_enabled(before)
    assert [mismatch.where for mismatch in compare(expected.observation, seen)] == ["step 1[1]"]
