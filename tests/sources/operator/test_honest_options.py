"""Options with which a right operator of an unusual kind passes, and a wrong one does not."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import conformance
from conformance.record.errors import UsageError
from conformance.sources.operator.examine import CheckRequest, examination, verdicts
from conformance.sources.operator.table import CHECKS
from tests.planted import kernels
from tests.sources.operator.judged import judge, wrong_checks

MATRIX = {"x": "float32[n, m]", "sizes": {"n": "1..9", "m": "1..30"}}
SMALL = {"x": "float32[5, 9]"}
SEEDS = itertools.count()


def last_argmax(x):
    """Takes the last of several equal elements, torch the first."""
    return x.shape[-1] - 1 - x.flip(-1).argmax(-1)


def argmax(x):
    return x.argmax(-1)


def dropout(x, p=0.5):
    return torch.nn.functional.dropout(x, p, True)


def dropout_by_own_numbers(x, p=0.5):
    keeps = torch.rand(x.shape, generator=torch.Generator().manual_seed(next(SEEDS))) >= p
    return x * keeps / (1 - p)


def test_a_batched_value_added_to_a_tensor_of_its_own():
    """vmap has no rule for it. Regression test: the check called such an operator wrong."""

    def doubled(x):
        total = torch.zeros(x.shape)
        total += x
        return total + x

    found = judge(doubled, reference=lambda x: x * 2, inputs=SMALL, checks=["values", "vmap"])
    assert found["values"].compared and not found["vmap"].finding
    assert found["vmap"].reason.startswith("the operator has no rule for vmap: RuntimeError: output with shape [5, 9]")


class TestTies:
    """`ties="any"`: an index of any of several equal elements."""

    REQUEST = {"reference": argmax, "inputs": MATRIX, "checks": ["values", "specials", "blocks"]}  # noqa: RUF012

    def test_another_one_of_equal_elements_is_right(self):
        """Without the option, it is a difference."""
        conformance.check(last_argmax, **self.REQUEST, ties="any")
        assert "specials" in wrong_checks(last_argmax, **self.REQUEST)

    def test_an_index_of_another_element_is_wrong(self):
        """Also one that is out of range."""
        for wrong in (lambda x: x.argmin(-1), lambda x: x.argmax(-1) + 1, lambda x: x.argmax(-1) - x.shape[-1]):
            assert "values" in wrong_checks(wrong, **self.REQUEST, ties="any")

    def test_an_index_that_occurs_twice_is_wrong(self):
        """A sort must name each element once."""
        wrong = lambda x: x.argsort(-1) if x.shape[-1] < 2 else x.argsort(-1)[..., [0, 0, *range(2, x.shape[-1])]]  # noqa: E731
        request = {**self.REQUEST, "reference": lambda x: x.argsort(dim=-1, stable=True)}
        conformance.check(lambda x: x.argsort(-1), **request, ties="any")
        assert "values" in wrong_checks(wrong, **request, ties="any")

    def test_another_word(self):
        """It is one sentence."""
        with pytest.raises(UsageError, match="ties='all': give 'any'"):
            conformance.check(argmax, **self.REQUEST, ties="all")


class TestRandom:
    """`random=True`: the distribution in place of the values."""

    REQUEST = {"reference": dropout, "inputs": SMALL, "random": True, "checks": ["values", "distribution"]}  # noqa: RUF012

    def test_a_stream_of_its_own_is_right(self):
        """All checks that need equal results say why they are not judged."""
        checks = ["values", "distribution", "repetition", "gradients", "compile"]
        request = {"reference": dropout, "inputs": SMALL, "random": True, "checks": checks}
        rows = {row.check: row for row in conformance.check(dropout_by_own_numbers, **request)}
        assert rows["distribution"].compared and rows["values"].compared
        for name in ("repetition", "gradients", "compile"):
            assert rows[name].reason == "a random operator has other results each time"

    @pytest.mark.parametrize("p", [0.4, pytest.param(0.6, marks=pytest.mark.slow)])
    def test_another_rate_is_wrong(self, p):
        """Its mean is right, and its mean square is not."""
        assert wrong_checks(lambda x: dropout_by_own_numbers(x, p), **self.REQUEST) == {"distribution"}

    def test_the_same_numbers_in_each_call_are_wrong(self):
        """The distribution of each element has one point."""
        fixed = lambda x: x * (torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < 0.5) * 2  # noqa: E731
        assert wrong_checks(fixed, **self.REQUEST) == {"distribution"}

    def test_numbers_of_another_shape_of_distribution_are_wrong(self):
        """Mean and mean square agree, and the distance of Kolmogorov and Smirnov does not."""
        normal = lambda x: torch.randn(x.shape, generator=torch.Generator().manual_seed(next(SEEDS)))  # noqa: E731
        signs = lambda x: torch.randint(0, 2, x.shape) * 2.0 - 1.0  # noqa: E731
        request = {**self.REQUEST, "reference": lambda x: torch.randn(x.shape)}
        assert wrong_checks(normal, **{**self.REQUEST, "reference": signs}) == {"distribution"}
        assert judge(normal, **request)["distribution"].compared and not wrong_checks(normal, **request)


class TestExcludedSpecials:
    """`exclude=` takes one kind of special values."""

    @staticmethod
    def compensated_sum(x):
        """Adds with Kahan's compensation, which is nan for infinities."""
        total, lost = x.new_zeros(x.shape[0]), x.new_zeros(x.shape[0])
        for column in x.unbind(-1):
            y = column - lost
            t = total + y
            lost, total = (t - total) - y, t
        return total

    def test_infinities_within_a_right_algorithm(self):
        """The reason is in the table."""
        request = {"reference": lambda x: x.sum(-1), "inputs": MATRIX, "checks": ["values", "specials"]}
        assert wrong_checks(self.compensated_sum, **request) == {"specials"}
        found = conformance.check(self.compensated_sum, **request, exclude={"specials_inf": "Kahan's compensation"})
        assert "excluded: Kahan's compensation" in str(found)
        assert next(row for row in found if row.check == "specials").compared

    def test_a_name_that_is_none(self):
        """It is no check either."""
        with pytest.raises(UsageError, match="unknown check 'specials_info'"):
            conformance.check(argmax, reference=argmax, inputs=MATRIX, exclude={"specials_info": "why"})


class TestRefusals:
    """What an operator may refuse."""

    def test_strided_inputs(self):
        """NotImplementedError is a refusal; another error is a difference."""

        def dense_only(x):
            if not x.is_contiguous():
                raise NotImplementedError("dense inputs only")
            return x * 2

        def fails_for_strides(x):
            return x.view(-1).view(x.shape) * 2

        request = {"reference": lambda x: x * 2, "inputs": MATRIX, "checks": ["layouts", "repetition", "gradients"]}
        verdicts = conformance.check(dense_only, **request)
        found = {row.check: row for row in verdicts}
        assert found["layouts"].compared < 6  # the contiguous ones
        for name in ("layouts", "repetition"):
            assert found[name].refused and "NotImplementedError: dense inputs only" in found[name].refusal
            assert f" {found[name].refused} of {found[name].refused + found[name].compared} calls: " in str(verdicts)
        row = next(row for row in json.loads(verdicts.as_json())["checks"] if row["check"] == "layouts")
        assert row["refused"] == found["layouts"].refused and row["refusal"] == found["layouts"].refusal
        assert "layouts" in wrong_checks(fails_for_strides, **request)

    def test_other_dtypes_of_like(self):
        """float32 is the usual one; a result in float32 for other dtypes is wrong, and an error is a refusal."""

        def float_only(x):
            assert x.dtype is torch.float32
            return x.relu()

        found = {row.check: row for row in conformance.check(float_only, like=torch.relu, checks=["values", "dtypes"])}
        assert found["values"].compared and "the operator refuses them: AssertionError" in found["dtypes"].reason
        assert wrong_checks(lambda x: x.float().relu(), like=torch.relu, checks=["values", "dtypes"]) == {"dtypes"}


class _Detached(torch.autograd.Function):
    """Its backward is a kernel that autograd does not see."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0].detach() * grad.detach()


class TestGradients:
    """In a process of its own: gradients cannot be judged after a backward pass on a device, and other tests make
    some."""

    CODE = """
import warnings, conformance, torch
from tests.sources.operator.judged import judge
from tests.sources.operator.test_honest_options import MATRIX, _Detached
doubled = lambda x: x * 2 if x.numel() else torch.empty(x.shape)
inputs = {'x': 'float32[n, m]', 'sizes': {'n': '0..9', 'm': '1..30'}}
checks = ['gradients', 'empty', 'backward', 'cotangents']
found = judge(doubled, reference=lambda x: x * 2, inputs=inputs, checks=checks)
print(found['gradients'].compared > 0, any(row.finding for row in found.values()))
warnings.simplefilter('error')
request = {'reference': lambda x: x * x, 'inputs': MATRIX, 'checks': ['gradients', 'second']}
for strict in (False, True):
    try: conformance.check(lambda x: _Detached.apply(x), **request, strict=strict)
    except (UserWarning, AssertionError) as said: print(type(said).__name__, said)
"""

    @pytest.fixture(scope="class")
    def printed(self):
        """The lines that the process prints."""
        line, root = [sys.executable, "-c", self.CODE], Path(__file__).parents[3]
        done = subprocess.run(line, cwd=root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def test_no_gradient_for_no_elements(self, printed):
        """A result without elements may depend on nothing."""
        assert printed[0] == "True False"

    def test_a_detached_gradient_is_named(self, printed):
        """Torch leaves it out of a second derivative without a word, so the verdict has one."""
        _, first, second = printed
        assert first.startswith(
            "UserWarning Not judged: 1 of 2 checks: second (its gradient is detached, so torch leaves"
        )
        assert second.startswith("WrongOperator Not judged: ") and "once_differentiable" in second


class TestNegativeViews:
    """Torch negates their elements when it reads them, as those of `x.conj().imag`."""

    def test_a_function_by_address_reads_them_without_their_sign(self):
        """The verdict says so, and fails if the user asks for the check."""
        request = {"reference": torch.nn.functional.silu, "inputs": {"x": "float32[n]", "sizes": {"n": "1..9"}}}
        trial = CheckRequest(kernels.negative, **request, exclude=dict.fromkeys(NO_COMPARISON, "another check"))
        found = {row.check: row for row in verdicts(examination(trial), trial)}
        assert not found["negative"].compared and "without their sign" in found["negative"].reason
        assert found["values"].compared and not any(row.finding for row in found.values())
        assert found["mutation"].compared > found["values"].compared and not found["mutation"].refused
        with pytest.raises(AssertionError, match=r"negative: result\[0\] should be ") as error:
            conformance.check(kernels.negative, **request, checks=["negative"])
        assert "x = torch._neg_view(-x)" in str(error.value) and "torch.ones(1)" in str(error.value)  # and it is small

    def test_numpy_has_none(self):
        """Its error is a refusal."""
        request = {"reference": torch.relu, "inputs": {"x": "float32[n]", "sizes": {"n": "1..9"}}}
        found = conformance.check(kernels.right_numpy, **request, checks=["values", "negative"])
        row = next(row for row in found if row.check == "negative")
        assert "Can't call numpy() on Tensor that has negative bit set" in row.reason

    def test_a_conjugate_view_is_shrunk(self):
        """The script has one element."""

        def by_address(x):
            flat = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())
            return flat * 2

        inputs = {"x": "complex64[n, m]", "sizes": {"n": "1..9", "m": "1..9"}}
        with pytest.raises(AssertionError, match=r"layouts: result\[0, 0\] should be ") as error:
            conformance.check(by_address, reference=lambda x: x * 2, inputs=inputs, checks=["layouts"])
        assert "x = x.conj_physical().conj()" in str(error.value) and ".view(1, 1)" in str(error.value)


NO_COMPARISON = [name for name, check in CHECKS.items() if check.usual and check.procedure != "compare"]


def test_an_operator_without_a_fake_kernel_is_named():
    """It was skipped without a word."""
    operator = torch.library.custom_op(
        "honest::no_fake", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    request = {"reference": lambda x: x * 2, "inputs": MATRIX, "checks": ["values", "fake", "symbolic"]}
    with pytest.warns(
        UserWarning, match=r"Not judged: 2 of \d checks: fake, symbolic \(the operator registers no fake"
    ):
        conformance.check(operator, **request)
    with pytest.raises(AssertionError, match="registers no fake kernel"):
        conformance.check(operator, **request, strict=True)


class TestReferenceOnDevice:
    """`reference_on_device=True`."""

    @pytest.mark.parametrize(
        "device", [pytest.param("tiny", marks=pytest.mark.slow), "device:toy,import=tests.planted.toy_device"]
    )
    def test_the_reference_gets_inputs_on_the_device(self, device):
        """Its values there count. In a process of its own, as most devices need it."""
        code = (
            "import sys\n"
            "from tests.sources.operator.judged import wrong_checks\n"
            "def reference(x): return x * 2 if x.device.type == 'cpu' else x * 3\n"
            "request = {'reference': reference, 'inputs': {'x': 'int64[4]'}, 'checks': ['values']}\n"
            "for by in (2, 3):\n"
            "    for there in (False, True):\n"
            "        more = {'device': sys.argv[1], 'reference_on_device': there}\n"
            "        print(by, there, *wrong_checks(lambda x: x * by, **request, **more))\n"
        )
        line, root = [sys.executable, "-c", code, device], Path(__file__).parents[3]
        env = {**os.environ, "PYTHONPATH": str(root), "TOY_FAULTS": ""}
        done = subprocess.run(line, cwd=root, env=env, capture_output=True, text=True, check=False)
        expected = ["2 False", "2 True values", "3 False values", "3 True"]
        assert done.stdout.splitlines() == expected, done.stderr

    def test_it_needs_a_device(self):
        """The sentence names both arguments."""
        with pytest.raises(UsageError, match="reference_on_device= needs device="):
            conformance.check(argmax, reference=argmax, inputs=MATRIX, reference_on_device=True)


def test_sums_in_random_order_are_a_repetition_only():
    """Each check of memory and contexts compares bits. Regression test: it was `unwritten`, too."""
    counter = itertools.count()

    def sums(x):
        order = torch.randperm(x.shape[-1], generator=torch.Generator().manual_seed(next(counter)))
        return sum(x[:, order].unbind(-1), x.new_zeros(x.shape[0]))

    inputs = {"x": "float32[n, m]", "sizes": {"n": "1..4", "m": "1..60"}}
    checks = ["repetition", "unwritten", "reads", "contexts", "replay", "values"]
    assert wrong_checks(sums, reference=lambda x: x.sum(-1), inputs=inputs, checks=checks) == {"repetition"}


@pytest.mark.slow
def test_a_kernel_that_eats_memory_is_one_of_memory(tmp_path):
    """It is no hang, and the memory is not filled again for each check. Regression test: each of them did."""
    kept, calls = [], tmp_path / "calls"

    def eat(x):
        with calls.open("a") as file:
            file.write("call ")
        while True:
            kept.append(torch.ones(10**7))

    with pytest.raises(AssertionError, match="memory: result: expected an answer") as error:
        conformance.check(eat, reference=torch.clone, inputs={"x": "float32[n]", "sizes": {"n": "1..9"}})
    assert len(calls.read_text().split()) <= 6  # the check, and the search for a smaller call
    rows = {row.check: row.reason for row in error.value.verdicts}
    assert rows["gradients"] == rows["compile"] == "the operator needs more memory than there is"
