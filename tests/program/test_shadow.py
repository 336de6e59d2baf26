"""Steps that PyTorch does not define, which the shadow rejects, and the exact results of a program."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch

from conformance.program.model import LOOP, Input, Program, ProgramError, Storage
from conformance.program.shadow import Shadow, reference
from conformance.program.steps.draw import DrawContext
from conformance.program.steps.op import Step
from conformance.program.steps.table import OPS


def t(name: str) -> dict[str, str]:
    return {"t": name}


def program(*steps: Step, size=(2, 3), stride=(3, 1), offset=0, cells=6, dtype="float32", grad=False) -> Program:
    return Program((Storage(dtype, cells),), (Input("a", 0, dtype, size, stride, offset, grad),), steps)


class TestReference:
    @pytest.mark.parametrize(
        ("steps", "options", "message"),
        [
            (
                (Step("add_", (t("a"), {"tensor": [1.0, 2.0], "dtype": "float32"})),),
                {"size": (3, 2), "stride": (1, 1)},
                "write through overlapping memory",
            ),
            (
                (
                    Step("as_strided", (t("a"), [2], [2], 0), out=("b",)),
                    Step("as_strided", (t("a"), [2], [1], 1), out=("c",)),
                    Step("copy_", (t("b"), t("c"))),
                ),
                {},
                "write over what is read",
            ),
            ((Step("view.error", (t("a"), [7])),), {}, "does not (declare|say)"),
            ((Step("view.error", (t("a"), [6]), raises="RuntimeError"),), {}, "on CPU there is no error"),
            ((Step("view.error", (t("a"), [7]), raises="IndexError"),), {}, "on CPU there is RuntimeError"),
        ],
    )
    def test_what_has_no_meaning_is_refused(self, steps, options, message):
        """Undefined behaviour and wrong declarations are rejected."""
        with pytest.raises(ProgramError, match=message):
            reference(program(*steps, **options))

    def test_polygamma_of_elements_that_overlap_does_not_run(self):
        """It reads its own results. Regression test: for one of them it ran for minutes."""
        drawn, step = program(size=(3, 2), stride=(1, 1), cells=4), Step("op_db.inplace:polygamma_", (t("a"), 1))
        shadow = Shadow(drawn)
        assert shadow.offer(step) is None
        assert [*shadow.avoided] == ["torch CPU answers by chance, or would end the process"]
        assert Shadow(program()).offer(step) is not None

    @pytest.mark.parametrize(("in_loop", "reason"), [
        (False, "decided by rounded values"),
        (True, "error not asked for: op_db.many:nn.functional.multi_head_attention_forward in a loop"),
    ])  # fmt: skip
    def test_a_refusal_of_any_type_is_no_fault_of_the_harness(self, in_loop, reason):
        """`multi_head_attention_forward` refuses by an AssertionError. Regression test: the drawn program counted as a
        fault of the drawing."""
        shadow = Shadow(program(size=(3, 2), stride=(2, 1)))
        assert shadow.offer(Step("exp", (t("a"),), out=("b",))) is not None
        weight, bias = ({"tensor": values, "dtype": "float32"} for values in ([[1.0, 1.0]] * 6, [1.0] * 6))
        out, last = ({"tensor": values, "dtype": "float32"} for values in ([[1.0, 1.0]] * 2, [1.0] * 2))
        query = t("a") if in_loop else t("b")
        wrong_size = (query, query, query, 7, 2, weight, bias, None, None, False, 0.0, out, last)
        family = "op_db" if in_loop else "refusals"
        step = Step(f"{family}.many:nn.functional.multi_head_attention_forward", wrong_size, out=("c", "d"))
        step = Step(LOOP, body=(step,), times=2) if in_loop else step
        assert shadow.offer(step, aimed=True) is None
        assert [*shadow.avoided] == [reason]

    def test_moved_bits_are_exact_and_computed_values_are_not(self):
        """Only results of pure data movement must agree bit by bit."""
        steps = (Step("t", (t("a"),), out=("b",)), Step("exp", (t("a"),), out=("c",)))
        assert reference(program(*steps)).exact == {"a", "b"}

    def test_rounded_values_may_not_become_integers(self):
        """After exp, a conversion to int64 would depend on a rounding error."""
        shadow = Shadow(program())
        assert shadow.offer(Step("exp", (t("a"),), out=("b",))) is not None
        assert not shadow.converts(shadow.env["b"], torch.int64)
        assert shadow.converts(shadow.env["a"], torch.int64)

    @pytest.mark.parametrize("op", ["to.edge", "sum.dtype"])
    def test_nan_may_not_become_an_integer(self, op):
        """PyTorch leaves the integer to the device. Formerly a changed argument asked for one."""
        odd = Program((Storage("float32", 2, [math.nan, 1.0]),), (Input("a", 0, "float32", (2,), (1,)),))
        step = Step(op, (t("a"),), {"dtype": {"dtype": "int64"}}, out=("b",))
        shadow = Shadow(odd)
        assert shadow.offer(step) is None
        assert dict(shadow.avoided) == {"float to integer": 1}
        assert Shadow(program()).offer(step) is not None

    @pytest.mark.parametrize("op", ["unique.counted", "mode_values"])
    def test_a_nan_has_no_place_in_an_order(self, op):
        """Formerly CUDA's order of several nans, and its `mode` beside one, were findings."""
        fits = OPS[op].fits
        assert fits(torch.tensor([1.0, 1.0])) and not fits(torch.tensor([1.0, math.nan]))

    def test_a_bug_of_torch_is_no_answer(self):
        """torch CPU fails an internal assertion here, and no device must raise the same error."""
        gappy = Program((Storage("bfloat16", 3),), (Input("a", 0, "bfloat16", (3, 1), (1, 0)),))
        one = {"tensor": [[0.0], [1.0]], "dtype": "bfloat16"}
        index = {"tensor": [1, 2], "dtype": "int64"}
        shadow = Shadow(gappy)
        assert shadow.offer(Step("index_reduce_", (t("a"), 0, index, one, "prod"))) is None
        assert dict(shadow.avoided) == {"torch fails an internal assertion: index_reduce_": 1}

    def test_an_allocation_that_fails_is_no_answer(self):
        """Another machine may have the memory that torch requests."""
        shadow = Shadow(program())
        assert shadow.offer(Step("op_db:zeros", ({"tuple": [2**50]},), out=("b",)), aimed=True) is None
        assert dict(shadow.avoided) == {"torch runs out of memory: op_db:zeros": 1}

    @pytest.mark.parametrize("seed", range(5))
    def test_data_of_the_same_kind(self, seed):
        """torch accepts `.data =` between an inference tensor and another on the CPU, and on no other device."""
        shadow = Shadow(program())
        shadow.offer(Step("neg", (t("a"),), out=("b",), under=("inference_mode",)))
        step = OPS["set_data"].draw(DrawContext(random.Random(seed).randint, shadow, ("float32",)))
        assert step is None
        shadow.offer(Step("neg", (t("a"),), out=("c",)))
        step = OPS["set_data"].draw(DrawContext(random.Random(seed).randint, shadow, ("float32",)))
        assert step is None or sorted(step.names()) == ["a", "c"]

    def test_the_default_device_is_not_another_threads(self):
        """The state does not reach another thread, so a new tensor would be on the CPU. Regression test: a finding
        about one device became one about two."""
        shadow = Shadow(program())
        placed = Step("full.here", ([2], 1.5), under=("default_device", "thread"))
        assert shadow.offer(placed) is None
        assert dict(shadow.avoided) == {"a state that promises nothing of the step": 1}
        assert shadow.offer(replace(placed, under=("default_device",))) is not None

    def test_a_backward_that_raises_midway_frees_what_it_freed(self):
        """A later backward through the freed part of the graph raises too. Regression test: drawing assumed that it
        passes, because it had run the earlier steps again. Of 71,379 programs, one could not be replayed, and two could
        not be drawn."""
        shadow = Shadow(program(size=(1,), stride=(1,), cells=1, grad=True))
        one = {"tensor": [1.0], "dtype": "float32"}
        steps = (
            Step("exp", (t("a"),), out=("b",)),
            Step("backward", (t("b"), one)),
            Step("exp", (t("a"),), out=("c",)),
            Step("sub", (t("c"), t("b")), out=("d",)),
            Step("backward", (t("d"), one)),
            Step("neg", (t("c"),), out=("e",)),
            Step("backward", (t("e"), one)),
        )
        offered = [shadow.offer(step) for step in steps]
        assert [step is not None and step.raises for step in offered] == [
            None,
            None,
            None,
            None,
            "RuntimeError",
            None,
            "RuntimeError",
        ]
        reference(shadow.program.with_steps(tuple(shadow.steps)))

    @pytest.mark.parametrize(("stride", "kept"), [(1, True), (2, False)])
    def test_calls_that_ignore_the_strides_of_out_are_not_made(self, stride, kept):
        """gelu writes nothing into `out` with gaps, and avg_pool3d writes past its end. Regression test: the worker
        died while drawing 4 of 19,362 programs."""
        shadow = Shadow(program(size=(2,), stride=(stride,), cells=3))
        step = Step("op_db.out:nn.functional.gelu", ({"tensor": [1.0, 2.0], "dtype": "float32"},), {"out": t("a")})
        assert (shadow.offer(step) is not None) == kept

    def test_overlap_that_torch_rejects_becomes_a_declared_error(self):
        """A write through stride 0 is a program with a declared error."""
        shadow = Shadow(program(size=(2, 3), stride=(0, 1)))
        step = shadow.offer(Step("add_", (t("a"), 1)))
        assert step is not None
        assert step.raises == "RuntimeError"

    def test_a_step_that_ran_before_it_was_turned_down(self):
        """A rejected step has no effect, not even on the version counter. Regression test: the counter stayed changed,
        so a backward raised while drawing only."""
        shadow = Shadow(program(cells=6, dtype="int32"))
        shadow.offer(Step("view.dtype", (t("a"), {"dtype": "float32"}), out=("b",)))
        shadow.offer(Step("fill_", (t("b"), 2.0)))
        before, version = shadow.env["a"].clone(), shadow.env["b"]._version
        assert shadow.offer(Step("exp_", (t("b"),))) is None
        assert dict(shadow.avoided) == {"rounded values, or nan, seen as bits of another dtype": 1}
        assert torch.equal(shadow.env["a"], before)
        assert shadow.env["b"]._version == version
        assert [step.op for step in shadow.steps] == ["view.dtype", "fill_"]

    @pytest.mark.parametrize(
        ("steps", "kept"),
        [
            ((Step("exp", (t("a"),), out=("b",)), Step("to", (t("b"), {"dtype": "float32"}))), False),
            ((Step("exp", (t("a"),), out=("b",)), Step("to", (t("b"), {"dtype": "bfloat16"}))), True),
            ((Step("neg", (t("a"),), out=("b",)), Step("to", (t("b"), {"dtype": "float32"}))), True),
            ((Step("exp", (t("a"),), out=("b",)), Step("add", (t("b"), {"tensor": 1.0, "dtype": "float32"}))), True),
            (
                (Step("exp", (t("a"),), out=("b",)), Step("add", (t("b"), {"tensor": [[1.0]], "dtype": "float64"}))),
                False,
            ),
        ],
    )
    def test_a_rounded_value_in_a_dtype_that_rounds_less(self, steps, kept):
        """One unit in the last place of a half is a thousand tolerances of a float32, so the conversion is rejected."""
        shadow = Shadow(program(cells=6, dtype="float16"))
        assert shadow.offer(steps[0]) is not None
        assert (shadow.offer(steps[1]) is not None) == kept

    def test_a_refused_call_that_had_written(self):
        """torch CPU copies rows until it reaches an index out of range; the remaining content of `out` is undefined."""
        shadow = Shadow(program(size=(2, 3)))
        rows, index = {"tensor": [[7.0, 8.0, 9.0]], "dtype": "float32"}, {"tensor": [0, 1], "dtype": "int64"}
        before = shadow.env["a"].clone()
        assert shadow.offer(Step("index_select.out", (rows, 0, index), {"out": t("a")})) is None
        assert dict(shadow.avoided) == {"a refused call that had written: index_select.out": 1}
        assert torch.equal(shadow.env["a"], before)
        assert shadow.offer(Step("view.error", (t("a"), [7]))).raises == "RuntimeError"
        assert shadow.done == len(shadow.steps) == 1

    @pytest.mark.parametrize(
        ("step", "kept"),
        [
            (Step("as_strided", (t("b"), [1], [1], 0), out=("c",)), True),
            (Step("as_strided", (t("b"), [1], [1], 1), out=("c",)), False),
            (Step("as_strided_", (t("b"), [2], [1], 0)), False),
        ],
    )
    def test_memory_beside_a_result(self, step, kept):
        """The sum of a loss is in the storage of the losses; on torch 2.15, a view past it read arbitrary memory."""
        shadow = Shadow(program())
        loss = Step("op_db:nn.functional.smooth_l1_loss", (t("a"), t("a")), {"reduction": "sum"}, ("b",))
        assert shadow.offer(loss) is not None
        assert shadow.env["b"].untyped_storage().nbytes() == 24
        assert (shadow.offer(step) is not None) == kept
        shadow.rollback()
        assert [one.op for one in shadow.steps] == [loss.op, *([step.op] if kept else [])]
        assert shadow.env["b"].size() == ()


def constant(values: list[float], dtype: str = "float32") -> dict[str, object]:
    return {"tensor": values, "dtype": dtype}


class TestByChance:
    """Calls with an arbitrary answer on torch CPU. Regression test: each was a finding on a correct device."""

    @pytest.mark.parametrize(
        ("step", "options", "kept"),
        [
            (Step("op_db:bucketize", (t("a"), constant([0.0, 1.0, 0.0])), out=("b",)), {}, False),
            (Step("op_db:bucketize", (t("a"), constant([0.0, 1.0, 1.0])), out=("b",)), {}, True),
            (Step("op_db:searchsorted", (constant([0.0, float("nan")]), t("a")), out=("b",)), {}, False),
            (
                Step("op_db:select_scatter", (t("a"), t("a"), 0, 0), out=("b",)),
                {"stride": (1, 1), "size": (2, 2)},
                False,
            ),
            (Step("op_db:slice_scatter", (t("a"), t("a")), out=("b",)), {"stride": (1, 1)}, False),
            (Step("op_db:slice_scatter", (t("a"), t("a")), out=("b",)), {}, True),
        ],
    )
    def test_calls(self, step, options, kept):
        """A search in unsorted values, and a write to a copy that overlaps itself."""
        assert (Shadow(program(**options)).offer(step) is not None) == kept

    def test_a_gradient_without_memory(self):
        """For overlapping leaves, the gradient of sgn is zeros without memory. Regression test: reading its storage
        ended the worker, which looked like a crash of the device."""
        ones = {"tensor": [[1.0] * 3] * 3, "dtype": "float32"}
        steps = (Step("op_db:sgn", (t("a"),), out=("b",)), Step("backward", (t("b"), ones)))
        seen = reference(program(*steps, size=(3, 3), stride=(2, 2), cells=9, grad=True)).observation
        assert seen.grads["a"].tolist() == [[0.0] * 3] * 3

    @pytest.mark.parametrize("stride", [1, 2])
    def test_batch_norm_of_strided_images(self, stride):
        """With out=, batch norm does not compute the mean of a strided input and uses uninitialized memory."""
        one = [constant([1.0]) for _ in range(4)]
        outs = {"out": {"tuple": [t("b"), t("c"), t("d")]}}
        inputs = [Input("a", 0, "float32", (2, 1), (stride, 1), 0), Input("b", 1, "float32", (2, 1), (1, 1), 0)]
        inputs += [Input(name, at, "float32", (1,), (1,), 0) for at, name in ((2, "c"), (3, "d"))]
        storages = (Storage("float32", 3), Storage("float32", 2), Storage("float32", 1), Storage("float32", 1))
        step = Step("op_db.out:native_batch_norm", (t("a"), *one, True, 0.5, 1e-5), outs)
        assert (Shadow(Program(storages, tuple(inputs), ())).offer(step) is not None) == (stride == 1)

    @pytest.mark.parametrize(("dtype", "kept"), [("float32", True), ("float64", False)])
    def test_out_of_a_dtype_that_rounds_less(self, dtype, kept):
        """A float32 polynomial is computed in float32, whatever the dtype of `out`, so the tolerance of float64 does
        not apply."""
        before = Program(
            (Storage("float32", 3), Storage(dtype, 3)),
            (Input("a", 0, "float32", (3,), (1,), 0), Input("b", 1, dtype, (3,), (1,), 0)),
            (),
        )
        step = Step("op_db.out:special.legendre_polynomial_p", (t("a"), constant([0.0, 0.0, 7.0])), {"out": t("b")})
        assert (Shadow(before).offer(step) is not None) == kept
