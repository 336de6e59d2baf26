"""Ray clusters of several nodes on this machine: each node has its own raylet, and the head runs no worker."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PLANTED = Path(__file__).parent.parent / "planted"
os.environ["RAY_AUTH_MODE"] = "disabled"  # a process reads it once; the token would be stored in the home folder
SMALL = 80 * 2**20
"""Bytes of shared memory of a node."""


@contextlib.contextmanager
def started(nodes: int) -> Iterator[Any]:
    """A cluster with this number of nodes of one CPU each, whose head listens for Ray's client at `client`. It ends
    with the block, even if some of its processes are dead."""
    from ray.cluster_utils import Cluster

    with socket.socket() as free:  # the server of an earlier cluster may still listen
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": SMALL, "ray_client_server_port": port},
    )
    cluster.client = f"ray://127.0.0.1:{port}"
    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=1, object_store_memory=SMALL)
        yield cluster
    finally:
        with contextlib.suppress(Exception):  # a node that a test has killed does not answer the shutdown
            cluster.shutdown()
