"""Alias probes: writes that reveal shared memory on a device without visible storages."""

from __future__ import annotations

import textwrap

from conformance.program.alias_probes import with_alias_probes
from conformance.program.model import Input, Program, Storage
from conformance.program.shadow import reference
from conformance.program.steps.op import Step
from conformance.sources.fuzzing.command import main
from conformance.sources.fuzzing.drawing import Drawing
from tests.run.campaign.saved import fuzz_result

A = {"t": "a"}


def program(*steps: Step, dtype: str = "float32") -> Program:
    return Program((Storage(dtype, 4, "arange"),), (Input("a", 0, dtype, (2, 2), (2, 1)),), steps)


def test_each_tensor_is_written():
    """Each tensor gets a write with a different number, and a mask is inverted. Tensors that overlap themselves or
    require grad are unchanged."""
    steps = (Step("detach", (A,), out=("b",)), Step("eq", (A, 0), out=("c",)), Step("expand", (A, 3, 2, 2), out=("d",)))
    added = with_alias_probes(program(*steps)).steps[3:]
    assert [(step.op, step.args) for step in added] == [
        ("add_", (A, 1)),
        ("add_", ({"t": "b"}, 2)),
        ("logical_not_", ({"t": "c"},)),
    ]
    assert [step.op for step in with_alias_probes(program(*steps), {"add_"}).steps[3:]] == ["logical_not_"]
    leaf = Program((Storage("float32", 4, "arange"),), (Input("a", 0, "float32", (2, 2), (2, 1), 0, True),), ())
    assert with_alias_probes(leaf) == leaf


def test_drawn_programs_keep_their_meaning():
    """Drawn programs with these writes still run on torch CPU, and nearly all contain at least one."""
    written = 0
    for number in range(60):
        drawn = Drawing().numbered(11, number)
        longer = with_alias_probes(drawn)
        assert longer.steps[: len(drawn.steps)] == drawn.steps
        reference(longer)
        written += len(longer.steps) > len(drawn.steps)
    assert written > 50


def test_a_detach_that_copies_is_found_without_storages(tmp_path, monkeypatch):
    """Alias probes detect a `detach` that copies, and the shrunk program is `detach` and a write. Regression test: only
    programs with a later write to one of the two tensors detected it."""
    (tmp_path / "hiding_target.py").write_text(
        textwrap.dedent("""
        import contextlib
        from torch.utils._python_dispatch import TorchDispatchMode
        from conformance.declare.declaration import unsupported
        from conformance.engine.target import Target, TargetFacts
        from conformance.record.names import ORACLES

        class Copies(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                if func.overloadpacket.__name__ == "detach":
                    return args[0].clone()
                return func(*args, **(kwargs or {}))

        class Hiding(Target):
            name = "hiding"
            facts = TargetFacts(
                lacks=frozenset({"storages", "set_", "data_ptr", "strides", "version"}),
                oracles=frozenset(ORACLES),
                declarations=(
                    unsupported("so", step="autograd", trait=("a step that raises", "an input that requires grad")),
                ),
            )

            @contextlib.contextmanager
            def active(self):
                with Copies():
                    yield
    """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["--target", "class:hiding_target.Hiding", "--programs", "25", "--without", "op_db", "--check-scripts", "0"]
    main([*words, "--reports", str(tmp_path)])
    findings = fuzz_result(tmp_path)["findings"]
    assert any("detach" in finding["script"] and finding["steps"] == 2 for finding in findings), [
        finding["signature"] for finding in findings
    ]
