"""torch.distributed on tiny: each process computes on its own device, and gloo transfers the tensors."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import conformance.backend  # noqa: F401 - registers the device

RANKS = 2
pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo to send tensors with"
)


def by_rank(call: Callable[[int], Any], folder: Path, method: str = "fork", seconds: float = 100) -> list[Any]:
    """Return the results of `call` in two processes that form a gloo group."""
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    processes = [context.Process(target=_rank, args=(call, rank, str(folder), queue)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(seconds)
        process.kill()
    results = dict(queue.get() for _ in processes if not queue.empty())
    assert all(type(x) is not str for x in results.values()), results
    return [results[rank] for rank in range(RANKS)]


def _rank(call: Callable[[int], Any], rank: int, folder: str, queue: Any) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
        queue.put((rank, call(rank)))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        queue.put((rank, traceback.format_exc()))


def collectives(rank: int, device: str) -> dict[str, Any]:
    """Return the contents of the tensors that each collective fills."""
    row = torch.arange(4.0, device=device) * (rank + 1)
    results: dict[str, Any] = {}

    summed, largest = row.clone(), row.clone()
    dist.all_reduce(summed)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    results["all_reduce"] = summed, largest
    later = row.clone()
    work = dist.all_reduce(later, async_op=True)
    work.wait()
    results["all_reduce, asynchronous"] = later, *work.get_future().value()
    view = torch.zeros(2, 4, device=device)
    view[1] = rank + 1.0
    dist.all_reduce(view[1])
    results["all_reduce of a view"] = view
    results["broadcast"] = row.clone()
    dist.broadcast(results["broadcast"], 1)
    results["reduce"] = row.clone()
    dist.reduce(results["reduce"], 0)
    if rank:
        del results["reduce"]  # only the root's result is defined
    results["all_gather"] = [torch.empty_like(row) for _ in range(RANKS)]
    dist.all_gather(results["all_gather"], row)
    results["all_gather_single"] = torch.empty(8, device=device)
    dist.all_gather_single(results["all_gather_single"], row)
    results["gather"] = [torch.empty_like(row) for _ in range(RANKS)] if not rank else None
    dist.gather(row, results["gather"])
    results["scatter"] = torch.empty(2, device=device)
    dist.scatter(results["scatter"], None if rank else list(row.view(2, 2) + 1))
    results["reduce_scatter"] = torch.empty(2, device=device)
    dist.reduce_scatter(results["reduce_scatter"], list(row.view(2, 2)))
    results["reduce_scatter_single"] = torch.empty(2, device=device)
    dist.reduce_scatter_single(results["reduce_scatter_single"], row)
    results["all_to_all_single"] = torch.empty(4, device=device)
    dist.all_to_all_single(results["all_to_all_single"], row)
    results["send and recv"] = row.clone()
    dist.recv(results["send and recv"], 0) if rank else dist.send(row, 1)
    dist.barrier()
    return results


def _listed(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.dtype, x.tolist()
    return [_listed(y) for y in x] if isinstance(x, (list, tuple)) else x


def _both(rank: int) -> list[dict[str, Any]]:
    results = collectives(rank, "tiny")
    assert all(t.device.type == "tiny" for x in results.values() if x is not None for t in _flat(x))
    return [{name: _listed(x) for name, x in f.items()} for f in (results, collectives(rank, "cpu"))]


def _flat(x: Any) -> list[torch.Tensor]:
    return [t for y in x for t in _flat(y)] if isinstance(x, (list, tuple)) else [x]


def test_collectives(tmp_path):
    """Every collective of gloo gives the CPU's result on the device, also asynchronously and for views."""
    for actual, expected in by_rank(_both, tmp_path):
        assert len(actual) >= 12
        assert actual == expected


@pytest.mark.parametrize(
    "options",
    [{}, {"backend": "gloo", "device_id": torch.device("tiny:0")}, {"device_id": 0}],
    ids=["", "bound", "int"],
)
def test_a_group_without_a_backend(tmp_path, options):
    """A group without a backend uses gloo, and has torch's name for it. It formerly requested a backend of the
    accelerator, also for CPU tensors. A group bound to tiny still did so after the first correction."""
    dist.init_process_group(init_method=f"file://{tmp_path}/store", rank=0, world_size=1, **options)
    try:
        assert dist.get_backend() == ("gloo" if options else "undefined")
        group = dist.new_group([0], device_id=torch.device("tiny:0"))
        for device in ("cpu", "tiny"):
            row = torch.ones(2, device=device)
            dist.all_reduce(row)
            dist.all_reduce(row, group=group)
            assert row.tolist() == [1.0, 1.0]
        dist.barrier()
    finally:
        dist.destroy_process_group()


def test_a_group_bound_to_no_such_device():
    """torch refuses an index that is out of range, and the device one of a later group."""
    with pytest.raises(ValueError, match="device_id tiny:7 is out of range"):
        dist.init_process_group("gloo", device_id=torch.device("tiny:7"))
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        with pytest.raises(RuntimeError, match="no device tiny:7"):
            dist.new_group([0], device_id=torch.device("tiny:7"))
    finally:
        dist.destroy_process_group()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("tiny")


def trained(model: nn.Module, rows: slice, steps: int = 3) -> None:
    """Train by SGD on some rows of the same data."""
    draw = torch.Generator().manual_seed(1)
    x, y = (torch.randn(8, n, generator=draw)[rows].to("tiny") for n in (4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()


def _distributed(rank: int) -> list[list[float]]:
    parameters = []
    for options in ({}, {"gradient_as_bucket_view": True}):
        model = network()
        trained(DistributedDataParallel(model, **options), slice(rank, None, RANKS))
        parameters.append(torch.cat([p.flatten() for p in model.parameters()]).tolist())
    hooked = DistributedDataParallel(network())
    hooked.register_comm_hook(None, _averaged)
    trained(hooked, slice(rank, None, RANKS))
    parameters.append(torch.cat([p.flatten() for p in hooked.parameters()]).tolist())
    return parameters


def _averaged(state, bucket):
    """A user's communication hook. torch refuses annotations that are text."""
    mean = bucket.buffer().div(RANKS)
    return dist.all_reduce(mean, async_op=True).get_future().then(lambda done: done.value()[0])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_data_parallel_training(tmp_path):
    """Two processes, each with half of the rows, train an MLP to the parameters that a single process reaches with all
    rows."""
    alone = network()
    trained(alone, slice(None))
    wanted = torch.cat([p.flatten() for p in alone.parameters()]).cpu()
    assert not torch.equal(wanted, torch.cat([p.flatten() for p in network().parameters()]).cpu())
    for trained_parameters in by_rank(_distributed, tmp_path, "spawn", 500):
        for parameters in trained_parameters:
            torch.testing.assert_close(torch.tensor(parameters), wanted.detach())


def _unused(rank: int) -> list[str]:
    module, said = nn.Linear(2, 2).to("tiny"), []
    for option in ("find_unused_parameters", "static_graph"):
        with pytest.raises(RuntimeError, match="needs an allocator of pinned memory") as refused:
            DistributedDataParallel(module, **{option: True})
        said.append(str(refused.value))
    with pytest.raises(RuntimeError, match="needs an allocator of pinned memory") as refused:
        DistributedDataParallel(module)._set_static_graph()
    return [*said, str(refused.value)]


def test_unused_parameters_are_refused(tmp_path):
    """Unused parameters are refused when the module is wrapped, not by torch's C++ in the middle of the first step."""
    for said in by_rank(_unused, tmp_path):
        names = "find_unused_parameters=True", "static_graph=True", "_set_static_graph()"
        assert all(name in text for name, text in zip(names, said, strict=True))


class TestDataParallel:
    """DataParallel is refused in one sentence. (It formerly raised an AttributeError of torch._C.)"""

    def test_of_a_module_on_the_device(self):
        with pytest.raises(RuntimeError, match="tiny: DataParallel and the functions it is made of"):
            nn.DataParallel(nn.Linear(2, 2).to("tiny"))

    @pytest.mark.parametrize(
        "call",
        [
            lambda x: nn.parallel.data_parallel(nn.Linear(2, 2).to("tiny"), x),
            lambda x: nn.parallel.scatter(x, [0]),
            lambda x: nn.parallel.gather([x, x], 0),
            lambda x: nn.parallel.replicate(nn.Linear(2, 2).to("tiny"), [0]),
        ],
    )
    def test_its_functions(self, call):
        with pytest.raises(RuntimeError, match="tiny: DataParallel and the functions it is made of"):
            call(torch.ones(2, 2, device="tiny"))

    def test_of_a_module_on_the_cpu(self):
        """DataParallel of a CPU module works as without the device. (It formerly used tiny as the target device.)"""
        module = nn.Linear(2, 2)
        assert nn.DataParallel(module)(torch.ones(1, 2)).tolist() == module(torch.ones(1, 2)).tolist()
