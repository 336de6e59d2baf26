"""Targets: a move and back keeps layout and aliasing; an unusable spec gives one sentence."""

from __future__ import annotations

import sys
import textwrap
import types
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.declare.declaration import unsupported
from conformance.engine.aten_ops import AtenOps
from conformance.engine.loading import describe_target, load_target
from conformance.engine.target import Target, TargetFacts
from conformance.program.calls import judge_program
from conformance.program.model import read_program
from conformance.program.steps.op import Step
from conformance.program.unsupported import unsupported_names
from conformance.record.errors import TargetError
from conformance.record.names import SPECIALS_BACKWARD
from conformance.sources.fuzzing.command import main
from conformance.standalone.moving import storage_key, whole_storage

CORPUS = Path(__file__).parent.parent.parent / "conformance" / "program" / "corpus"


@pytest.fixture
def own_targets(tmp_path, monkeypatch) -> str:
    """A module of unsuitable target classes, each with a different fault."""
    (tmp_path / "own_targets.py").write_text(
        textwrap.dedent("""
        from dataclasses import replace
        from conformance.declare.declaration import unsupported
        from conformance.engine.target import TargetFacts
        from conformance.targets.cpu import CpuTarget

        class Unready(CpuTarget):
            def prepare(self): raise RuntimeError("no driver\\nand more")

        class Plain:
            def __init__(self, argument): self.facts = None

        def function(argument): return CpuTarget(argument)

        class Misspelt(CpuTarget): facts = TargetFacts(oracles=frozenset({"vlaue"}))
        class Blind(CpuTarget): facts = TargetFacts(oracles=frozenset())
        class Wordy(CpuTarget): facts = TargetFacts(dtypes=frozenset({"float32"}))
        class Careless(CpuTarget): facts = TargetFacts(declarations=(unsupported("so", step="autogard"),))
        class Former(CpuTarget): unsupported = frozenset({"autograd"})
        class Older(CpuTarget):
            def __init__(self, argument):
                super().__init__(argument)
                self.lazy = True
        class Listed(CpuTarget): facts = {"lazy": True}
        class Idle(CpuTarget):
            def transform(self, function): return lambda *inputs: function(*inputs)
        class Featureless(CpuTarget): facts = TargetFacts(lacks=frozenset({"storage"}))
    """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_targets", raising=False)
    return "class:own_targets."


@pytest.fixture
def cpu() -> Target:
    return load_target("cpu")


class TestSend:
    def test_geometry_is_kept(self, cpu):
        """The move keeps size, stride and offset, including gaps, zero strides and overlap."""
        base = torch.arange(20.0)
        for view in (base[3::4], base.as_strided((2, 3), (1, 1), 5), base[2].expand(3, 2), base[:0], base[7]):
            sent = cpu.send(view)
            assert (sent.size(), sent.stride(), sent.storage_offset()) == (
                view.size(),
                view.stride(),
                view.storage_offset(),
            )
            assert torch.equal(sent, view)
            assert sent.untyped_storage().nbytes() == base.untyped_storage().nbytes()

    def test_aliasing_is_kept_and_the_original_is_not_touched(self, cpu):
        """Views of one storage still share writes, and the source is unchanged."""
        base = torch.arange(6.0)
        sent, view = cpu.send((base, base[2:4]))
        view.zero_()
        assert sent.tolist() == [0, 1, 0, 0, 4, 5]
        assert base.tolist() == [0, 1, 2, 3, 4, 5]

    def test_one_object_stays_one_object(self, cpu):
        """One tensor at two places of a tree stays one tensor."""
        tensor = torch.ones(2)
        sent = cpu.send({"a": [tensor], "b": (tensor, 3)})
        assert sent["a"][0] is sent["b"][0]
        assert sent["b"][1] == 3

    def test_dtypes_may_share_a_storage(self, cpu):
        """A float and an integer view of one storage still alias."""
        floats = torch.zeros(3)
        a, b = cpu.send((floats, floats.view(torch.int32)))
        b.fill_(0x3F800000)
        assert a.tolist() == [1, 1, 1]

    def test_requires_grad_conj_and_neg_are_kept(self, cpu):
        """Leaves stay leaves that require grad; lazy conj and neg bits stay lazy."""
        leaf = torch.ones(2, requires_grad=True)
        complex_ = torch.tensor([1 + 2j]).conj()
        sent, conj, neg = cpu.send((leaf, complex_, complex_.imag))
        assert sent.requires_grad and sent.is_leaf
        assert conj.is_conj() and torch.equal(conj, complex_)
        assert neg.is_neg() and torch.equal(neg, complex_.imag)
        assert storage_key(conj) == storage_key(neg)

    def test_a_sparse_tensor_is_refused(self, cpu):
        """A tensor without a storage is an error, not silently densified."""
        with pytest.raises(TypeError, match="only strided tensors"):
            cpu.send(torch.eye(2).to_sparse())


class TestWholeStorage:
    def test_bytes_when_the_dtype_does_not_divide(self):
        """A 10-byte storage viewed as float32 is fetched as bytes."""
        tensor = torch.zeros(10, dtype=torch.uint8)[:8].view(torch.float32)
        assert whole_storage(tensor).dtype == torch.uint8
        assert whole_storage(tensor).numel() == 10


class TestKernels:
    def test_views_are_free(self):
        """Only computing ops count against the kernel bound."""
        with AtenOps() as count:
            a = torch.ones(4)
            (a.view(2, 2).t()[0] + 1).unsqueeze(0)
        assert count.total == 2

    def test_what_an_operator_from_python_runs_inside(self):
        """Operators that a Python implementation calls count too. Regression test: an operator implemented in Python
        counted as one. linear_cross_entropy in chunks runs 60 operators, but was allowed one kernel."""
        with torch.library._scoped_library("conformance_tests", "DEF") as library:
            library.define("twice_and_one(Tensor x) -> Tensor")
            library.impl("twice_and_one", lambda x: (x * 2).t() + 1, "CPU")
            library.define("nothing(Tensor x) -> Tensor")
            library.impl("nothing", torch.empty_like, "CPU")
            with AtenOps() as count:
                assert torch.ops.conformance_tests.twice_and_one(torch.ones(2, 2)).tolist() == [[3, 3], [3, 3]]
            assert count.total == 3  # ones, mul, add
            with AtenOps() as count:
                torch.ops.conformance_tests.nothing(torch.ones(2))
            assert count.total == 2


class TestLoadTarget:
    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("nonsense", "unknown target 'nonsense'"),
            ("meta:1", "takes no argument"),
            ("cpu:1", "write cpu, or cpu:without=FEATURE"),
            ("cpu:without=storage", "the unknown feature 'storage': choose from storages, data_ptr"),
            ("device:", "write device:NAME"),
            ("device:cuda,module=x", "write device:NAME"),
            ("device:nonsense", "torch knows no device 'nonsense': write device:nonsense,import=MODULE, "),
            ("device:cpu,import=no_such_module", "fails: ModuleNotFoundError"),
        ],
    )
    def test_a_bad_spec_is_one_sentence(self, spec, message):
        """Each invalid spec gives a sentence with the correct form."""
        with pytest.raises(TargetError, match=message) as caught:
            load_target(spec)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("Unready", "cannot be prepared: RuntimeError: no driver"),
            ("Plain", "'own_targets:Plain' is not a subclass of conformance.engine.target.Target"),
            ("function", "'own_targets:function' is not a subclass"),
            ("Misspelt", "names the unknown oracle 'vlaue': choose from structure, dtype, shape"),
            ("Blind", "names no oracle, so nothing of it would be compared"),
            ("Wordy", "holds the dtype 'float32', which is no torch.dtype"),
        ],
    )
    def test_a_class_that_says_something_else_is_one_sentence(self, name, message, own_targets):
        """An unsuitable class gives one sentence and exit code 2. Regression test: an unsuitable class ended in a
        traceback, and a misspelt oracle in a run that compared nothing and passed."""
        with pytest.raises(TargetError, match=message) as caught:
            load_target(own_targets + name)
        assert "\n" not in str(caught.value)
        assert main(["--target", own_targets + name, "--programs", "2"]) == 2

    def test_leaving_out_what_there_is_not_is_one_sentence(self, own_targets, tmp_path, capsys):
        """An unknown family in `declarations` gives a sentence with the nearest one, in a campaign and in a replay.
        Regression test: the harness accepted it and drew its steps."""
        spec = own_targets + "Careless"
        for words in (["--programs", "2"], ["--replay", str(CORPUS)]):
            assert main(["--target", spec, "--reports", str(tmp_path), *words]) == 2
            said = capsys.readouterr().err
            assert f"target {spec!r}, its class: unknown step 'autogard'; did you mean autograd" in said

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("Former", r"'unsupported' is .* write facts = TargetFacts\(declarations=\(unsupported\(reason, step=..."),
            ("Older", r"'lazy' is a former attribute: write facts = TargetFacts\(lazy=...\), as docs/targets.md shows"),
            ("Listed", r"has the facts {'lazy': True}: write facts = TargetFacts\("),
            ("Idle", r"defines `transform`, which only runs with facts = TargetFacts\(transforms_program=True\)"),
            ("Featureless", "lacks the unknown feature 'storage': choose from storages"),
        ],
    )
    def test_facts_that_would_be_ignored_are_refused(self, name, message, own_targets, capsys):
        """A fact outside of `facts`, as classes had it formerly, and a transform without its fact would be ignored. So
        a command ends with exit code 2 and the form to write."""
        with pytest.raises(TargetError, match=message) as caught:
            load_target(own_targets + name)
        assert "\n" not in str(caught.value)
        assert main(["--target", own_targets + name, "--programs", "2"]) == 2
        assert str(caught.value) in capsys.readouterr().err

    def test_the_targets_of_other_packages_are_named(self, monkeypatch):
        """The error for an unknown target lists installed targets of other packages. Regression test: it listed
        built-in ones only."""
        monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "planted"))
        with pytest.raises(TargetError, match=r"choose one of .*\bplanted\b.*; or write class:MODULE.CLASS"):
            load_target("nonsense")

    def test_any_torch_device_by_name(self):
        """`device:NAME,import=MODULE` imports the module first."""
        sys.modules["a_backend"] = types.ModuleType("a_backend")
        target = load_target("device:cpu,import=a_backend")
        assert target.send(torch.ones(2)).tolist() == [1, 1]
        assert target.script() == "import a_backend\nDEVICE = 'cpu'"

    def test_any_device_counts_its_writes(self):
        """`device:NAME` compares version counters, so a write that a device counts twice is a mismatch. Regression
        test: it did not."""

        class Twice(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                if func is torch.ops.aten.neg_.default:
                    torch.autograd.graph.increment_version(args[0])
                return func(*args, **(kwargs or {}))

        target, program = load_target("device:cpu"), read_program(CORPUS / "swap-rows.json")
        program = program.with_steps((Step("neg_", ({"t": program.inputs[0].name},)),))
        assert judge_program(program, target).passed
        target.active = Twice
        assert {mismatch.oracle for mismatch in judge_program(program, target).mismatches} == {"version"}


class Forward(Target):
    """A device without gradients."""

    name = "forward"

    facts = TargetFacts(declarations=(unsupported("no autograd", step="backward", variant="backward"),))


def test_variants_that_are_left_out() -> None:
    """A device without the variant `backward` has none of the gradient variants. `functionalize` excludes the step
    only, because op_db computes gradients outside the function. Regression test: the variant was excluded, too."""
    assert unsupported_names(Forward.facts, "variant") == {"backward", *SPECIALS_BACKWARD}
    for spec, left_out in {
        "functionalize": {"forward_over_backward"},
        "compile:aot_eager": {"forward_over_backward"},
        "meta": {"forward_over_backward", "error_inputs", "refused_index", "refused_device"},
    }.items():
        assert unsupported_names(describe_target(spec).facts, "variant") == left_out
