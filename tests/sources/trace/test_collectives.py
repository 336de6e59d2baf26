"""The trace of a job with two processes, which make collectives on gloo."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.record import result as model

ROOT = Path(__file__).parents[3]

JOB = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from conformance.sources.trace.call import TracedCall


right = TracedCall.by_device


def by_device(call, args, kwargs, result, target):
    if call.name == "c10d.allreduce_.default" and dist.get_rank() == 1 and "wrong" in sys.argv:
        result[1].wait()
        args[0][0].mul_(1.01)
    return right(call, args, kwargs, result, target)


TracedCall.by_device = by_device
dist.init_process_group("gloo")
torch.manual_seed(0)
net = DistributedDataParallel(torch.nn.Linear(3, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.full((4, 3), float(dist.get_rank()))).square().mean().backward()
optimizer.step()
dist.all_reduce(torch.ones(2))
dist.destroy_process_group()
"""


def exit_codes(folder: Path, *words: str) -> list[int]:
    """Return the exit codes of both processes."""
    (folder / "job.py").write_text(JOB)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "conformance", "trace", "--target", "cpu", "--check-scripts", "0", "--divergence"]
    processes = [
        subprocess.Popen(
            [*command, "--reports", f"reports-{rank}", "job.py", *words],
            cwd=folder,
            env=os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    return [process.wait() for process in processes]


@pytest.mark.slow
def test_a_right_job_passes(tmp_path):
    """Collectives are judged when they have ended, also those of DistributedDataParallel. Regression test: they could
    not be compared."""
    assert exit_codes(tmp_path) == [0, 0]


@pytest.mark.slow
def test_the_wrong_process_is_named(tmp_path):
    """A collective with a wrong result in one process is a fault of this one, and the other one does not wait for it
    for ever."""
    assert exit_codes(tmp_path, "wrong") == [0, 1]
    wrong = model.load(tmp_path / "reports-1/trace.json").unexpected
    assert {one.op for one in wrong} == {"c10d.allreduce_"}
