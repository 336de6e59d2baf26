"""The supervisor of one worker on a node, without Ray."""

from __future__ import annotations

import functools
import importlib.metadata
import shutil
import sys
from pathlib import Path

import pytest

from conformance.run.messages import Limits, Task
from conformance.run.pool import LocalPool
from conformance.run.supervisor import Supervisor
from conformance.run.worker import keep
from tests.run.process_tree import tasks


def test_a_kept_file_is_sent_to_the_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker keeps its files in a folder of the supervisor, which sends them with their own paths."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", None, raising=False)  # `start` changes it
    torch = importlib.metadata.version("torch").partition("+")[0]
    supervisor = Supervisor(functools.partial(LocalPool, "cpu", Limits(), 1, (tasks.__name__,)), torch)
    assert supervisor.start() == ""
    with supervisor._pool:
        files, _ = supervisor.look(60, Task("it", keep, (tmp_path / "one.found", "text")))
    shutil.rmtree(supervisor._spool)
    assert files == [(str(tmp_path / "one.found"), "text")]
    assert not list(tmp_path.iterdir())
