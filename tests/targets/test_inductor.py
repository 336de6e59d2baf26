"""The target `inductor`: which saved graphs a program loads."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.engine.loading import load_target
from conformance.program.calls import judge_program
from conformance.program.model import Call, Input, Program, Storage, call_of
from conformance.program.steps.op import Step, tensor
from conformance.standalone import torch_compat

CELLS = Program(
    (Storage("float32", 9),),
    (Input("a", 0, "float32", (3,), (1,), 3),),
    (Step("as_strided", (tensor("a"), [2], [1], 4), out=("b",)), Step("add", (tensor("b"), 1), out=("c",))),
)
"""Reads cells 4 and 5 of the storage. Inductor's code counts them from the input's first cell."""

MOVED = Call({"a": {"offset": 1}}, restarted=True)


@pytest.mark.slow
class TestSavedGraphs:
    def test_a_program_loads_no_graph_of_an_earlier_one(self) -> None:
        """The key of a saved graph lacks the input's offset. Regression test: the second program had the answer of the
        first one's code, and was right by itself."""
        target, moved = load_target("inductor"), call_of(replace(CELLS, calls=(MOVED,)), 1)
        for program in (CELLS, moved, CELLS):
            assert judge_program(program, target).passed

    def test_a_call_as_in_a_new_process_loads_the_graph_of_the_call_before(self) -> None:
        """There the missing offset shows."""
        verdict = judge_program(replace(CELLS, calls=(MOVED,)), load_target("inductor"))
        assert (verdict.call, verdict.change) == (1, "offset and process")


@pytest.mark.slow
def test_the_target_builds_whole_kernels() -> None:
    """Loading the target is enough."""
    from torch._inductor import cpp_builder

    load_target("inductor")
    assert hasattr(cpp_builder.CppBuilder.build, "__wrapped__")


def test_a_kernel_is_whole_or_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A C++ compiler that ends early leaves no file that a later compilation takes for the kernel, for any number of
    targets in the process. Regression test: a worker was killed while g++ wrote, and each later run of the program
    failed with "file too short"."""
    from torch._inductor import cpp_builder

    monkeypatch.setattr(cpp_builder.CppBuilder, "build", cpp_builder.CppBuilder.build)
    torch_compat.build_whole_kernels()
    torch_compat.build_whole_kernels()
    (tmp_path / "k.cpp").touch()
    options = cpp_builder.CppOptions(compiler="g++")
    builder = cpp_builder.CppBuilder("k", str(tmp_path / "k.cpp"), options, str(tmp_path))
    kernel = Path(builder.get_target_file_path())

    def compile_with(text: str, error: type[Exception] | None = None) -> Callable[[str, str], None]:
        def run(command: str, cwd: str) -> None:
            (file,) = re.findall(r" -o\s*(\S+)", command)
            Path(file).write_text(text)
            if error is not None:
                raise error("killed")

        return run

    monkeypatch.setattr(cpp_builder, "run_compile_cmd", compile_with("half", OSError))
    with pytest.raises(OSError, match="killed"):
        builder.build()
    assert not kernel.exists()
    monkeypatch.setattr(cpp_builder, "run_compile_cmd", compile_with("whole"))
    builder.build()
    assert kernel.read_text() == "whole"
