"""Ends of the arguments of a call: integers at the ends of their dtype, empty dimensions, strides without a meaning."""

from __future__ import annotations

import pytest
import torch

from conformance.standalone.extreme_arguments import Unchanged, emptied, single, sizes, with_ends

TREE = {"input": torch.ones(2, 3), "args": (torch.ones(3, 4), [torch.ones(5, 3)]), "kwargs": {"p": 0.5}}


def integers(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


class TestWithEnds:
    def test_every_pair_meets(self):
        """Two tensors of 25 elements hold each pair of ends, the least integer with -1 among them."""
        tree = with_ends({"input": integers(5, 5), "args": (integers(5, 5),), "kwargs": {}})
        pairs = {*zip(tree["input"].flatten().tolist(), tree["args"][0].flatten().tolist(), strict=True)}
        assert len(pairs) == 25 and (-(2**31), -1) in pairs and (2**31 - 1, -(2**31)) in pairs

    def test_unsigned_integers(self):
        """Unsigned integers have 0 in the place of -1."""
        tree = with_ends({"input": torch.zeros(5, dtype=torch.uint8)})
        assert tree["input"].tolist() == [0, 0, 1, 255, 1]

    def test_floats_and_bools_stay(self):
        """A call without integers is no changed call."""
        with pytest.raises(Unchanged):
            with_ends({"input": torch.ones(3), "args": (torch.ones(2, dtype=torch.bool), 7)})


class TestSizes:
    def test_all_dimensions_of_a_size_together(self):
        """A size is that of every tensor: the query, the key and the value of attention lose their rows together."""
        assert sizes(TREE) == [2, 3, 4, 5]
        tree = emptied(TREE, 1)
        assert [tree["input"].shape, tree["args"][0].shape, tree["args"][1][0].shape] == [(2, 0), (0, 4), (5, 0)]

    def test_strides_of_one_element(self):
        """The dimensions of a size have one element and the stride; the other strides stay."""
        tree = single(TREE, 1, 77)
        assert [(x.shape, x.stride()) for x in (tree["input"], tree["args"][0])] == [
            ((2, 1), (1, 77)), ((1, 4), (77, 1)),
        ]  # fmt: skip
        assert tree["args"][1][0].stride() == (1, 77)

    def test_a_tensor_that_occurs_twice(self):
        """It remains one object, and keeps whether it requires grad."""
        tensor = torch.ones(3, requires_grad=True)
        tree = emptied({"input": tensor, "args": (tensor,)}, 0)
        assert tree["input"] is tree["args"][0] and tree["input"].requires_grad and tree["input"].is_leaf

    def test_without_such_a_size(self):
        """A size that the call does not have is no change."""
        with pytest.raises(IndexError):
            emptied(TREE, 4)
        with pytest.raises(Unchanged):
            emptied({"input": torch.ones(1)}, 0)
