"""Reads and writes by index beyond the samples of OpInfo. Every result is the CPU's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import conformance.backend as backend

Call = Callable[..., torch.Tensor]


def on_both(call: Call, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the CPU's result and tiny's result, moved to the CPU, of a call on copies of the inputs."""
    expected = call(*[x.clone() for x in inputs])
    return expected, call(*[x.to("tiny") for x in inputs]).cpu()


def check(call: Call, *inputs: torch.Tensor) -> None:
    """Check that a call gives the same bits, dtype, size and strides on both devices."""
    expected, actual = on_both(call, *inputs)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True, check_stride=True)


X = torch.arange(24.0).reshape(2, 3, 4)


class TestIndex:
    """Indexing by x[...] with tensors."""

    @pytest.mark.parametrize(
        "index",
        [
            (torch.tensor([1, -2]),),
            (slice(None), torch.tensor([[2, 0], [1, -1]])),
            (torch.tensor([0, 1]), slice(None), torch.tensor([3, 0])),
            (None, torch.tensor([1]), slice(1), torch.tensor([[0], [3]])),
            (slice(None), torch.tensor([True, False, True])),
            (torch.tensor([1]), torch.tensor([True, False, True]), slice(2, 3)),
            (torch.tensor([[True, False, True], [False, True, False]]), torch.tensor(2)),
            (torch.zeros(0, dtype=torch.int64),),
            (torch.tensor([False, False]),),
        ],
        ids=str,
    )
    def test_mix_of_indices(self, index: tuple[object, ...]) -> None:
        """Integers, masks, slices and None can be mixed as on the CPU."""
        on_device = tuple(i.to("tiny") if isinstance(i, torch.Tensor) else i for i in index)
        torch.testing.assert_close(X.to("tiny")[on_device].cpu(), X[index], rtol=0, atol=0)

    def test_index_on_the_cpu_is_taken(self) -> None:
        """An index tensor may be on the CPU."""
        assert X.to("tiny")[:, torch.tensor([2, 0])].cpu().equal(X[:, [2, 0]])

    @pytest.mark.parametrize(
        "call",
        [
            lambda x, i: x[i],
            lambda x, i: x.gather(0, i),
            lambda x, i: x.index_select(0, i),
            lambda x, i: x.take(i),
            lambda x, i: x.scatter(0, i, 1.0),
            lambda x, i: x.index_add(0, i, x[:1]),
            lambda x, i: x.index_put((i,), x[0]),
            lambda x, i: torch.nn.functional.embedding(i, x[:, None]),
        ],
    )
    @pytest.mark.parametrize("lazy", [False, True])
    def test_out_of_range_raises_as_cpu(self, call: Call, lazy: bool) -> None:
        """An index out of range raises the CPU's error at the call, even if the index is lazy."""
        x, i = torch.arange(5.0), torch.tensor([5])
        with pytest.raises((IndexError, RuntimeError)) as expected:
            call(x, i)
        index = i.to("tiny") + 1 - 1 if lazy else i.to("tiny")
        with pytest.raises(type(expected.value)) as actual:
            call(x.to("tiny"), index)
        assert str(actual.value) == str(expected.value)

    def test_gather_is_one_kernel(self) -> None:
        """Indexing a lazy value costs one kernel, which computes only the selected elements."""
        x, i = torch.rand(100, 8).to("tiny"), torch.randint(0, 100, (16,)).to("tiny")
        y = (x * 2 + 1)[i]
        backend.reset_stats()
        y.cpu()
        assert backend.stats()["kernels"] == 1

    @pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float64, torch.bfloat16])
    def test_nan_and_signed_zero_survive(self, dtype: torch.dtype) -> None:
        """Moving elements keeps nan, inf and -0.0."""
        x = torch.tensor([0.0, 1.0, 3.0]).to(dtype) if not dtype.is_floating_point else torch.tensor(
            [float("nan"), -0.0, float("inf")], dtype=dtype
        )  # fmt: skip
        i = torch.tensor([1, 0, 2, 1])
        expected, actual = on_both(lambda a, b: a[b], x, i)
        assert str(actual.tolist()) == str(expected.tolist())


class TestWrite:
    """Writes at repeated, masked and overlapping places."""

    def test_last_of_repeated_writes_wins(self) -> None:
        """The last of several writes to one place remains."""
        i = torch.tensor([1, 1, 0, 1])
        check(lambda x, i, v: x.index_put((i,), v), torch.zeros(3), i, torch.arange(4.0) + 1)
        check(lambda x, i, v: x.scatter(0, i, v), torch.zeros(3), i, torch.arange(4.0) + 1)
        check(lambda x, i, v: x.index_copy(0, i, v), torch.zeros(3), i, torch.arange(4.0) + 1)

    @pytest.mark.parametrize("count", [1, 31, 32, 33, 1500])
    def test_many_writes_to_one_place_add_up(self, count: int) -> None:
        """Any number of additions to one place is right, next to places with no addition and with one."""
        i = torch.cat([torch.zeros(count, dtype=torch.int64), torch.tensor([3])])
        v = torch.arange(count + 1, dtype=torch.int64)
        check(lambda x, i, v: x.index_put((i,), v, accumulate=True), torch.ones(5, dtype=torch.int64), i, v)
        check(lambda x, i, v: x.scatter_reduce(0, i, v, "amax"), torch.ones(5, dtype=torch.int64), i, v)

    def test_untouched_elements_keep_their_bits(self) -> None:
        """Elements without a write keep -0.0."""
        _, actual = on_both(
            lambda x, i, v: x.index_add(0, i, v), torch.full((3,), -0.0), torch.tensor([1]), torch.ones(1)
        )
        assert str(actual.tolist()) == "[-0.0, 1.0, -0.0]"

    @pytest.mark.parametrize("reduce", ["amax", "amin"])
    def test_extremes_propagate_nan(self, reduce: str) -> None:
        """nan wins over every number, both as a written value and as the old content."""
        x = torch.tensor([float("nan"), 1.0, 2.0])
        i, v = torch.tensor([0, 1, 1]), torch.tensor([5.0, float("nan"), 7.0])
        check(lambda x, i, v: x.scatter_reduce(0, i, v, reduce), x, i, v)

    def test_integer_mean_rounds_down(self) -> None:
        """The mean of integers is rounded down, also below zero."""
        i, v = torch.tensor([0, 0, 1]), torch.tensor([-2, -3, 4])
        check(lambda x, i, v: x.scatter_reduce(0, i, v, "mean"), torch.zeros(2, dtype=torch.int64), i, v)

    def test_fill_by_mask_needs_no_look(self) -> None:
        """x[mask] = number stays lazy: no kernel runs before the result is read."""
        x, mask = torch.rand(6).to("tiny"), torch.rand(6).to("tiny") > 0.5
        backend.reset_stats()
        x[mask] = 3.0
        assert backend.stats()["kernels"] == 0
        x.cpu()
        assert backend.stats()["kernels"] == 1

    @pytest.mark.parametrize("in_place", [False, True])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8, torch.bool])
    def test_one_number_added_by_mask(self, dtype: torch.dtype, in_place: bool) -> None:
        """One element is added where a mask is true. The mask is not read, and other elements keep their bits."""
        call = torch.Tensor.index_put_ if in_place else torch.Tensor.index_put
        mask = torch.tensor([[True, False, True], [False, True, False]])
        base = torch.stack([torch.full((4, 3), -0.0), torch.full((4, 3), 125.0)]).to(dtype).mT
        for part, value in ((mask, 3.0), (mask[0, :2], 0.0)):
            value = torch.tensor([value]).to(dtype)
            expected = call(base.clone(), (part,), value, True)
            moved = base.to("tiny"), (part.to("tiny"),), value.to("tiny")
            backend.reset_stats()
            actual = call(*moved, True)
            assert backend.stats()["copies_out"] == 0
            assert (actual is moved[0]) == in_place
            assert actual.stride() == expected.stride()
            bits = {2: torch.int16, 4: torch.int32}.get(dtype.itemsize, torch.uint8)
            assert actual.cpu().view(bits).equal(expected.view(bits))
            assert moved[0].cpu().equal(expected if in_place else base)

    def test_a_number_added_by_mask_to_an_expanded_tensor(self) -> None:
        """Elements that share memory get the sum of each index, as on the CPU."""
        mask = torch.tensor([[True, True], [True, False]])
        expected, actual = on_both(
            lambda x, mask: x.expand(2, 2).index_put((mask,), torch.ones(1, device=x.device), True), X[0, 0, :2], mask
        )
        assert actual.equal(expected)

    def test_write_through_a_view(self) -> None:
        """index_put_ and scatter_ write through a strided view into its base, and to no other element."""

        def call(base: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            base.t()[1:, ::2][i] = v
            base[:, 1].scatter_(0, i, 9.0)
            return base

        check(call, torch.arange(12.0).reshape(3, 4), torch.tensor([2, 0]), -torch.ones(2, 2))

    @pytest.mark.parametrize(
        "call",
        [
            lambda x, i: x.scatter_(0, i, x),
            lambda x, i: torch.gather(x, 0, i, out=x),
            lambda x, i: torch.cat([x, x], out=x),
            lambda x, i: x.index_add_(0, i, x),
        ],
    )
    def test_write_over_what_is_read_raises_as_cpu(self, call: Call) -> None:
        """The device refuses to overwrite an input, with the same message as torch."""
        x, i = torch.arange(3.0), torch.tensor([0, 2, 1])
        with pytest.raises(RuntimeError) as expected:
            call(x.clone(), i)
        with pytest.raises(RuntimeError) as actual:
            call(x.to("tiny"), i.to("tiny"))
        assert str(actual.value) == str(expected.value)


class TestCombined:
    """Several writes to one place."""

    @pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
    def test_few_places_are_one_kernel(self, reduce: str) -> None:
        """scatter_reduce into few places is one kernel. amax formerly took five: a table was reduced twice, for nan,
        and read again."""
        place = torch.tensor([0, 2, 1, 2, 2])
        source = torch.tensor([1.0, 5.0, float("nan"), -3.0, 4.0])
        base = torch.tensor([0.5, -0.0, 7.0, float("inf")])
        result = base.to("tiny").scatter_reduce(0, place.to("tiny"), source.to("tiny"), reduce)
        backend.reset_stats()
        expected = base.scatter_reduce(0, place, source, reduce)
        torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=0, equal_nan=True)
        assert backend.stats()["kernels"] == 1

    @pytest.mark.parametrize("reduce", ["sum", "prod", "amax", "amin"])
    @pytest.mark.parametrize("n", [70, 5000])
    def test_many_writes_to_one_place(self, reduce: str, n: int) -> None:
        """More writes to a place than one round combines are right, with few places and with many."""
        place = torch.arange(100) % 3 * (n // 4)
        source = torch.arange(1, 101) % 5 + 1
        base = torch.arange(n)
        check(lambda b, p, s: b.scatter_reduce(0, p, s, reduce), base, place, source)
        check(lambda b, p, s: b.scatter_reduce(0, p, s, reduce, include_self=False), base, place, source)

    def test_short_sort_is_three_kernels(self) -> None:
        """A short sort is three kernels: for ranks, indices and elements. The keys formerly had a separate kernel."""
        x = torch.tensor([3.0, float("nan"), -1.0, 3.0, 0.0])
        values, indices = x.to("tiny").sort()
        backend.reset_stats()
        joined = torch.cat([values.double(), indices.double()]).cpu()
        assert joined.nan_to_num(9).tolist() == torch.cat([y.double() for y in x.sort()]).nan_to_num(9).tolist()
        assert backend.stats()["kernels"] <= 4  # including the kernel of cat


class TestCopies:
    """cat and similar operators."""

    def test_cat_keeps_bits(self) -> None:
        """cat of parts of different sizes keeps nan and -0.0."""
        parts = [torch.tensor([-0.0, float("nan")]), torch.tensor([-0.0]), torch.tensor([1.0, -0.0, 2.0])]
        actual = torch.cat([p.to("tiny") for p in parts]).cpu()
        assert str(actual.tolist()) == str(torch.cat(parts).tolist())

    def test_cat_promotes(self) -> None:
        """Parts of different dtypes promote."""
        check(lambda a, b: torch.cat([a, b]), torch.tensor([True, False]), torch.tensor([1.5]))
        check(lambda a, b: torch.cat([a, b]), torch.tensor([1 + 2j]), torch.tensor([1.5]))

    def test_cat_of_many_is_one_kernel(self) -> None:
        """Twenty parts of different sizes are one kernel."""
        parts = [torch.full((n % 3 + 1,), float(n)) for n in range(20)]
        result = torch.cat([p.to("tiny") for p in parts])
        backend.reset_stats()
        assert result.cpu().equal(torch.cat(parts))
        assert backend.stats()["kernels"] == 1

    @pytest.mark.parametrize("shift", [0, 1, -1, 7, -13])
    def test_roll(self, shift: int) -> None:
        """roll wraps shifts beyond the size."""
        check(lambda x: x.roll(shift, 1), X)
        check(lambda x: x.roll(shift), X)


class TestRandom:
    """Random numbers are the CPU's."""

    @pytest.mark.parametrize(
        "draw",
        [
            torch.bernoulli,
            lambda x: torch.poisson(x * 9),
            lambda x: torch.multinomial(x, 3),
            lambda x: torch.nn.functional.dropout(x, 0.4),
            lambda x: torch.native_dropout(x, 0.4, True)[0],
            lambda x: torch.normal(x, 2.0),
            torch.rand_like,
            lambda x: torch.randint_like(x, 9),
        ],
    )
    def test_seed_gives_the_cpu_s_numbers(self, draw: Call) -> None:
        """After the same seed, a random operator gives the CPU's bits."""
        x = torch.rand(3, 5)
        torch.manual_seed(7)
        expected = draw(x)
        torch.manual_seed(7)
        assert draw(x.to("tiny")).cpu().equal(expected)
