"""Arbitration by float64: the side with the larger rounding error fails; other differences are not arbitrated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.testing._comparison import default_tolerances

from conformance.engine.target import Target
from conformance.record.result import Outcome, Result
from conformance.sources.opinfo import case as module
from conformance.sources.opinfo import catalog
from conformance.sources.opinfo.plan import Case
from conformance.sources.opinfo.sampling import Sample


class Rounding(Target):
    """Torch CPU with a flag that distinguishes its computations from those of the reference."""

    name = "rounding"
    here = False

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        type(self).here = True
        try:
            yield
        finally:
            type(self).here = False


def off(cpu: float, device: float) -> Callable[[torch.dtype], float]:
    """Factor with an error of this many tolerances on the CPU and on the device, and no error in float64."""

    def factor(dtype: torch.dtype) -> float:
        if dtype in (torch.float64, torch.complex128):
            return 1.0
        return 1 + default_tolerances(dtype)[0] * (device if Rounding.here else cpu)

    return factor


def scaled(factor: Callable[[torch.dtype], float]) -> Callable[..., torch.Tensor]:
    return lambda x: (x.to(torch.complex128 if x.is_complex() else torch.float64) * factor(x.dtype)).to(x.dtype)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    def run(function: Any, *args: Any, variant: str = "forward", name: str = "float32", **kwargs: Any) -> Result:
        op = SimpleNamespace(name="planted", op=function, inplace_variant=function, decorators=(),
                             has_nondeterministic_output=False)  # fmt: skip
        monkeypatch.setattr(catalog, "find", lambda _: op)
        monkeypatch.setattr(module, "samples", lambda *_: iter([Sample(0, args[0], args[1:], kwargs)]))
        return module.run_case(Case("planted", "", "", name, variant, "as_sampled"), Rounding())

    return run


LARGE = torch.tensor([[1e3, -2e3, 0.0], [float("nan"), float("inf"), 5e3]])


class TestArbiter:
    """Differences of values beyond the tolerance."""

    @pytest.mark.parametrize(
        ("cpu", "device", "dtype"),
        [
            (1.5, 0, "float32"),
            (1.2, -0.5, "float32"),
            (-0.8, 0.6, "float32"),
            (40, 0.9, "float32"),
            (5, 0, "complex64"),
            (5, 0, "float16"),
            (5, 0, "bfloat16"),
        ],
    )
    def test_the_cpu_is_further_off(self, judged: Any, cpu: float, device: float, dtype: str) -> None:
        """The sample passes and counts as arbitrated."""
        result = judged(scaled(off(cpu, device)), LARGE.to(getattr(torch, dtype)), name=dtype)
        assert (result.outcome, result.samples, result.arbitrated) == (Outcome.PASS, 1, 1)

    @pytest.mark.parametrize(("cpu", "device"), [(0, 2), (0, -2), (0.4, -0.9), (-3, 2), (3, -1.1)])
    def test_the_device_is_further_off(self, judged: Any, cpu: float, device: float) -> None:
        """The device fails if it is off by twice the tolerance, or is farther off than the CPU. The failure states both
        errors, unless the CPU is exact."""
        result = judged(scaled(off(cpu, device)), LARGE)
        assert (result.outcome, result.oracles, result.arbitrated) == (Outcome.FAIL, ("value",), 0)
        said = "against the answer in float64, torch CPU is off by" in result.failures[0].detail
        assert said == bool(cpu)

    def test_one_wrong_element(self, judged: Any) -> None:
        """A device with one wrong element fails, whatever the error of the CPU."""

        def function(x: torch.Tensor) -> torch.Tensor:
            result = scaled(off(5, 0))(x)
            if Rounding.here:
                result[0] += 1
            return result

        assert judged(function, LARGE[0].clone()).outcome is Outcome.FAIL

    def test_what_agrees_is_not_judged(self, judged: Any) -> None:
        """Values within the tolerance are not arbitrated, even if both sides are far from float64."""
        result = judged(scaled(off(7, 7)), LARGE)
        assert (result.outcome, result.arbitrated) == (Outcome.PASS, 0)

    @pytest.mark.parametrize(("layout", "dtype"), [("t", "float32"), ("t", "float16"), ("", "bfloat16")])
    def test_gradients(self, judged: Any, layout: str, dtype: str) -> None:
        """The run in float64 gets the same cotangents, so gradients are arbitrated like values; a wrong gradient
        fails."""
        values = (LARGE[:, :1].t() if layout else LARGE[0]).to(getattr(torch, dtype)).requires_grad_()

        def function(factor: Callable[[torch.dtype], float]) -> Callable[[torch.Tensor], torch.Tensor]:
            return lambda x: (
                x
                * torch.tensor([factor(x.dtype)], dtype=torch.float64).to(
                    torch.float64 if x.dtype is torch.float64 else torch.float32
                )
            )

        right = judged(function(off(40, 0)), values, variant="backward", name=dtype)
        assert (right.outcome, right.arbitrated) == (Outcome.PASS, 1)
        wrong = judged(function(off(0, 40)), values, variant="backward", name=dtype)
        assert (wrong.outcome, set(wrong.oracles)) == (Outcome.FAIL, {"value", "grad"})

    def test_in_place(self, judged: Any) -> None:
        """The storage's content after the call is arbitrated with the value; a write outside the view is a failure."""
        base = torch.full((9,), 1e3)
        inplace = SimpleNamespace(factor=off(5, 0), beside=0.0)

        def function(x: torch.Tensor) -> torch.Tensor:
            x.mul_(inplace.factor(x.dtype))
            if Rounding.here and inplace.beside:
                torch.as_strided(x, (9,), (1,), 0)[1] = inplace.beside
            return x

        assert judged(function, base[::2], variant="inplace").arbitrated == 1
        inplace.beside = 3.0
        result = judged(function, base[::2], variant="inplace")
        assert (result.outcome, result.arbitrated) == (Outcome.FAIL, 0)

    def test_dtype_argument(self, judged: Any) -> None:
        """A floating dtype argument is widened too; an integer input stays unchanged."""
        seen = []

        def function(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
            seen.append((x.dtype, dtype))
            return (x.double() * off(3, 0)(dtype)).to(dtype)

        assert judged(function, torch.tensor([1000, 2000]), dtype=torch.float32).arbitrated == 1
        assert (torch.int64, torch.float64) in seen


class TestNoTruth:
    """Failures that float64 cannot arbitrate."""

    def test_a_random_op(self, judged: Any) -> None:
        """An answer that changes with the seed cannot arbitrate, even if the device agrees with it."""
        result = judged(lambda x: scaled(off(3, 0))(x) + 0 * torch.rand(3) + torch.rand(1).to(x.dtype), LARGE)
        assert (result.outcome, result.arbitrated) == (Outcome.FAIL, 0)

    def test_an_op_without_float64(self, judged: Any) -> None:
        """An op that raises in float64 has no float64 answer."""

        def function(x: torch.Tensor) -> torch.Tensor:
            if x.dtype is torch.float64:
                raise RuntimeError("not for Double")
            return x * off(3, 0)(x.dtype)

        assert judged(function, LARGE).outcome is Outcome.FAIL

    def test_integers(self, judged: Any) -> None:
        """Integers do not round."""
        result = judged(lambda x: scaled(off(1e5, 0))(x).long(), LARGE[0])
        assert (result.outcome, result.arbitrated) == (Outcome.FAIL, 0)

    def test_float64_itself(self, judged: Any) -> None:
        """In float64 the CPU is the reference."""
        result = judged(lambda x: x + (1 if Rounding.here else 0), LARGE.double(), name="float64")
        assert (result.outcome, result.arbitrated) == (Outcome.FAIL, 0)

    def test_other_oracles(self, judged: Any) -> None:
        """Wrong strides fail, although float64 would accept the values."""

        def function(x: torch.Tensor) -> torch.Tensor:
            result = scaled(off(3, 0))(x)
            return result.mT.contiguous().mT if Rounding.here else result

        result = judged(function, LARGE)
        assert set(result.oracles) >= {"stride", "value"}
        assert result.arbitrated == 0


class TestOverflow:
    """The float64 answer is rounded to the requested dtype before the comparison."""

    def test_only_on_the_way(self, judged: Any) -> None:
        """If only an intermediate of the CPU overflows and the answer fits in the dtype, the CPU is wrong."""

        def function(x: torch.Tensor) -> torch.Tensor:
            return x * x / x if not Rounding.here else x.clone()

        result = judged(function, torch.tensor([1e3, 2.0], dtype=torch.float16), name="float16")
        assert (result.outcome, result.arbitrated) == (Outcome.PASS, 1)

    def test_of_the_answer(self, judged: Any) -> None:
        """An answer outside the range of the dtype is infinite; a device that returns the largest number fails."""

        def function(x: torch.Tensor) -> torch.Tensor:
            return x * x if not Rounding.here else (x.double() * x).clamp(max=65504).to(x.dtype)

        result = judged(function, torch.tensor([1e3, 2.0], dtype=torch.float16), name="float16")
        assert (result.outcome, result.arbitrated) == (Outcome.FAIL, 0)

    def test_an_infinity_of_the_device(self, judged: Any) -> None:
        """A device whose intermediate overflows fails."""
        result = judged(lambda x: x * x / x if Rounding.here else x.clone(), torch.tensor([1e3]).half(), name="float16")
        assert (result.outcome, result.arbitrated) == (Outcome.FAIL, 0)
