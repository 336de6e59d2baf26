"""Special values among op_db's samples: where they are placed, what is judged then, and that lies of each tier show."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from conformance.core.names import SPECIALS
from conformance.core.result import Outcome, Result
from conformance.core.target import Target
from conformance.opinfo import catalog, plan, specials, undefined
from conformance.opinfo.case import run_case
from conformance.opinfo.plan import Case, Selection
from conformance.opinfo.sampling import samples
from conformance.targets.cpu import CpuTarget

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class Liar(CpuTarget):
    """Torch CPU, under a mode that spoils what functions of one name answer."""

    name = "liar"
    oracles = CpuTarget.oracles - {"kernels"}

    def __init__(self, name: str, spoil: Any) -> None:
        super().__init__()
        self.mode = Spoils(name, spoil)

    def active(self) -> Any:
        """The mode, around the call alone."""
        return self.mode


class Spoils(torch.overrides.TorchFunctionMode):
    """Gives the results of one function to `spoil`, with its first argument."""

    def __init__(self, name: str, spoil: Any) -> None:
        super().__init__()
        self.name, self.spoil = name, spoil

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return self.spoil(result, args[0]) if getattr(func, "__name__", "") == self.name else result


def cases(op: str, *variants: str, dtype: str = "float32") -> list[Case]:
    entries = [entry for entry in catalog.entries() if entry.name == op]
    return plan.select(entries, [Selection((op,), (dtype,), variants or tuple(SPECIALS), samples=6)])


def judged(target: Target, op: str, variant: str, dtype: str = "float32") -> Result:
    [case] = cases(op, variant, dtype=dtype)
    return run_case(case, target)


class TestPlaced:
    @pytest.mark.parametrize("tier", SPECIALS)
    @pytest.mark.parametrize("dtype", FLOATS)
    def test_every_tier_of_floats(self, tier: str, dtype: torch.dtype) -> None:
        """One element in three at least has a value of the tier, the layout and `requires_grad` stay, and so does the
        tensor that was given."""
        given = torch.arange(24.0).view(4, 6).t().to(dtype).requires_grad_()
        made = specials.placed({"input": given}, tier, dtype)["input"]
        assert (made.stride(), made.dtype, made.requires_grad) == (given.stride(), dtype, True)
        assert given.sum().item() == 276
        wanted = torch.tensor([*specials.special_values(dtype, tier)], dtype=dtype)
        if tier == "specials_equal":
            assert bool((made == made.flatten()[0]).all())
            return
        special = torch.stack([(made == one) | (made.isnan() & one.isnan()) for one in wanted]).any(0)
        assert int(special.sum()) >= 3
        assert tier == "specials_ties" or int(special.sum()) < 24

    def test_the_same_everywhere(self) -> None:
        """What is placed follows from the tensor's position and size, and from no generator."""
        tree = {"input": torch.ones(8), "args": (torch.ones(8),)}
        one = specials.placed(tree, "specials_inf", torch.float32)
        random.seed(3), torch.manual_seed(3)
        two = specials.placed(tree, "specials_inf", torch.float32)
        assert torch.equal(one["input"], two["input"])
        assert not torch.equal(one["input"], one["args"][0])

    def test_one_tensor_twice_stays_one(self) -> None:
        """x * x is not x * y."""
        x = torch.ones(4)
        made = specials.placed({"input": x, "args": (x,)}, "specials_nan", torch.float32)
        assert made["input"] is made["args"][0]

    def test_indices_stay(self) -> None:
        """Integer arguments are often indices: torch CPU read out of bounds, or every sample was refused."""
        case = cases("gather", "specials_extremes", dtype="int64")[0]
        drawn = list(samples(catalog.find(case), case.variant, torch.int64, "as_sampled", 3))
        plain = list(samples(catalog.find(case), "forward", torch.int64, "as_sampled", 3))
        assert not torch.equal(drawn[0].input, plain[0].input)
        assert torch.equal(drawn[0].args[1], plain[0].args[1])

    def test_what_must_be_sorted_stays(self) -> None:
        """Boundaries that are not sorted have no right answer."""
        drawn = list(samples(catalog.find(cases("bucketize")[0]), "specials_nan", torch.float32, "as_sampled", 3))
        assert not any(bool(sample.args[0].isnan().any()) for sample in drawn)
        assert any(bool(sample.input.isnan().any()) for sample in drawn)

    def test_nothing_to_place(self) -> None:
        """A factory has no tensor to place anything in: the case is skipped, and says why."""
        made = judged(CpuTarget(), "eye", "specials_nan")
        assert made.outcome is Outcome.SKIP
        assert "special values" in made.reason


LIES = {
    "specials_nan": ("exp", lambda made, x: made.nan_to_num(0.0)),
    "specials_inf": ("exp", lambda made, x: made.clamp_max(torch.finfo(made.dtype).max)),
    "specials_subnormal": ("log", lambda made, x: made.where(x.abs() >= torch.finfo(x.dtype).tiny, -torch.inf)),
    "specials_extremes": ("mul", lambda made, x: made * 2 / 2),
    "specials_large": ("sin", lambda made, x: x.double().remainder(6.28).sin().to(made.dtype)),
    "specials_negative": ("sqrt", lambda made, x: x.abs().sqrt()),
    "specials_zeros": ("neg", lambda made, x: 0.0 - x),
    "specials_ties": ("cummax", lambda made, x: type(made)((made[0], made[1].flip(0)))),
    "specials_equal": ("argmax", lambda made, x: torch.zeros_like(made) + (x.numel() > 1)),
}


class TestJudged:
    @pytest.mark.parametrize("tier", SPECIALS)
    def test_a_lie_in_each_tier(self, tier: str) -> None:
        """A device that is wrong about these values alone fails, and torch CPU agrees with itself."""
        op, spoil = LIES[tier]
        assert judged(CpuTarget(), op, tier).outcome is Outcome.PASS
        assert judged(Liar(op, spoil), op, tier).outcome is Outcome.FAIL

    def test_ties_of_an_unstable_sort(self) -> None:
        """Any order of equal elements is right, and an index of another element is not."""
        swapped = Liar("argsort", lambda made, x: x.flip(-1).argsort().neg() + x.shape[-1] - 1)
        wrong = Liar("argsort", lambda made, x: made.flip(-1))
        assert undefined.TABLE["ties"]["argsort"] == 0
        [case] = plan.select(catalog.entries(), [Selection(("argsort",), ("float32",), ("specials_ties",), samples=1)])
        assert run_case(case, swapped).outcome is Outcome.PASS
        assert run_case(case, wrong).outcome is Outcome.FAIL

    def test_a_nan_may_spread_and_not_vanish(self) -> None:
        """Which elements of a transform a nan reaches is the algorithm's business; that it reaches some is not."""
        spread = Liar("fft_fft", lambda made, x: made * math.nan)
        assert judged(spread, "fft.fft", "specials_nan").outcome is Outcome.PASS
        lost = Liar("fft_fft", lambda made, x: torch.fft.fftn(x.nan_to_num(), made.shape))
        assert judged(lost, "fft.fft", "specials_nan").outcome is Outcome.FAIL

    def test_faults_of_torch_cpu(self) -> None:
        """They are skipped with the reason, and not blamed on the device; what it gets right is a pass."""
        finite = Liar("var_mean", lambda made, x: tuple(one.nan_to_num(1.0) for one in made))
        made = judged(finite, "var_mean", "specials_inf")
        assert (made.failed, made.skipped > 0) == (0, True)
        assert judged(finite, "var_mean", "specials_nan").outcome is Outcome.FAIL
        dies = judged(CpuTarget(), "linalg.eigvals", "specials_nan")
        assert "SIGSEGV" in dies.reason

    def test_every_glob_names_an_op(self) -> None:
        """An entry of the table that matches nothing is a typo."""
        table = undefined.TABLE
        globs = [*table["ties"], *table["zeros"]["but"], *table["spread"]["ops"], *table["lapack"]["ops"]]
        globs += [glob for fault in table["fault"] for glob in fault["ops"]]
        for glob in globs:
            assert plan.matching([glob], catalog.entries())
        assert {*table["zeros"]["families"]} <= {entry.family for entry in catalog.entries()}
        assert {*plan.ADDING_UP} <= {entry.family for entry in catalog.entries()}
