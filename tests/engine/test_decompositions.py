"""Another order, sign or basis of a decomposition is right, and a wrong decomposition is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.engine.decompositions import DEFINED, without_free_choices
from conformance.engine.judge import Terms
from conformance.engine.loading import load_target
from conformance.engine.rules import Arguments
from conformance.engine.target import Target
from conformance.program.calls import judge_program
from conformance.record.result import Outcome, Result
from conformance.sources.opinfo import catalog
from conformance.sources.opinfo.case import run_case
from conformance.sources.opinfo.plan import Case
from conformance.sources.opinfo.sample_program import written
from conformance.sources.opinfo.sampling import samples
from conformance.sources.opinfo.variants import trials_of
from conformance.standalone.observation import observe
from conformance.standalone.oracles import Mismatch, compare
from conformance.standalone.torch_compat import TorchDispatchMode

Change = Callable[[Any], Any]


class Changed(TorchDispatchMode):
    """Torch CPU with other results of some operators."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        changes = ("linalg_eig", "linalg_eigvals", "_linalg_eigvals", "_linalg_eigh", "_linalg_svd", "linalg_qr")
        return self.change(result) if name in changes else result


class ChangedCpu(Target):
    """The target of `Changed`."""

    name = "changed"

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Context of a step."""
        with Changed(self.change):
            yield


def run(op: str, change: Change, dtype: str = "float32", variant: str = "forward") -> Result:
    every = Case(op, "", "linalg", dtype, variant, "as_sampled", samples=None)  # the first samples of svd are empty
    return run_case(every, ChangedCpu(change))


def reversed_order(result: Any) -> Any:
    """The eigenvalues, and the vectors with them, in the opposite order."""
    if isinstance(result, torch.Tensor):
        return result.flip(-1)
    values, vectors = result
    return values.flip(-1), vectors.flip(-1)


def other_signs(result: Any) -> Any:
    """Every other vector has the other sign: columns of the first factor, rows of the last one."""

    def turned(vectors: torch.Tensor, dim: int) -> torch.Tensor:
        signs = torch.ones(vectors.shape[dim], dtype=vectors.dtype)
        signs[::2] = -1
        return vectors.clone().mul_(signs if dim == -1 else signs.unsqueeze(-1))

    if len(result) == 3:
        left, values, right = result
        count = values.shape[-1]
        left, right = left.clone(), right.clone()
        left[..., :count], right[..., :count, :] = turned(left[..., :count], -1), turned(right[..., :count, :], -2)
        return left, values, right
    first, second = result
    if first.dim() < second.dim():  # eigenvalues and eigenvectors
        return first, turned(second, -1)
    if not first.numel() or first.shape[-1] != second.shape[-2]:
        return first, turned(second, -2)
    return turned(first, -1), turned(second, -2)


def slightly_wrong(result: Any) -> Any:
    """One number is off by a thousandth."""
    if isinstance(result, torch.Tensor):
        return result * 1.001
    first, *rest = result
    return (first * 1.001, *rest)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
class TestFreeChoices:
    @pytest.mark.parametrize("op", ["linalg.eigvals", "linalg.eig"])
    def test_another_order(self, op: str, dtype: str) -> None:
        """Regression test: a backend returned the eigenvalues of torch CPU in another order, which was a finding."""
        result = run(op, reversed_order, dtype)
        assert (result.outcome, result.failures) == (Outcome.PASS, ())

    @pytest.mark.parametrize("op", ["linalg.eig", "linalg.eigh", "linalg.svd", "svd", "linalg.qr", "qr"])
    def test_another_sign(self, op: str, dtype: str) -> None:
        """Vectors with the other sign are as right; those of svd turn in pairs."""
        result = run(op, other_signs, dtype)
        assert (result.outcome, result.failures) == (Outcome.PASS, ())

    @pytest.mark.parametrize("op", sorted(DEFINED))
    def test_a_wrong_value(self, op: str, dtype: str) -> None:
        """A number that is off by a thousandth is no free choice."""
        assert run(op, slightly_wrong, dtype).outcome is Outcome.FAIL

    @pytest.mark.parametrize("op", ["linalg.svd", "svd", "linalg.qr", "qr"])
    def test_a_sign_of_one_factor_alone(self, op: str, dtype: str) -> None:
        """The product is then another matrix."""
        change = lambda result: (other_signs(result)[0], *result[1:])  # noqa: E731
        assert run(op, change, dtype).outcome is Outcome.FAIL


def test_an_order_of_ascending_values_is_not_free() -> None:
    """The eigenvalues of a symmetric matrix ascend by torch's documentation."""
    assert run("linalg.eigh", reversed_order).outcome is Outcome.FAIL


def test_a_program_of_a_sample_has_the_rule() -> None:
    """A decomposition in another order passes as a program too, so that a finding is minimized by what is wrong."""
    case = Case("linalg.eigvals", "", "linalg", "float32", "forward", "as_sampled")
    info = catalog.find(case)
    sample = next(one for one in samples(info, "forward", torch.float32, "as_sampled", 20) if one.input.shape[-1] > 1)
    program = written(next(trials_of(case, sample, load_target("cpu"))))[0]
    assert judge_program(program, ChangedCpu(reversed_order)).passed
    assert not judge_program(program, ChangedCpu(slightly_wrong)).passed


@pytest.mark.parametrize(("process", "left"), [(None, []), (torch.abs, ["grad of input"])], ids=["plain", "converted"])
def test_gradients_follow_from_the_choice_unless_converted(process: Any, left: list[str]) -> None:
    """OpInfo takes gradients of the absolute values of vectors, for example. Such a gradient depends on no sign, so a
    wrong one is found beside vectors of another sign."""
    matrix = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    want = torch.linalg.eigh(matrix)
    sides = [observe({"result": answer}, {"input": matrix}) for answer in (tuple(want), other_signs(want))]
    found = [*compare(*sides), Mismatch("grad", "grad of input", "1.0", "2.0", "1 of 4 elements differ")]
    assert "result[1]" in [mismatch.where for mismatch in found]
    subject = SimpleNamespace(
        names_of_inputs=lambda: {"input"},
        arguments=lambda: Arguments("linalg.eigh", matrix, (), {}, [matrix]),
        terms=Terms(process=process),
    )
    assert [mismatch.where for mismatch in without_free_choices(subject, found, *sides)] == left  # type: ignore[arg-type]


@pytest.mark.parametrize("op", ["linalg.svd", "linalg.eigh"])
def test_gradients_of_other_signs_pass(op: str) -> None:
    """They are computed from the vectors of the other sign, and are equal."""
    assert run(op, other_signs, variant="backward").outcome is Outcome.PASS
