"""Views, strides, dtypes and devices in combination. Each case failed on a real system."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from conformance import backend
from tests.backend.agreement import DEVICES, both


class TestTinygrad:
    """Faults of tinygrad 0.14 that the device must not have."""

    def test_sum_of_a_tensor_joined_with_itself(self) -> None:
        """A reduction over a value joined with itself is right. Elements were counted several times."""
        both(lambda d: torch.cat([x := torch.arange(6.0, device=d).view(2, 3), x]).sum())
        both(lambda d: torch.stack([x := torch.arange(6.0, device=d).view(2, 3), x], 1).sum(0))

    def test_bits_of_a_computed_value(self) -> None:
        """A kernel keeps a change of the element size. tinygrad merged it with the change back."""
        both(lambda d: (torch.arange(6.0, device=d) * 2).view(torch.uint8).clone().view(torch.float32).mul_(1))

    def test_rounding_to_half_survives_fusion(self) -> None:
        """A cast to half and back within one kernel rounds. Both casts were dropped."""
        special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 65504, 65520, 6e-8, 3e-8, 1.0001, -2.3457])
        both(lambda d: (special.to(d) * 1).half().float())
        both(lambda d: (special.half().to(d) + 1) * 3)

    def test_nan_among_constants(self) -> None:
        """nan constants are not equal. tinygrad treats two of them as equal, so that a search for nan found none."""
        both(lambda d: torch.where(torch.tensor([True, False], device=d), torch.ones(2, device=d), torch.nan).isnan())
        both(lambda d: torch.full((2,), torch.nan, device=d).ne(torch.full((2,), torch.nan, device=d)))

    def test_constants_keep_their_width(self) -> None:
        """A constant keeps its width. x + 0 became a number without a width: -1 for 255, and an int in place of the
        bits of a uint64."""
        both(lambda d: (lambda a: (a - (a + 1)).to(torch.int32))(torch.arange(5, dtype=torch.uint8).to(d)))
        both(lambda d: (lambda a: a - (a + 1) > 3)(torch.arange(5, dtype=torch.uint8).to(d)))
        both(lambda d: torch.zeros(0, dtype=torch.float64).to(d).sum().amax(0))

    def test_zero_times_infinity(self) -> None:
        """x * 0 is nan for an infinite x. It became 0 if the zero appeared during simplification."""

        def program(d: str) -> list[torch.Tensor]:
            x = torch.tensor([[torch.inf, 2.0], [1.0, 1.0]]).to(d)
            w = torch.ones(2, 2).to(d).requires_grad_()
            y = x @ w
            y[0] = 0
            y.sum().backward()
            assert w.grad is not None
            return [w.grad.isnan()]

        both(program)

    def test_bits_beside_a_bfloat16_write(self) -> None:
        """A bfloat16 write keeps the bits of other elements. clang converted bfloat16 elements to float32: denormals
        became 0, and nans other nans."""

        def program(d: str) -> list[torch.Tensor]:
            bits = torch.tensor([1, 2, 3, 0x7FC1, -5, 0x7F81], dtype=torch.int16).to(d)
            bits.view(torch.bfloat16)[:2].add_(torch.ones(2).to(d))
            bits.view(torch.bfloat16)[1:2] = torch.nan
            return [bits]

        both(program)


class TestCrossDevice:
    """CPU tensors written into views on the device."""

    def test_cpu_tensor_into_row(self) -> None:
        """`b[1] = torch.arange(4.)` and `b[1] = torch.tensor(3.)` are written."""
        b = torch.zeros(3, 4, device="tiny")
        b[1] = torch.arange(4.0)
        assert b[1].tolist() == [0, 1, 2, 3]
        b[1] = torch.tensor(3.0)
        assert b.cpu().tolist() == [[0] * 4, [3] * 4, [0] * 4]

    @pytest.mark.slow
    def test_copy_between_layouts(self) -> None:
        """Copies between all pairs of a dozen layouts on the device are exact."""
        layouts = [
            ((3, 4), (4, 1), 0), ((3, 4), (1, 3), 0), ((3, 4), (4, 1), 5), ((3, 4), (10, 2), 1), ((3, 4), (2, 7), 3),
            ((3, 4), (5, 1), 0), ((3, 4), (1, 5), 2), ((3, 4), (13, 3), 0), ((3, 4), (8, 2), 0), ((3, 4), (3, 11), 1),
            ((3, 4), (3, 2), 0), ((3, 4), (2, 3), 1),
        ]  # fmt: skip
        memory = torch.arange(64.0)
        tiny_from = [memory.to("tiny").as_strided(*g) for g in layouts]
        targets, expected = [], []
        for i, g in enumerate(layouts):
            if len(set(torch.arange(64).as_strided(*g).reshape(-1).tolist())) < 12:
                continue
            for j, s in enumerate(layouts):
                base, reference = torch.zeros(64, device="tiny"), torch.zeros(64)
                base.as_strided(*g).copy_(tiny_from[j])
                reference.as_strided(*g).copy_(memory.as_strided(*s))
                targets.append(base)
                expected.append((i, j, reference))
        backend.realize(targets)
        for target, (i, j, reference) in zip(targets, expected, strict=True):
            assert torch.equal(target.cpu(), reference), (layouts[i], layouts[j])


class TestStrides:
    """Geometry equals torch's."""

    def test_empty_strided_has_its_strides(self) -> None:
        """`empty_strided((4, 4), (1, 4))` is not contiguous."""
        t = torch.empty_strided((4, 4), (1, 4), device="tiny")
        assert t.stride() == (1, 4)
        assert not t.is_contiguous()

    def test_view_of_transpose_raises(self) -> None:
        """`a.t().view(6)` raises torch's error."""
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            torch.zeros(2, 3, device="tiny").t().view(6)

    @pytest.mark.parametrize("write", [lambda t: t.add_(1), lambda t: t.mul_(2), lambda t: t.copy_(torch.ones(3))])
    def test_write_to_expanded_raises(self, write: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """A write to an expanded tensor raises torch's own error."""
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            write(torch.zeros(1, 3, device="tiny").expand(2, 3))

    def test_flip_and_windows(self) -> None:
        """flip copies, and overlapping unfold windows are read correctly."""
        both(lambda d: [torch.arange(6.0, device=d).view(2, 3).flip(1), torch.arange(7.0, device=d).unfold(0, 3, 2)])

    def test_diag_and_diag_embed(self) -> None:
        """torch.diag, and diag_embed with offset and dims, agree with the CPU."""
        both(lambda d: torch.diag(torch.tensor([1, 2, 3], device=d)))
        both(lambda d: torch.diag_embed(torch.arange(6.0, device=d).view(2, 3), offset=1, dim1=0, dim2=2))

    def test_circular_pad_with_backward(self) -> None:
        """Circular padding agrees with the CPU, forward and backward."""

        def program(device: str) -> list[torch.Tensor]:
            x = torch.arange(12.0, device=device).view(1, 3, 4).requires_grad_()
            y = torch.nn.functional.pad(x, (1, 2), mode="circular")
            (y * torch.arange(21.0, device=device).view(1, 3, 7)).sum().backward()
            assert x.grad is not None
            return [y.detach(), x.grad]

        both(program)

    @pytest.mark.parametrize("size", [(2, 9, 6, 3), (1, 9, 0, 3)])
    def test_pixels_keep_the_memory_format(self, size: tuple[int, ...]) -> None:
        """pixel_shuffle and its inverse keep channels last, as on the CPU. torch's decomposition returned contiguous
        results."""
        functional = torch.nn.functional
        for dtype in (torch.float32, torch.complex64):
            x = torch.arange(math.prod(size)).to(dtype).reshape(size)
            for each in (x, x.contiguous(memory_format=torch.channels_last)):
                both(lambda d, each=each: [functional.pixel_shuffle(each.to(d), r) for r in (1, 3)])
                both(lambda d, each=each: [functional.pixel_unshuffle(each.to(d), r) for r in (1, 3)])

    def test_unique_data_pointers(self) -> None:
        """Storages have distinct addresses, and views point into them."""
        a, b = torch.zeros(4, device="tiny"), torch.zeros(4, device="tiny")
        assert a.data_ptr() != b.data_ptr()
        assert a[2:].data_ptr() == a.data_ptr() + 8
        assert a.view(2, 2).is_set_to(a.view(2, 2))


class TestCalls:
    """Calls for which torch's meta kernels differ from the CPU."""

    def test_out_that_is_a_smaller_input(self) -> None:
        """`mul(x, y, out=x)` with a larger result raises instead of resizing its operand."""
        for device in DEVICES:
            x = torch.ones(5, 1).to(device)
            with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
                torch.mul(x, torch.ones(5).to(device), out=x)

    def test_checks_of_a_call_on_nothing(self) -> None:
        """A call whose result has no elements raises the CPU's errors."""
        for device in DEVICES:
            with pytest.raises(RuntimeError, match="dtypes match"):
                torch.empty(0, device=device).index_put_((), torch.empty(0, dtype=torch.int8, device=device))

    def test_strides_of_a_rolled_permuted_layout(self) -> None:
        """Strides are the CPU's even if the meta kernel ignores a permuted layout."""
        both(lambda d: torch.arange(20.0, device=d).as_strided((2, 2, 2, 2), (12, 1, 4, 2)).roll(1, 0))

    def test_shared_parameters_stay_shared(self) -> None:
        """Moving a module keeps a shared parameter shared."""
        words, head = torch.nn.Embedding(3, 3), torch.nn.Linear(3, 3, bias=False)
        head.weight = words.weight
        both_ = torch.nn.ModuleList([words, head]).to("tiny")
        assert both_[0].weight is both_[1].weight
        assert both_[0].weight.device.type == "tiny"
        assert both_.cpu()[0].weight is both_[1].weight

    def test_a_lazy_module_is_moved_before_its_first_call(self) -> None:
        """An uninitialized parameter stays one. Formerly the first call failed: 3 features instead of 0."""
        lazy = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.LazyBatchNorm1d()).to("tiny")
        assert lazy(torch.ones(2, 3, device="tiny")).shape == (2, 4)
        assert {type(p) for p in lazy.parameters()} == {torch.nn.Parameter}

    def test_attributes_of_parameters_are_moved(self) -> None:
        """A parameter keeps its class and attributes, which libraries use to group parameters."""

        class Marked(torch.nn.Parameter):
            pass

        linear = torch.nn.Linear(2, 2)
        linear.weight._no_weight_decay = True
        linear.bias = Marked(torch.ones(2))
        for device in ("tiny", "cpu"):
            linear.to(device)
            assert linear.weight._no_weight_decay
            assert type(linear.bias) is Marked
            assert linear.bias.device.type == device

    def test_a_parameter_with_slots_is_moved(self) -> None:
        """Its class is lost, since torch's new parameter has another layout. The other parameters keep attributes."""

        class Slotted(torch.nn.Parameter):
            __slots__ = ("mark",)

        linear = torch.nn.Linear(2, 2)
        linear.weight = Slotted(torch.ones(2, 2))
        linear.weight.mark = 3
        linear.bias.kept = True
        assert {parameter.device.type for parameter in linear.to("tiny").parameters()} == {"tiny"}
        assert linear.bias.kept

    def test_a_move_that_fails_keeps_attributes(self) -> None:
        """The parameters that have moved before the error keep their attributes."""
        linear = torch.nn.Linear(2, 2)
        linear.weight.kept = True

        def only_matrices(t: torch.Tensor) -> torch.Tensor:
            if t.dim() == 1:
                raise MemoryError
            return t.to("tiny")

        with pytest.raises(MemoryError):
            linear._apply(only_matrices)
        assert linear.weight.device.type == "tiny" and linear.weight.kept


def test_a_graph_that_tinygrads_vectorizer_breaks_is_computed():
    """Writes to a diagonal and through a mask of a slice work. They formerly failed with "bad reshape: () -> (6, 6)"
    inside tinygrad."""

    def program(device):
        b = torch.arange(36.0).to(device).view(3, 2, 2, 3)
        b.diagonal(-1, 3, 0).masked_fill_(torch.tensor(False, device=device), 0)
        rows = torch.tensor([[2.0, 3, 4], [5, 6, 7]], device=device)
        b[2][torch.tensor([True, True], device=device)] = rows
        return b

    both(program)


MIXED: dict[str, Callable[[str], torch.Tensor]] = {
    "neg out=": lambda d: torch.neg(torch.ones(2).to(d), out=torch.ones(2, dtype=torch.float64).to(d)),
    "sort out=": lambda d: torch.sort(
        torch.ones(2).to(d), out=(torch.ones(2, dtype=torch.float64).to(d), torch.ones(2, dtype=torch.int64).to(d))
    )[0],
    "any out=": lambda d: torch.any(torch.ones(2).to(d), out=torch.tensor(0).to(d)),
    "index_select out=": lambda d: torch.index_select(
        torch.arange(3).to(d), 0, torch.tensor([1]).to(d), out=torch.ones(1).to(d)
    ),
    "logit_": lambda d: torch.ones(3, dtype=torch.int64).to(d).logit_(),
    "logit_ of many": lambda d: torch.ones(200, 100, dtype=torch.int32).to(d).logit_(),  # formerly written: too large
    "index_add_ of many": lambda d: (
        torch.ones(300, 100).to(d).index_add_(0, torch.tensor([7, 299]).to(d), torch.ones(2, 100).half().to(d))
    ),
    "sort out= of many": lambda d: torch.sort(
        torch.ones(20000).to(d),
        out=(torch.ones(20000, dtype=torch.float64).to(d), torch.ones(20000, dtype=torch.int64).to(d)),
    )[0],
    "index_add_": lambda d: torch.ones(3).to(d).index_add_(0, torch.tensor([1]).to(d), torch.ones(1).half().to(d)),
}


class TestDtypesTogether:
    """Mixed dtypes that only a CPU kernel refuses, not torch's meta kernel."""

    @pytest.mark.parametrize("name", MIXED)
    def test_refused_as_on_the_cpu(self, name: str) -> None:
        """The call raises the CPU's error."""
        with pytest.raises(RuntimeError) as expected:
            MIXED[name]("cpu")
        with pytest.raises(RuntimeError) as actual:
            MIXED[name]("tiny")
        assert str(actual.value) == str(expected.value)

    def test_sum_is_taken_in_the_dtype_of_out(self) -> None:
        """A sum of float32 into float64 is rounded once. A cumulative sum into integers truncates its addends."""
        both(lambda d: torch.sum(torch.full((7,), 0.1).to(d), 0, out=torch.tensor(0.0, dtype=torch.float64).to(d)))
        both(lambda d: torch.cumsum(torch.full((4,), 0.7).to(d), 0, out=torch.zeros(4, dtype=torch.int64).to(d)))

    def test_complex_out_of_real_arguments(self) -> None:
        """A real result is written into a complex tensor with zero imaginary parts."""
        both(lambda d: torch.add(torch.ones(2).to(d), 1, out=torch.zeros(2, dtype=torch.complex64).to(d)))


def test_nothing_overlaps_in_an_empty_tensor():
    """A tensor without elements has no overlap. Formerly its strides of 0 counted as shared memory, and rand_like
    raised."""
    x = torch.zeros(0, 1, 3).to("tiny").expand(0, 5, 3)
    assert torch.rand_like(x).shape == x.add_(1).shape == (0, 5, 3)
