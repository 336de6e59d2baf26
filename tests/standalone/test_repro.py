"""The judge of known bugs: what shows, what does not, and what cannot be judged."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch

from conformance.standalone.repro import (
    CANNOT_RUN,
    NOT_SHOWN,
    SHOWN,
    judge_program,
    judge_script,
    named_backend,
    output_of,
)


def names(program: Any, **more: Any) -> dict[str, Any]:
    return {"inputs": lambda: [torch.arange(6.0).view(2, 3)], "program": program, **more}


def loses_writes(function: Any) -> Any:
    """A transform that runs a function on copies of its inputs."""
    return lambda *inputs: function(*(x.clone() for x in inputs))


def raises(error: Exception) -> Any:
    def transform(function: Any) -> Any:
        def call(*inputs: Any) -> Any:
            raise error

        return call

    return transform


class TestJudgeProgram:
    def test_a_lost_write_shows(self) -> None:
        """A write that the caller cannot see on the target is a difference; the right target has none."""
        written = names(lambda x: x.add_(1))
        assert judge_program(written, "value", loses_writes)[0] == SHOWN
        assert judge_program(written, "value", lambda function: function) == (NOT_SHOWN, "", "")

    def test_strides_count_but_not_those_of_length_1(self) -> None:
        """A result with other strides is a difference, unless only dimensions of length 1 have them."""

        def transposed(function: Any) -> Any:
            return lambda x: function(x).t().contiguous().t()

        assert judge_program(names(lambda x: x * 1), "metadata", transposed)[0] == SHOWN
        column = names(lambda x: x * 1, inputs=lambda: [torch.ones(1, 3)])
        assert judge_program(column, "metadata", transposed)[0] == NOT_SHOWN

    def test_an_error_of_the_target_shows_only_a_bug_of_that_kind(self) -> None:
        """A target that raises cannot run the repro of a wrong value, and shows the repro of an error, unless it says
        that it lacks the operator."""
        program, broken = names(lambda x: x + 1), raises(RuntimeError("broken"))
        assert judge_program(program, "value", broken)[:2] == (CANNOT_RUN, "RuntimeError: broken")
        assert judge_program(program, "error", broken)[0] == SHOWN
        assert judge_program(program, "error", raises(NotImplementedError("add")))[0] == CANNOT_RUN

    def test_a_control_is_the_right_side_of_torch_cpu(self) -> None:
        """A bug of torch CPU has no right side there but the same call with other arguments."""
        both = {"program": lambda: torch.ones(2), "control": lambda: torch.zeros(2)}
        assert judge_program(both, "value")[0] == SHOWN
        assert judge_program({**both, "control": both["program"]}, "value")[0] == NOT_SHOWN

    def test_without_values_only_metadata_count(self) -> None:
        """A target that computes nothing may differ in values, and not in dtypes."""
        zeros, double = (lambda f: lambda x: f(x) * 0), (lambda f: lambda x: f(x).double())
        program = names(lambda x: x + 1)
        assert judge_program(program, "value", zeros, values=False)[0] == NOT_SHOWN
        assert judge_program(program, "value", double, values=False)[0] == SHOWN


SCRIPT = textwrap.dedent("""
    import torch

    def f(x):
        return x + 1

    print(f(torch.ones(2)).tolist())
    print(torch.compile(f)(torch.ones(2)).tolist())
""")


class TestJudgeScript:
    def test_the_stated_lines_show_the_bug(self) -> None:
        """Exactly the lines of the finding show it; other lines do not, and an error proves nothing."""
        code = "print(1)\nprint(2)"
        assert judge_script(code, "1\n2")[0] == SHOWN
        assert judge_script(code, "1\n3")[0] == NOT_SHOWN
        assert judge_script(f"{code}\nraise ValueError('x')", "1\n2")[:2] == (CANNOT_RUN, "ValueError: x")
        assert judge_script("print('NotImplementedError')", "1")[0] == CANNOT_RUN

    def test_a_compiler_takes_the_place_of_the_backend(self) -> None:
        """The script's backend is replaced by the target's, which sees the graph."""
        graphs = []

        def doubles(graph: Any, inputs: Any) -> Any:
            graphs.append(graph)
            return lambda *args: [2 * result for result in graph(*args)]

        torch._dynamo.register_backend(doubles, "repro_doubles")
        assert judge_script(SCRIPT, "[2.0, 2.0]\n[4.0, 4.0]", "repro_doubles")[0] == SHOWN
        assert judge_script(SCRIPT, "[2.0, 2.0]\n[4.0, 4.0]", "eager")[0] == NOT_SHOWN
        assert len(graphs) == 1

    def test_torch_is_as_before(self) -> None:
        """Neither torch.compile nor the default device stays replaced, also after an error."""
        plain = torch.compile
        assert output_of("import torch; print(torch.ones(1).device); 1 / 0", "eager", {}, "meta") == (
            "meta\n",
            "ZeroDivisionError: division by zero",
        )
        assert torch.compile is plain and torch.ones(1).device.type == "cpu"

    def test_random_numbers_of_a_device_prove_nothing(self) -> None:
        """A device draws other numbers than torch CPU, so other lines do not mean that the bug is gone."""
        code = "import torch; print(torch.rand(2).device.type)"
        assert judge_script(code, "cpu", device="meta")[0] == CANNOT_RUN
        assert judge_script(code, "cpu")[0] == SHOWN

    @pytest.mark.parametrize(
        ("code", "named"),
        [
            ("torch.compile(f)", "inductor"),
            ("for t in (torch.compile(backend='eager'), torch.compile(backend='aot_eager')):", "aot_eager"),
            ('torch.compile(f, backend="eager")', "eager"),
            ("f(x)", ""),
        ],
    )
    def test_the_backend_that_does_the_most_is_replaced(self, code: str, named: str) -> None:
        """A script that compares several backends has its bug in the last one."""
        assert named_backend(code) == named
