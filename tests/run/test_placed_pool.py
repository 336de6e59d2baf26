"""One answer to each end of a worker: the same for every command."""

from __future__ import annotations

import pytest

from conformance.record.errors import TargetError
from conformance.run.execution_place import LOCAL
from conformance.run.messages import KILLED, Death, ExitReason, Limits, Task, unusable
from conformance.run.placed_pool import PlacedPool
from tests.run.process_tree import tasks


def test_a_target_that_cannot_be_loaded() -> None:
    """If no worker can be started, a task and a question both end with an error about the target."""
    said = "target 'class:tasks.Dies' ends the process that loads it; load it by hand"
    with PlacedPool(LOCAL, "class:tasks.Dies", Limits()) as pool:
        pool.submit(Task("a task", tasks.pid))
        with pytest.raises(TargetError, match=said):
            list(pool.ended())
        with pytest.raises(TargetError, match=said):
            pool.ask(tasks.pid)


def test_a_first_question_that_ends_the_worker() -> None:
    """A target whose first use ends the worker is unusable."""
    with (
        PlacedPool(LOCAL, "cpu", Limits()) as pool,
        pytest.raises(TargetError, match="target 'cpu' cannot be used: its process killed its process with SIGSEGV"),
    ):
        pool.ask_first(tasks.segfaults)


def test_results() -> None:
    """Each task has one result: its value, its exception, or the answer of the caller after a death. The answer may be
    another task, which runs in its place."""

    def after_death(task: Task, death: Death) -> Task | ExitReason:
        return Task("again", tasks.pid) if task.name == "first" else death.reason

    with PlacedPool(LOCAL, "cpu", Limits(), 1, ["tasks"]) as pool:
        run = [Task("first", tasks.segfaults), Task("second", tasks.segfaults), Task("third", tasks.raises)]
        results = {task.name: result for task, result in pool.results(run, after_death)}
    assert results.keys() == {"again", "second", "third"}
    assert isinstance(results["again"], int) and results["second"] is ExitReason.CRASH
    assert isinstance(results["third"], RuntimeError) and "Odd" in str(results["third"])


def test_a_target_that_something_else_kills() -> None:
    """The sentence blames no target, and says what to do."""
    said = "the process of target 'cpu' was killed from outside while it loaded (SIGKILL), and again; the machine may"
    assert str(unusable("cpu", Death(ExitReason.NEVER_STARTED, f"{KILLED} (SIGKILL), and again"))).startswith(said)
