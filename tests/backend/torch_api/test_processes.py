"""Transfer of tiny tensors between processes. (A DataLoader whose workers created some formerly waited forever.)"""

from __future__ import annotations

import multiprocessing

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import conformance.backend  # noqa: F401 - registers the device
from tests.patience import stretched


class Numbers(Dataset):
    """A dataset of four rows that are created on the device."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((2,), float(index), device="tiny") * 2, index


@pytest.fixture
def sent():
    """Send a tensor through a queue between processes and return the received one."""
    queue = torch.multiprocessing.get_context("fork").Queue()

    def through(value):
        queue.put(value)
        return queue.get(timeout=stretched(60))

    return through


class TestSending:
    def test_a_copy_arrives(self, sent):
        """The received tensor has the values, strides and device of the original. A write to it does not reach the
        sender."""
        tensor = torch.arange(6.0, device="tiny").view(2, 3).t()
        received = sent(tensor)
        assert received.device == tensor.device
        assert received.stride() == tensor.stride()
        assert received.tolist() == tensor.tolist()
        received.zero_()
        assert tensor.sum().item() == 15

    def test_a_parameter_stays_one(self, sent):
        """A parameter stays a parameter with its requires_grad."""
        received = sent(torch.nn.Parameter(torch.ones(2, device="tiny"), requires_grad=False))
        assert type(received) is torch.nn.Parameter
        assert not received.requires_grad
        assert sent(torch.ones(2, device="tiny", requires_grad=True)).requires_grad

    def test_a_storage(self, sent):
        """The bytes of a storage arrive."""
        received = sent(torch.tensor([1, 2], dtype=torch.uint8).to("tiny").untyped_storage())
        assert received.device.type == "tiny"
        assert received.tolist() == [1, 2]

    def test_a_sparse_tensor(self, sent):
        """A sparse tensor is sent by its component tensors."""
        tensor = torch.eye(3).to_sparse().to("tiny")
        assert sent(tensor).to_dense().tolist() == torch.eye(3).tolist()

    def test_of_the_cpu(self, sent):
        """A CPU tensor is still sent as shared memory."""
        tensor = torch.zeros(2)
        sent(tensor).add_(1)
        assert tensor.tolist() == [1, 1]

    def test_sharing_is_refused(self):
        """share_memory_ is refused. It formerly did nothing silently: no process would have seen another's writes."""
        with pytest.raises(RuntimeError, match="tiny: a storage cannot be shared between processes"):
            torch.ones(2, device="tiny").share_memory_()


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_a_worker_makes_tensors_on_the_device(method):
    """Batches arrive on the device, in order, from forked and from spawned workers."""
    context, seconds = multiprocessing.get_context(method), 100 if method == "fork" else 500
    loader = DataLoader(Numbers(), batch_size=2, num_workers=2, multiprocessing_context=context, timeout=seconds)
    batches = [(rows.device.type, rows.tolist(), numbers.tolist()) for rows, numbers in loader]
    assert batches == [("tiny", [[0, 0], [2, 2]], [0, 1]), ("tiny", [[4, 4], [6, 6]], [2, 3])]
