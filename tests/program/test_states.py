"""A step under a state: the state takes effect, is set back whatever happens, prints as it runs, and shrinks away."""

from __future__ import annotations

import pytest
import torch

from conformance.core.executor import Executor
from conformance.core.loading import describe_target, load_target
from conformance.core.oracles import compare
from conformance.fuzzing.drawing import STATE_AT, STATE_EVERY, Drawing
from conformance.program.execute import ProgramSubject, RunningProgram
from conformance.program.float64 import truth_of
from conformance.program.model import Input, Program, ProgramError, Storage
from conformance.program.reduce import reduce_program
from conformance.program.script import script
from conformance.program.shadow import reference
from conformance.program.source import source
from conformance.program.steps import definitions
from conformance.program.steps.op import Step, tensor
from conformance.program.steps.states import STATES, ordered, within
from conformance.program.steps.table import OPS
from conformance.program.unsupported import unsupported_reason
from conformance.program.verdict import CpuFunction, judge_program

A = tensor("a")


def program(*steps: Step, dtype: str = "float32", grad: bool = False) -> Program:
    return Program((Storage(dtype, 6),), (Input("a", 0, dtype, (2, 3), (3, 1), 0, grad),), steps)


def settings() -> list[object]:
    """All that is global and that a state changes."""
    subnormal = torch.full((), 2.0**-130) * 1.0
    found = [*definitions.global_state(), torch.get_default_device().type, bool(subnormal.item())]
    with torch.overrides._enable_torch_function():
        found += [len(torch.overrides._get_current_function_mode_stack())]
    found += [len(torch.utils._python_dispatch._get_current_dispatch_mode_stack())]
    return [*found, torch._C._functorch.maybe_current_level()]


class TestWithin:
    @pytest.mark.parametrize("name", STATES)
    def test_what_was_is_set_back(self, name):
        """After the call, and after one that raises, which raises what it raised outside."""
        before = settings()
        within((name,), "cpu", lambda: torch.ones(2))
        assert settings() == before
        with pytest.raises(ZeroDivisionError):
            within((name,), "cpu", lambda: 1 // 0)
        assert settings() == before

    def test_what_was_is_set_back_after_ctrl_c(self):
        """A KeyboardInterrupt is no Exception, and leaves every context all the same."""

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
        """A state that was not entered finds nothing."""
        assert within((name,), "cpu", call) == answer
        assert call() != answer or name == "no_grad"

    def test_threads_are_as_many_as_it_says(self):
        """Whatever the process began with."""
        assert [within((name,), "cpu", torch.get_num_threads) for name in ("threads:1", "threads:2")] == [1, 2]

    def test_a_call_in_a_thread_has_the_states_of_that_thread(self):
        """Grad mode is one thread's, the default dtype every thread's."""
        assert within(("no_grad", "thread"), "cpu", torch.is_grad_enabled)
        assert within(("default_dtype:float64", "thread"), "cpu", torch.get_default_dtype) is torch.float64

    def test_the_default_device_is_the_program_s(self):
        """New tensors without a device lie where the target computes."""
        assert within(("default_device",), torch.device("meta"), lambda: torch.ones(2)).is_meta


class TestData:
    def test_a_step_without_states_is_written_as_before(self):
        """Programs, corpora and baselines of kernels go by the JSON of a program."""
        step = Step("neg", (A,), out=("b",))
        assert step.to_json() == {"op": "neg", "args": [A], "out": ["b"]}
        assert Step.from_json(step.to_json()) == step

    def test_states_survive_json(self):
        """Like all else of a step."""
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
        """What cannot be printed is not run."""
        data = program(Step("neg", (A,), out=("b",))).to_json()
        data["steps"][0]["under"] = under
        with pytest.raises(ProgramError, match=message):
            Program.from_json(data)

    def test_a_loop_is_no_one_call(self):
        """A function that is given a call cannot be given a loop."""
        inner = Step("setitem", (A, {"i": [1, 0]}, 1))
        loop = Step("loop", body=(inner,), times=2, under=("thread",))
        with pytest.raises(ProgramError, match="step 1 is a loop under a state that takes one call"):
            program(loop).check()
        program(Step("loop", body=(inner,), times=2, under=("no_grad",))).check()

    def test_a_step_that_needs_a_state_means_nothing_without(self):
        """Empty memory holds anything, unless deterministic algorithms fill it."""
        empty = Step("empty.state", ([2],), {"dtype": {"dtype": "int8"}, "device": {"device": 0}}, ("b",))
        with pytest.raises(ProgramError, match="no defined meaning: without the state that it needs"):
            reference(program(empty))
        under = Step(empty.op, empty.args, empty.kwargs, empty.out, under=("deterministic",))
        assert reference(program(under)).observation.tensors["b"].value.tolist() == [127, 127]

    def test_autocast_promises_products_only(self):
        """Which other ops compute in which dtype is each device's own choice."""
        with pytest.raises(ProgramError, match="a state that promises nothing of the step"):
            reference(program(Step("exp", (A,), out=("b",), under=("autocast:bfloat16",))))


class TestScript:
    def test_states_are_lines_of_python(self):
        """A `with`, or a function around the call; a statement becomes a function."""
        made = source(
            program(
                Step("neg", (A,), out=("b",), under=("default_dtype:float64", "no_grad")),
                Step("neg", (A,), out=("c",), under=("no_grad", "thread")),
                Step("setitem", (A, 0, 1), under=("vmap",)),
                Step("item", (A,), raises="RuntimeError", under=("thread",)),
            )
        )
        assert "    with default_dtype(torch.float64), torch.no_grad():\n        b = a.neg()\n" in made
        assert "    with torch.no_grad():\n        c = in_thread(lambda: a.neg())\n" in made
        assert "    def within_3(): a[0] = 1\n    in_vmap(within_3)\n" in made
        assert "    answer_4 = attempt(lambda: in_thread(lambda: a.item()))\n" in made

    def test_a_program_means_the_same_as_one_function(self):
        """What is printed is what ran: of forty drawn programs every one that nobody's looking changes."""
        compared = 0
        for number in range(40):
            drawn = Drawing().numbered(3, STATE_EVERY * number + STATE_AT)
            if any(one.requires_grad for one in drawn.inputs) or any(s.op == "requires_grad_" for s in drawn.steps):
                continue
            expected = reference(drawn)
            ran = Executor(CpuFunction()).run(ProgramSubject(drawn)).last
            assert not compare(expected.observation, ran, oracles=CpuFunction.oracles - {"version", "kernels"})
            compared += 1
        assert compared > 15

    def test_a_script_needs_torch_only(self, standalone):
        """It carries what enters its states, with what that imports."""
        given = program(
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
        ran = standalone(none + script(given, describe_target("cpu")))
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
        """The better reference computes in float64 whatever the default dtype or autocast say."""
        narrow, wide = truth_of(program(step, dtype="int64" if "divide" in step.op else "float32"))
        assert narrow.tensors["b"].dtype in (torch.float16, torch.bfloat16)
        assert wide.tensors["b"].dtype is torch.float64

    def test_whether_autograd_will_record_is_seen(self):
        """An inference tensor looks like any other but for that."""
        made = reference(program(Step("neg", (A,), out=("b",), under=("inference_mode",)))).observation.tensors
        assert ["inference" in made[name].contiguity for name in "ab"] == [False, True]

    def test_counting_changes_nothing(self):
        """Aten ops were counted in the run that was observed: under that mode such a view does not require grad, and a
        program that was right looked wrong, but only where it ran with others."""
        view = program(Step("broadcast_to", (A, [2, 3]), out=("b",), under=("inference_mode",)), grad=True)
        plain, counted = (reference(view, count=count).observation for count in (False, True))
        assert plain.tensors["b"].requires_grad
        assert counted.tensors["b"].requires_grad
        assert (plain.kernels, counted.kernels) == (None, 2)  # the input there, and the result of both back

    def test_compilers_get_what_goes_into_a_graph(self):
        """The rest is for devices."""
        target = describe_target("aot_eager")
        recorded = Step("neg", (A,), out=("b",), under=("no_grad",))
        assert unsupported_reason(program(recorded), target) == ""
        threaded = Step("neg", (A,), out=("b",), under=("no_grad", "thread"))
        assert unsupported_reason(program(threaded), target) == "under thread"

    def test_a_target_may_leave_a_state_out(self):
        """With its argument or without."""
        target = describe_target("cpu")
        given = program(Step("neg", (A,), out=("b",), under=("threads:2",)))
        for name in ("threads", "threads:2"):
            target.unsupported = frozenset({name})
            assert unsupported_reason(given, target) == "under threads:2"

    def test_a_stale_answer_is_found_in_the_program_that_taught_it(self):
        """Under another default dtype and then as usual."""
        twice = program(
            Step("true_divide.state", (A, 2), out=("b",), under=("default_dtype:float64",)),
            Step("true_divide.state", (A, 2), out=("c",)),
            dtype="int64",
        )
        verdict = judge_program(twice, load_target("mutant:promotion remembers the default dtype"))
        assert (verdict.mismatches[0].oracle, verdict.mismatches[0].where, verdict.bad_step) == ("dtype", "c", 2)


class TestReduce:
    def test_states_that_do_not_matter_go(self):
        """Of three states the one that shows the fault stays."""
        target = load_target("mutant:a write in a transform is lost")
        given = program(
            Step("neg", (A,), out=("b",), under=("default_dtype:float64", "thread")),
            Step("add_", (A, 1), under=("no_grad", "function_mode", "vmap")),
        )
        small = reduce_program(given, lambda one: not judge_program(one, target, locate=False).passed)
        assert [(step.op, step.under) for step in small.steps] == [("add_", ("vmap",))]


@pytest.fixture(scope="module")
def drawn_with_states():
    """Four times as many programs that change states as there are topics; none is drawn while tests are collected."""
    return [Drawing().numbered(0, number) for number in range(STATE_AT, STATE_EVERY * 84, STATE_EVERY)]


class TestDrawing:
    @pytest.mark.parametrize("blocks", [8, pytest.param(84, marks=pytest.mark.slow)])
    def test_one_program_in_eight_changes_states(self, blocks):
        """And no other: the programs between them are what they were before there were states."""
        for number in range(STATE_EVERY * blocks):
            drawn = Drawing().numbered(0, number)
            stateful = any(s.under or OPS[s.op].family == "state" for s in drawn.steps)
            assert stateful <= (number % STATE_EVERY == STATE_AT)

    def test_each_state_is_reached(self, drawn_with_states):
        """These programs make calls under every state, and again outside of it."""
        repeated = {
            name
            for drawn in drawn_with_states
            for one, two in zip(drawn.steps, drawn.steps[1:])
            if one.op == two.op and one.args == two.args
            for name in {*one.under} ^ {*two.under}
        }
        assert repeated == {*STATES}

    def test_each_step_of_the_family_is_drawn(self, drawn_with_states):
        """A row that is never drawn tests nothing."""
        drawn = {step.op for one in drawn_with_states for step in one.steps}
        assert {op.name for op in OPS.values() if op.family == "state"} - drawn == set()

    def test_each_is_restored_by_the_end(self, drawn_with_states):
        """Such a program ends by asking what is global, mostly: a device that leaves it changed is found."""
        ends = [one.steps[-1].op for one in drawn_with_states]
        assert ends.count("global_state") > len(ends) / 2

    def test_without_the_family_no_states_are_drawn(self):
        """A target that leaves it out is asked nothing of it."""
        plain = Drawing(without=("state",)).numbered(0, STATE_AT)
        assert not any(step.under for step in plain.steps)

    def test_torch_cpu_agrees_with_itself(self, drawn_with_states):
        """Sixty programs, run as a target."""
        target = load_target("cpu")
        for drawn in drawn_with_states[:60]:
            assert judge_program(drawn, target).passed

    def test_states_stand_as_they_can_be_printed(self):
        """Contexts first, each once."""
        assert ordered(("thread", "no_grad", "no_grad")) == ("no_grad", "thread")


class LeavesGradOff(type(describe_target("cpu"))):
    """Torch CPU after whose calls autograd records nothing."""

    def active(self):
        torch.set_grad_enabled(False)
        return super().active()


def test_a_setting_that_is_not_set_back_is_found():
    """The question at the end tells."""
    before = torch.is_grad_enabled()
    try:
        running = RunningProgram(program(Step("global_state")))
        running.step(running.program.steps[0])
        expected = reference(running.program)
        seen = Executor(LeavesGradOff()).run(ProgramSubject(running.program)).last
    finally:
        torch.set_grad_enabled(before)
    assert [one.where for one in compare(expected.observation, seen)] == ["step 1[1]"]
