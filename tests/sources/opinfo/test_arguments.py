"""Changed arguments: the table, the calls of an op, and targets that mishandle an argument or a refused call."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch

from conformance.record import names
from conformance.record import result as model
from conformance.record.result import Outcome, Result
from conformance.sources.opinfo import arguments, plan
from conformance.sources.opinfo.arguments import Change, Origin

from .conftest import PLANTED

if TYPE_CHECKING:
    from .conftest import Command

ARGUMENTS: dict[str, list[Any]] = {
    "tensor": [torch.ones(2, 3), torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.bool)],
    "int": [3],
    "float": [0.5, 2.0],
    "bool": [True],
    "str": ["mean"],
    "dtype": [torch.float16],
    "list": [[2, 3], (4, 4), [2]],
    "call": [{"input": torch.zeros(2, 3, 4, 5, dtype=torch.int32), "args": (), "kwargs": {}}],
}
"""Arguments by kind. Each change of the table applies to one of them."""


@pytest.fixture(scope="module")
def careless() -> Iterator[Any]:
    """The module of targets that mishandle arguments."""
    sys.path.insert(0, str(PLANTED))
    import careless

    yield careless
    sys.path.remove(str(PLANTED))


def case_of(op: str, variant: str) -> plan.Case:
    return plan.Case(op, "", "binary", "float32", variant, "as_sampled", samples=None)


def run_case(target: Any, op: str, variant: str) -> Result:
    from conformance.sources.opinfo.case import run_case

    return run_case(case_of(op, variant), target)


class TestTable:
    def test_every_change_applies(self) -> None:
        """No expression is misspelt: each applies to an argument of its kind."""
        for variant, kinds in arguments.table().items():
            for kind, changes in kinds.items():
                for change in changes:
                    results = [change.applied(x) for x in ARGUMENTS[kind]]
                    assert any(applies for _, applies in results), (variant, kind, change.name)

    def test_every_variant_has_changes(self) -> None:
        """The table has the variants of `names.CHANGED`, each with changes, and names are unique."""
        assert {*arguments.table()} == {*names.CHANGED} == {*names.KINDS, *names.REFUSED, *names.ENDS}
        for kinds in arguments.table().values():
            for changes in kinds.values():
                assert len({change.name for change in changes}) == len(changes) > 0

    def test_a_change_that_has_no_meaning(self) -> None:
        """A false condition, and an expression that raises, give no call."""
        assert arguments.changed({"input": 1, "args": (), "kwargs": {}}, ("input",), Change("", "", "x[0]")) is None
        assert not Change("", "", "2", when="x > 1").applied(1)[1]

    def test_an_origin_survives_a_note(self) -> None:
        """A worker's note is one line, and the parent reads the same change."""
        origin = Origin(3, ("kwargs", "dim"), Change("kind_none", "None", "None"), "inplace")
        text = origin.to_json()
        assert (Origin.from_json(text), "\n" in text, str(origin)) == (origin, False, "dim -> None (inplace)")


class TestCalls:
    def test_every_argument_of_an_op_is_changed(self) -> None:
        """Each argument of `topk`, positional or named, has calls of each kind that the table has for it."""
        from conformance.sources.opinfo import catalog
        from conformance.sources.opinfo.sampling import samples

        op, seen = catalog.by_name()["topk", ""], set()
        for variant in names.CHANGED:
            for sample in samples(op, variant, torch.float32, "as_sampled", None):
                assert sample.origin is not None
                seen.add((arguments.shown(sample.origin.place), sample.origin.change.variant))
        places = {place for place, _ in seen}
        assert places >= {"input", "args[0]", "args[1]", "args[2]"}
        for place, kind in (("input", "tensor"), ("args[0]", "int"), ("args[2]", "bool")):
            wanted = {variant for variant, kinds in arguments.table().items() if kind in kinds}
            left = wanted - {variant for at, variant in seen if at == place}
            assert left <= {"refused_index", "refused_device"}  # topk has one tensor, of floats

    def test_one_sample_is_the_same_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The sample of a number is the call of that number among all samples."""
        from conformance.sources.opinfo import catalog
        from conformance.sources.opinfo.sampling import samples

        op = catalog.by_name()["add", ""]

        def drawn() -> dict[int, str]:
            return {s.index: str(s.origin) for s in samples(op, "kind_dtype", torch.float32, "as_sampled", None)}

        every = drawn()
        assert [*every] == [*range(len(every))]
        monkeypatch.setenv(arguments.ONE_SAMPLE, "3")
        assert drawn() == {3: every[3]}

    def test_an_op_without_such_an_argument_is_no_failure(self, cpu: Any) -> None:
        """`sin` has no index, so its case is skipped."""
        result = run_case(cpu, "sin", "refused_index")
        assert (result.outcome, result.failures) == (Outcome.SKIP, ())

    @pytest.mark.parametrize("variant", names.CHANGED)
    @pytest.mark.parametrize("op", ["add", "index_add", "cumsum"])
    def test_torch_cpu_agrees_with_itself(self, op: str, variant: str, cpu: Any) -> None:
        """Accepted and refused calls agree. A refused call counts as a comparison."""
        result = run_case(cpu, op, variant)
        assert result.outcome in (Outcome.PASS, Outcome.SKIP), result.failures

    def test_a_matrix_without_values_is_not_solved(self, cpu: Any) -> None:
        """Such a call is skipped before it runs. Regression test: torch CPU reads memory of earlier calls as the
        matrix, and the case passed or was skipped as that memory was singular or not."""
        from conformance.sources.opinfo.case import run_case

        seen = set[str]()
        result = run_case(case_of("linalg.solve", "refused_device"), cpu, lambda sample, phase, **more: seen.add(phase))
        assert (result.outcome, result.samples, seen) == (Outcome.SKIP, 0, {"sampling"})
        assert "earlier calls decide" in result.reason


class TestWholeCalls:
    def test_tensors_that_stay_on_the_cpu(self) -> None:
        """A change of all tensors leaves those on the CPU that OpInfo keeps there."""
        from conformance.sources.opinfo import catalog
        from conformance.sources.opinfo.sampling import samples
        from conformance.standalone.moving import storage_key

        op = catalog.by_name()["tensor_split", ""]
        drawn = [*samples(op, "end_sizes", torch.float32, "as_sampled", None)]
        indices = [(s.args[0], s.kept) for s in drawn if isinstance(s.args[0], torch.Tensor)]
        assert any(index.numel() == 0 for index, _ in indices)
        assert all(storage_key(index) in kept for index, kept in indices)

    def test_a_divisor_of_minus_one(self) -> None:
        """The least integer meets -1 in some sample of a division."""
        from conformance.sources.opinfo import catalog
        from conformance.sources.opinfo.sampling import samples

        op, least = catalog.by_name()["div", "trunc_rounding"], -(2**31)
        drawn = [*samples(op, "end_values", torch.int32, "as_sampled", None)]
        pairs = [(s.input, s.args[0]) for s in drawn if s.input.shape == s.args[0].shape]
        assert any(bool(((a == least) & (b == -1)).any()) for a, b in pairs)

    def test_memory_beside_an_operand(self, cpu: Any) -> None:
        """A stride without a meaning makes torch CPU read beside the operand, which is a finding of torch CPU. On a CPU
        without AVX-512 torch is right, and the case passes."""
        a, b = torch.ones(4, 32, dtype=torch.int8), torch.arange(32, dtype=torch.int8).view(32, 1)
        wrong = not torch.equal(torch._int_mm(a, b), torch._int_mm(a, b.as_strided((32, 1), (1, 0))))
        case = plan.Case("ops.aten._int_mm", "", "other", "float32", "end_strides", "as_sampled", None)
        from conformance.sources.opinfo.case import run_case

        result = run_case(case, cpu)
        assert (result.outcome, result.oracles) == ((Outcome.FAIL, ("value",)) if wrong else (Outcome.PASS, ()))

    @pytest.mark.parametrize("variant", ["end_sizes", "end_strides"])
    def test_sparse_tensors_stay(self, cpu: Any, variant: str) -> None:
        """A change concerns the strided tensors of a call. A sparse one beside them has no storage to compare; formerly
        the harness failed."""
        result = run_case(cpu, "sparse.sampled_addmm", variant)
        assert (result.outcome, result.failures) == (Outcome.PASS, ())

    def test_suites_of_their_own(self) -> None:
        """The suite `arguments` and the changed steps of drawn programs have the variants of one argument only."""
        assert {v for selection in plan.SUITES["arguments"] for v in selection.variants} == {
            *names.KINDS,
            *names.REFUSED,
        }
        assert {v for selection in plan.SUITES["ends"] for v in selection.variants} == {*names.ENDS}


class TestFaults:
    @pytest.mark.parametrize(
        ("name", "op", "variant", "oracle"),
        [
            ("Bools", "add", "kind_bool", "value"),
            ("NumPy", "add", "kind_numpy", "value"),
            ("Operands", "add", "kind_scalar", "shape"),
            ("Accepts", "add", "refused_type", "error"),
            ("Accepts", "index_add", "refused_index", "error"),
            ("Accepts", "topk", "refused_range", "error"),
            ("Internal", "add", "refused_size", "error"),
        ],
    )
    def test_a_careless_target_is_caught(self, name: str, op: str, variant: str, oracle: str, careless: Any) -> None:
        """A target that mishandles a kind of argument, or a refused call, fails in that variant."""
        result = run_case(getattr(careless, name)(), op, variant)
        assert (result.outcome, oracle in result.oracles) == (Outcome.FAIL, True), result

    def test_a_missing_error_is_less_severe_than_a_wrong_value(self) -> None:
        """The report shows a target that accepts a refused call after wrong values."""
        from conformance.record.finding import property_of, severity_of

        missing = property_of("error", "RuntimeError", "no error")
        assert missing == "missing error"
        assert severity_of(property_of("value", "1", "2")) < severity_of(missing)

    @pytest.mark.slow
    def test_a_kernel_that_aborts(self, command: Command) -> None:
        """The process of an aborting call ends, and the other calls of the case run. The failure names the argument,
        and its script takes the sample from op_db and changes the argument."""
        done = command("--target", "class:careless.Aborts", "--op", "index_add", "--variant", "refused_index")
        assert done.returncode == 1, done.stderr
        (result,) = model.load(command.reports / "opinfo.json").results
        crashes = [failure for failure in result.failures if failure.oracle == "crash"]
        assert (result.outcome, len(crashes) >= 2) == (Outcome.CRASH, True)
        assert "args[1] -> negative" in crashes[0].detail
        assert result.samples > len(crashes)
        assert "given = replaced(given, ('args', 1), -1 - x)" in crashes[0].script
        compile(crashes[0].script, "script", "exec")


class TestSurroundings:
    """Memory beside the operands, which torch CPU must not use."""

    def test_a_read_and_a_write_beside_an_operand(self, monkeypatch: pytest.MonkeyPatch, cpu: Any) -> None:
        """An operator that reads or writes beside its operand is a finding on torch CPU, and is skipped elsewhere."""
        from conformance.sources.opinfo import catalog

        def beside(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            whole = torch.empty(0).set_(x.untyped_storage())
            if x.storage_offset():
                whole[0] = 7
            return x + whole[0]

        monkeypatch.setattr(catalog.by_name()["neg", ""], "op", beside)
        result = run_case(cpu, "neg", "kind_value")
        assert result.outcome is Outcome.SKIP
        result = run_case(cpu, "neg", "kind_dtype")
        assert (result.outcome, result.oracles) == (Outcome.FAIL, ("storage",))
        other = type(cpu)()
        other.name = "other"
        result = run_case(other, "neg", "kind_dtype")
        assert (result.outcome, result.skipped > 3) == (Outcome.PASS, True)  # the in-place form passes
