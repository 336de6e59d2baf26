"""Special values in op_db samples: their placement, their judgement, and detection of faults in each tier."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from conformance.declare import declaration
from conformance.declare.declaration import unsupported
from conformance.engine.target import Target
from conformance.program.unsupported import unsupported_names
from conformance.record.names import SPECIALS, VARIANTS
from conformance.record.result import Outcome, Result
from conformance.run import options
from conformance.sources.opinfo import catalog, plan, undefined
from conformance.sources.opinfo.case import run_case
from conformance.sources.opinfo.plan import Case, Selection
from conformance.sources.opinfo.sampling import samples
from conformance.standalone import specials
from conformance.targets.cpu import CpuTarget

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class Liar(CpuTarget):
    """Torch CPU under a mode that changes the results of one function."""

    name = "liar"

    def __init__(self, name: str, spoil: Any) -> None:
        super().__init__()
        self.mode = Spoils(name, spoil)

    def active(self) -> Any:
        """The mode, active during the call only."""
        return self.mode


class Spoils(torch.overrides.TorchFunctionMode):
    """Mode that passes the results of one function, with its first argument, to `spoil`."""

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
        """At least 3 elements of 24 get a value of the tier. Layout and `requires_grad` stay, and the given tensor is
        unchanged."""
        tensor = torch.arange(24.0).view(4, 6).t().to(dtype).requires_grad_()
        changed = specials.placed({"input": tensor}, tier, dtype)["input"]
        assert (changed.stride(), changed.dtype, changed.requires_grad) == (tensor.stride(), dtype, True)
        assert tensor.sum().item() == 276
        wanted = torch.tensor([*specials.special_values(dtype, tier)], dtype=dtype)
        if tier == "specials_equal":
            assert bool((changed == changed.flatten()[0]).all())
            return
        special = torch.stack([(changed == one) | (changed.isnan() & one.isnan()) for one in wanted]).any(0)
        assert int(special.sum()) >= 3
        assert tier == "specials_ties" or int(special.sum()) < 24

    @pytest.mark.parametrize("tier", SPECIALS)
    def test_every_tier_of_complex_numbers(self, tier: str) -> None:
        """Real parts, imaginary parts and both get special values, even in a lazily conjugated tensor. A tie has equal
        elements in both parts."""
        tensor = torch.complex(torch.arange(60.0), -torch.arange(60.0)).conj()
        replaced = specials.placed({"input": tensor}, tier, torch.complex64)["input"]
        if tier == "specials_equal":
            assert bool((replaced == replaced[0]).all())
            return
        wanted = torch.tensor([*specials.special_values(torch.complex64, tier)])
        real, imag = ((p.unsqueeze(-1) == wanted) | (p.isnan().unsqueeze(-1) & wanted.isnan()) for p in
                      (replaced.real, replaced.imag))  # fmt: skip
        changed = [part.any(-1) & (new != old) for part, new, old in
                   ((real, replaced.real, tensor.real), (imag, replaced.imag, tensor.imag))]  # fmt: skip
        assert bool((changed[0] & changed[1]).any())
        assert tier == "specials_ties" or bool((changed[0] & ~changed[1]).any() and (changed[1] & ~changed[0]).any())
        assert int((changed[0] | changed[1]).sum()) < 40 or tier == "specials_ties"

    def test_the_same_everywhere(self) -> None:
        """The values depend on the tensor's position and size, and on no random generator."""
        tree = {"input": torch.ones(8), "args": (torch.ones(8),)}
        one = specials.placed(tree, "specials_inf", torch.float32)
        random.seed(3), torch.manual_seed(3)
        two = specials.placed(tree, "specials_inf", torch.float32)
        assert torch.equal(one["input"], two["input"])
        assert not torch.equal(one["input"], one["args"][0])

    def test_one_tensor_twice_stays_one(self) -> None:
        """If two arguments are one tensor, they stay one: x * x is not x * y."""
        x = torch.ones(4)
        tree = specials.placed({"input": x, "args": (x,)}, "specials_nan", torch.float32)
        assert tree["input"] is tree["args"][0]

    def test_indices_stay(self) -> None:
        """Integer arguments are often indices and stay unchanged. Regression test: torch CPU read out of bounds, or
        rejected every sample."""
        case = cases("gather", "specials_extremes", dtype="int64")[0]
        drawn = list(samples(catalog.find(case), case.variant, torch.int64, "as_sampled", 3))
        plain = list(samples(catalog.find(case), "forward", torch.int64, "as_sampled", 3))
        assert not torch.equal(drawn[0].input, plain[0].input)
        assert torch.equal(drawn[0].args[1], plain[0].args[1])

    def test_what_must_be_sorted_stays(self) -> None:
        """Unsorted boundaries have no correct answer, so they stay unchanged."""
        drawn = list(samples(catalog.find(cases("bucketize")[0]), "specials_nan", torch.float32, "as_sampled", 3))
        assert not any(bool(sample.args[0].isnan().any()) for sample in drawn)
        assert any(bool(sample.input.isnan().any()) for sample in drawn)

    def test_nothing_to_place(self) -> None:
        """A factory has no tensor for special values: the case is skipped with that reason."""
        result = judged(CpuTarget(), "eye", "specials_nan")
        assert result.outcome is Outcome.SKIP
        assert "special values" in result.reason


LIES = {
    "specials_nan": ("exp", lambda result, x: result.nan_to_num(0.0)),
    "specials_inf": ("exp", lambda result, x: result.clamp_max(torch.finfo(result.dtype).max)),
    "specials_subnormal": ("log", lambda result, x: result.where(x.abs() >= torch.finfo(x.dtype).tiny, -torch.inf)),
    "specials_extremes": ("mul", lambda result, x: result * 2 / 2),
    "specials_large": ("sin", lambda result, x: x.double().remainder(6.28).sin().to(result.dtype)),
    "specials_negative": ("sqrt", lambda result, x: x.abs().sqrt()),
    "specials_zeros": ("neg", lambda result, x: 0.0 - x),
    "specials_ties": ("cummax", lambda result, x: type(result)((result[0], result[1].flip(0)))),
    "specials_equal": ("argmax", lambda result, x: torch.zeros_like(result) + (x.numel() > 1)),
}


class TestJudged:
    @pytest.mark.parametrize("tier", SPECIALS)
    def test_a_lie_in_each_tier(self, tier: str) -> None:
        """A device that is wrong about these values only fails, and torch CPU agrees with itself."""
        op, spoil = LIES[tier]
        assert judged(CpuTarget(), op, tier).outcome is Outcome.PASS
        assert judged(Liar(op, spoil), op, tier).outcome is Outcome.FAIL

    def test_ties_of_an_unstable_sort(self) -> None:
        """Any order of equal elements is correct; an index of a different element is not."""
        swapped = Liar("argsort", lambda result, x: x.flip(-1).argsort().neg() + x.shape[-1] - 1)
        wrong = Liar("argsort", lambda result, x: result.flip(-1))
        [case] = plan.select(catalog.entries(), [Selection(("argsort",), ("float32",), ("specials_ties",), samples=1)])
        assert run_case(case, swapped).outcome is Outcome.PASS
        assert run_case(case, wrong).outcome is Outcome.FAIL

    def test_a_nan_may_spread_and_not_vanish(self) -> None:
        """The algorithm decides which elements of a transform become nan, but a nan must reach at least one."""
        spread = Liar("fft_fft", lambda result, x: result * math.nan)
        assert judged(spread, "fft.fft", "specials_nan").outcome is Outcome.PASS
        lost = Liar("fft_fft", lambda result, x: torch.fft.fftn(x.nan_to_num(), result.shape))
        assert judged(lost, "fft.fft", "specials_nan").outcome is Outcome.FAIL

    def test_a_nan_has_no_order(self) -> None:
        """If the input has a nan, torch CPU's mode depends on the order of the elements. Any other element is accepted;
        a value that is no element is wrong."""
        x = torch.tensor([2.0, math.nan, 1.0, 2.0])
        assert torch.mode(x).values != torch.mode(x[[0, 3, 1, 2]]).values
        [case] = plan.select(catalog.entries(), [Selection(("mode",), ("float32",), ("specials_nan",), samples=1)])
        first = Liar("mode", lambda result, x: type(result)((x[..., 0].where(x.isnan().any(-1), result[0]), result[1])))
        assert run_case(case, first).outcome is Outcome.PASS
        invented = Liar("mode", lambda result, x: type(result)((result[0].nan_to_num(0.5), result[1])))
        assert run_case(case, invented).outcome is Outcome.FAIL
        ordered = Liar("mode", lambda result, x: type(result)((x[..., 0], result[1])))
        assert run_case(case, ordered).outcome is Outcome.FAIL  # a row without nan

    def test_what_cancels_in_a_convolution(self) -> None:
        """The rounding of canceling terms in a convolution is accepted. Regression test: one element of 27 failed for
        it, while torch CPU had the same error in another element. Results rounded to 16 bits still fail."""

        def nearer(result: Any, x: Any) -> Any:
            return result + 1.2e-5 * (result.abs() < 1)

        rounded = Liar("conv2d", lambda result, x: result.bfloat16().float())
        [case] = plan.select(
            catalog.entries(), [Selection(("nn.functional.conv2d",), ("float32",), ("specials_subnormal",), samples=2)]
        )
        assert run_case(case, Liar("conv2d", nearer)).outcome is Outcome.PASS
        assert run_case(case, rounded).outcome is Outcome.FAIL

    def test_faults_of_torch_cpu(self) -> None:
        """Known faults of torch CPU are skipped with a reason and not blamed on the device; a correct answer of the
        device passes."""
        finite = Liar("var_mean", lambda results, x: tuple(tensor.nan_to_num(1.0) for tensor in results))
        result = judged(finite, "var_mean", "specials_inf")
        assert (result.failed, result.skipped > 0) == (0, True)
        assert judged(finite, "var_mean", "specials_nan").outcome is Outcome.FAIL
        dies = judged(CpuTarget(), "linalg.eigvals", "specials_nan")
        assert "SIGSEGV" in dies.reason

    def test_every_glob_names_an_op(self) -> None:
        """Every name of a declaration exists; otherwise it is a typo."""
        entries = catalog.entries()
        names = {name for entry in entries for name in (entry.name, entry.op)}
        families = {*catalog.FAMILIES, *catalog.CLASS_FAMILY.values(), "other"}
        known = {"op": names, "family": families, "variant": VARIANTS}
        assert declaration.check(undefined.DECLARATIONS, declaration.ANSWERS, known) == []
        assert {*plan.ADDING_UP} <= {entry.family for entry in entries}

    def test_families_with_signed_zeros(self) -> None:
        """A result element of these families follows from one element of each input."""
        unsigned = {name for one in undefined.DECLARATIONS if one.names("sign of zero") for name in one.scope.family}
        signed = {"unary", "binary", "special", "activations", "shape and views", "casts"}
        assert {*catalog.FAMILIES, *catalog.CLASS_FAMILY.values(), "other"} - unsigned == signed


class Calm(Spoils):
    """Mode that returns a result where torch CPU reports a singular matrix."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return super().__torch_function__(func, types, args, kwargs)
        except torch.linalg.LinAlgError:
            return args[0] * 2.0


def hooked(change: Any) -> Any:
    """Change the gradient of a function's first argument, and not its result."""

    def spoil(result: Any, x: Any) -> Any:
        if x.requires_grad:
            x.register_hook(change)
        return result

    return spoil


AT_NAN = [op for one in undefined.DECLARATIONS if one.names("gradient at nan") for op in one.scope.op]


class TestGradients:
    def test_a_lie_in_a_gradient(self) -> None:
        """A nan that does not reach the gradient fails the gradient variant only."""
        liar = Liar("exp", hooked(lambda grad: grad.nan_to_num(0.0)))
        assert judged(CpuTarget(), "exp", "specials_nan_backward").outcome is Outcome.PASS
        assert judged(liar, "exp", "specials_nan").outcome is Outcome.PASS
        assert "grad" in judged(liar, "exp", "specials_nan_backward").oracles

    @pytest.mark.parametrize("op", ["msort", "kthvalue", "median"])
    def test_gradients_of_equal_elements(self, op: str) -> None:
        """The gradient may go to any of several equal elements, but its total must be right."""

        def other(grad: torch.Tensor) -> torch.Tensor:
            return grad.flip(0) if grad.dim() == 1 else grad

        case = plan.select(catalog.entries(), [Selection((op,), ("float32",), ("specials_equal_backward",))])[0]
        assert run_case(case, Liar(op, hooked(other))).outcome is Outcome.PASS
        assert run_case(case, Liar(op, hooked(lambda grad: grad * 0.5))).outcome is Outcome.FAIL
        case = plan.select(catalog.entries(), [Selection((op,), ("float32",), ("specials_large_backward",))])[0]
        assert run_case(case, Liar(op, hooked(lambda grad: grad.roll(1, -1) if grad.dim() else grad))
                        ).outcome is Outcome.FAIL  # fmt: skip

    @pytest.mark.parametrize("op", AT_NAN)
    def test_a_gradient_at_nan_that_follows_from_the_loop(self, op: str) -> None:
        """torch CPU's gradient at a nan depends on the length of the tensor, so it is not judged there; at other
        elements it is."""
        function, seen = getattr(torch.nn.functional, op.rpartition(".")[2]), []
        for count in (1, 256):
            x = torch.full((count,), math.nan, requires_grad=True)
            function(x).sum().backward()
            seen.append(x.grad[:1])
        assert not torch.equal(seen[0].nan_to_num(9.0), seen[1].nan_to_num(9.0))
        name = op.rpartition(".")[2]
        other = Liar(name, lambda result, x: hooked(lambda grad: grad.where(~x.detach().isnan(), 0.0))(result, x))
        wrong = Liar(name, lambda result, x: hooked(lambda grad: grad.where(x.detach().isnan(), 0.5))(result, x))
        assert judged(other, op, "specials_nan_backward").outcome is Outcome.PASS
        assert judged(wrong, op, "specials_nan_backward").outcome is Outcome.FAIL

    def test_where_one_side_alone_calls_a_matrix_singular(self) -> None:
        """If only one side reports a singular matrix, the other side's results, gradients and kernels are not compared.
        Regression test: these were findings."""
        liar = Liar("cholesky", None)
        liar.mode = Calm("", None)
        assert judged(liar, "cholesky", "specials_equal").outcome is Outcome.PASS
        assert judged(liar, "cholesky", "specials_equal_backward").outcome is Outcome.PASS

    def test_names(self) -> None:
        """`specials` selects the function variants and `specials_backward` the gradient variants; neither selects the
        other."""
        chosen = [
            options.chosen([name], VARIANTS, "variant", plan.GROUPS) for name in ("specials", "specials_backward")
        ]
        assert chosen == [[*SPECIALS], [f"{tier}_backward" for tier in SPECIALS]]
        assert "specials_nan_backward" in unsupported_names(Blind.facts, "variant")
        assert not catalog_has("bincount", "specials_nan_backward")


class Blind(CpuTarget):
    """Target that declares no gradients."""

    facts = replace(CpuTarget.facts, declarations=(unsupported("no autograd", step="backward", variant="backward"),))


def catalog_has(op: str, variant: str) -> bool:
    return any(variant in entry.variants for entry in catalog.entries() if entry.name == op)
