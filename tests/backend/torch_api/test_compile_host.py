"""torch.compile(backend="tiny") of CPU tensors: results have the devices, layouts and shared memory of the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from conformance.backend.torch_api import compile as compiled


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    """Reset Dynamo for each test."""
    torch._dynamo.reset()


def answers(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the tensors of the compiled function's second call, and the results of the function itself."""
    run = torch.compile(function, backend=compiled.tiny)
    run(*inputs)
    return tree_leaves(run(*inputs)), tree_leaves(function(*inputs))


def form(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the device, the geometry and the conjugate and negative bits of a tensor."""
    bits = tensor.is_conj(), tensor.is_neg()
    return tensor.device, tuple(tensor.size()), tensor.stride(), tensor.storage_offset(), *bits


def complex_numbers() -> torch.Tensor:
    """Return four numbers with imaginary parts."""
    return torch.complex(torch.arange(4.0), torch.arange(4.0) + 1)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        # Formerly each result was copied to the CPU separately, from its first element.
        (lambda x: torch.unsafe_chunk(x, 2), [torch.arange(5.0)]),
        (lambda x: torch.unsafe_chunk(x + 1, 2), [torch.arange(5.0)]),
        (lambda x: torch.unsafe_chunk(x, 2), [torch.arange(20.0).view(4, 5)[1:, ::2]]),
        # Formerly offsets counted from a copy of the view, not from its storage.
        (lambda x: x.as_strided((2,), (2,), 1) * 1, [torch.arange(10.0)[4:]]),
        # Formerly a recording dropped these bits, so the values were wrong.
        (lambda x: (x * 2).conj(), [complex_numbers()]),
        (lambda x: (x * 2).conj().imag, [complex_numbers()]),
        (lambda x: x * 2, [complex_numbers().conj()]),
        (lambda x: x * 2, [complex_numbers().conj().imag]),
        # Formerly constants stayed on the CPU, and met inputs on tiny.
        (lambda x: x * torch.tensor([1.0, 2.0]), [torch.ones(2)]),
        # A buffer of no bytes cannot be allocated.
        (lambda x: torch.nn.functional.pad(x, (1, 2), "circular"), [torch.ones(0, 3, 3)]),
        (lambda x: (x + 1, x[:0]), [torch.ones(2)]),
        (torch.special.modified_bessel_k1, [torch.empty(1, 0, 3)]),  # a fallback: 15 of 125 programs raised
        # The CPU copies the whole storage, and the result keeps its offset. Formerly the result's offset was 0.
        (lambda x: x.slice_scatter(torch.ones(1, 2), 0, 0, 1), [torch.arange(5.0)[1:].view(2, 2)]),
        (lambda x: x.t().select_scatter(torch.ones(2), 0, 0)[1:], [torch.arange(5.0)[1:].view(2, 2)]),
    ],
)
def test_results_have_the_cpus_form(function: Callable[..., Any], inputs: list[torch.Tensor]) -> None:
    """Results have the CPU's geometry, bits and values, and share memory as on the CPU."""
    ours, theirs = answers(function, *inputs)
    assert [form(x) for x in ours] == [form(x) for x in theirs]
    for x, y in zip(ours, theirs, strict=True):
        assert torch.equal(x, y)
    shared = [
        [a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for a in (*inputs, *tensors) for b in tensors]
        for tensors in (ours, theirs)
    ]
    assert shared[0] == shared[1]


def test_views_of_results_without_elements() -> None:
    """Views of results without elements share a storage. Formerly each had a separate one if another result has
    elements."""
    ours, theirs = answers(lambda x: (x.sum(), x * 2, (x * 2).t(), (y := x + 1), y[:], y.view(0, 1)), torch.empty(0))
    shared = [[a.untyped_storage()._cdata == b.untyped_storage()._cdata for a in x for b in x] for x in (ours, theirs)]
    assert shared[0] == shared[1]


@pytest.mark.parametrize(
    "views",
    [
        lambda x: torch.split(x, 2),
        lambda x: x[1:].unbind(),
        lambda x: torch.view_as_real(torch.view_as_complex(x.view(2, 2))).unbind(),
        lambda x: torch.unsafe_chunk(x, 2),
    ],
)
def test_views_that_must_not_be_written(views: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]) -> None:
    """Writing one of several views of an input raises. Formerly autograd did not treat such results as views, and
    accepted the write."""
    raised = []
    for function in (torch.compile(views, backend=compiled.tiny), views):
        try:
            function(torch.arange(8.0, requires_grad=True)[2:6])[0].zero_()
            raised.append(None)
        except RuntimeError as error:
            raised.append(str(error).partition(" is a view and is being modified inplace")[2])
    assert raised[0] == raised[1]


@pytest.mark.parametrize("bits", [lambda x: x.conj(), lambda x: x.conj().imag])
def test_inputs_on_tiny_keep_their_bits(bits: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A recording keeps the bits of conjugated and negated inputs. Formerly it read the plain memory below them."""
    x = complex_numbers()
    run = torch.compile(lambda x: (x * 2, x), backend=compiled.tiny)
    doubled, same = run(bits(x.to("tiny")))
    assert torch.equal(doubled.cpu(), bits(x) * 2)
    assert torch.equal(same.cpu(), bits(x))


@pytest.mark.filterwarnings("ignore:tiny. a compiled graph runs eagerly")
class TestRandomNumbers:
    """Each call draws random numbers once, wherever the graph uses them."""

    @pytest.mark.parametrize(
        ("function", "inputs"),
        [
            # Formerly a graph without inputs ran twice on the CPU, once to be recorded, with no operation to record.
            (lambda: torch.randn(3), []),
            # Formerly the CPU drew during the recording, and each later call had the same numbers.
            (lambda x: x + torch.randn(3).to("tiny"), [torch.ones(3, device="tiny")]),
            (lambda x: (x * 2, torch.randn(3)), [torch.ones(3, device="tiny")]),
        ],
    )
    def test_they_are_those_of_a_run_without_compiler(
        self, function: Callable[..., Any], inputs: list[torch.Tensor]
    ) -> None:
        """Three compiled calls and the next number equal those without a compiler."""
        drawn = []
        for run in (function, torch.compile(function, backend=compiled.tiny)):
            torch.manual_seed(3)
            results = [x.cpu().tolist() for _ in range(3) for x in tree_leaves(run(*inputs))]
            drawn.append((results, torch.rand(()).item()))
        assert drawn[0] == drawn[1]

    def test_a_cpu_tensor_is_written(self) -> None:
        """A CPU input is written. Formerly constants for it stayed on the CPU while the input was moved to tiny, next
        to another input."""

        def function(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
            count.add_(torch.ones(3)).mul_(torch.tensor([1.0, 2.0, 3.0]))
            return x * 2

        count = torch.zeros(3)
        torch.compile(function, backend=compiled.tiny)(torch.ones(2, device="tiny"), count)
        assert count.tolist() == [1, 2, 3]
