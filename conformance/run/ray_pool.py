"""Pool on a Ray cluster: an actor on some node supervises each worker.

Defines `RayPool`, a `Pool`, and `cluster`, the connection that all pools of a command share. This process submits
tasks, collects answers and writes files. When an actor, a node or the connection is lost, each lost worker loses at
most one task. A task is a pure function of its arguments, so the pool runs it on another worker. It ignores late
answers of an actor that it gave up, so no result counts twice. Only this module imports ray.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.metadata
import math
import os
import pickle
import shutil
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.record.errors import ReportError, UsageError
from conformance.record.files import write_atomic
from conformance.run import signals, worker
from conformance.run.messages import Death, Done, ExitReason, Limits, OutOfTime, Pool, PoolLost, Task, value_of
from conformance.run.pool import ATTEMPTS, LOOK, PRELOAD, LocalPool
from conformance.run.ray_env import runtime_env
from conformance.run.supervisor import Supervisor

if TYPE_CHECKING:
    from conformance.run.execution_place import ExecutionPlace

OWN = "ray"
"""Address of a Ray instance that the command starts and ends."""

WATCH = 1.0
"""Seconds that an actor waits for news of its worker before it returns without any."""

SILENT = 30.0
"""Limit in seconds on an actor's silence. Beyond it the pool gives up the actor: it is unreachable, or its machine
hangs.
"""

UNREACHED = 5.0
"""Timeout in seconds for a connection to an address."""

STORE = 80 * 2**20
"""Bytes of shared memory of a Ray instance started here, which carries only tasks and answers."""

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics are sent
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # devices stay visible to a worker that asked for none


@dataclass
class _Seat:
    """An actor, its pending call and the time of its last sign of life, and its task or None, with its start."""

    actor: Any
    reference: Any
    since: float = field(default_factory=time.monotonic)
    node: str = ""
    ready: bool = False
    task: Task | None = None
    began: float = 0.0


class _Actor(Supervisor):
    def node(self) -> str:
        """Return the id of the node of this actor."""
        import ray

        return str(ray.get_runtime_context().get_node_id())


def cluster(place: ExecutionPlace, target: str) -> tuple[str, int] | None:
    """Connect this process to the cluster, once, or start one. Return host and port of its head. Raises UsageError if
    the address does not answer.
    """
    import ray

    if not ray.is_initialized():
        _connect(place, target)
    if place.address.startswith("ray://"):
        return _listening(place.address)
    return _listening(ray.get_runtime_context().gcs_address)


def _connect(place: ExecutionPlace, target: str) -> None:
    import ray

    own = place.address == OWN
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    handlers = {number: handler for number in signals.SIGNALS if (handler := signal.getsignal(number)) is not None}
    if own:
        path = os.pathsep.join(filter(None, sys.path))
        settings |= {"address": "local", "include_dashboard": False, "object_store_memory": STORE}
        settings["runtime_env"] = {"env_vars": {"PYTHONPATH": path}}
    else:
        _reach(
            _listening(place.address),
            lambda error: UsageError(f"no Ray cluster answers at --pool {place.address} ({error})"),
        )
        settings |= {"address": place.address, "runtime_env": runtime_env(target, place.files)}
    try:
        with signals.sigint_blocked():  # only this process handles Ctrl-C
            ray.init(**settings)
    except Exception as error:
        token = "" if own else "; one that takes tokens needs RAY_AUTH_MODE=token and RAY_AUTH_TOKEN here too"
        raise UsageError(f"no Ray cluster answers at --pool {place.address} ({_last(error)}{token})") from None
    finally:
        shutil.rmtree(settings.get("runtime_env", {}).get("working_dir", ""), ignore_errors=True)  # it was uploaded
        for number, handler in handlers.items():  # Ray exits at SIGTERM; a run must report its findings first
            signal.signal(number, handler)


def _listening(address: str) -> tuple[str, int] | None:
    """Return host and port of an address, or None for a word that ray resolves, such as `auto`."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdecimal() else None


def _reach(address: tuple[str, int] | None, error: Callable[[object], Exception]) -> None:
    """Raise this error if nothing listens at the address."""
    if address is None:
        return
    try:
        socket.create_connection(address, UNREACHED).close()
    except OSError as refused:
        raise error(refused.strerror or refused) from None


def _kill(actor: Any) -> None:
    import ray

    with contextlib.suppress(Exception):  # the actor or the whole cluster may be gone
        ray.kill(actor)


def _leave() -> None:
    """Exit with code 2 and skip ray's destructors, which end the process by SIGSEGV once the cluster is gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(2)


def _last(error: Exception) -> str:
    """Return the last line of a Ray error, which states the cause."""
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)[
        :300
    ]


def _named(resources: Mapping[str, float]) -> dict[str, float]:
    """Return a node's resources without Ray's internal ones."""
    return {k: v for k, v in resources.items() if k not in ("memory", "object_store_memory") and ":" not in k}


class RayPool(Pool):
    """Workers on a Ray cluster, at most `jobs` of them. It takes the arguments of `LocalPool`.

    Raises UsageError if the address does not answer, or if no node has the resources of one worker.
    """

    def __init__(
        self,
        place: ExecutionPlace,
        target: str,
        limits: Limits,
        jobs: int = 1,
        modules: Sequence[str] = (),
        preload: Sequence[str] = PRELOAD,
    ) -> None:
        self.target, self.limits, self.jobs, self._place = target, limits, jobs, place
        self.workers: dict[str, int] = {}
        """Number of ready workers by node."""
        self.lost: list[str] = []
        """One sentence for each actor that was lost and each node that was excluded."""
        self._head = cluster(place, target)
        torch = importlib.metadata.version("torch").partition("+")[0]
        pool_of = functools.partial(LocalPool, target, limits, 1, tuple(modules), preload=tuple(preload))
        self._supervised = pool_of, torch
        self._check_resources()
        amounts = dict(place.per_worker)
        own = {"num_cpus": amounts.pop("CPU", 0), "num_gpus": amounts.pop("GPU", 0), "resources": amounts}
        self._options = {**own, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        self._waiting: deque[Task] = deque()
        self._ended: deque[tuple[Task, Done | Death]] = deque()
        self._seats: list[_Seat] = []
        self._left_out: dict[str, str] = {}
        self._failed: dict[int, int] = {}
        """Number of workers that were lost with a task, by the task's identity."""
        self._unstarted = 0
        self._heard = time.monotonic()

    def _check_resources(self) -> None:
        import ray

        wanted = dict(self._place.per_worker)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in nodes):
            request = ",".join(f"{name}={amount:g}" for name, amount in wanted.items())
            there = "; ".join(", ".join(f"{k}={v:g}" for k, v in _named(node).items()) for node in nodes)
            raise UsageError(f"no node at --pool {self._place.address} has {request} for a worker: there is {there}")

    def close(self) -> None:
        """End all workers, busy ones included."""
        for seat in self._seats:
            _kill(seat.actor)
        self._seats.clear()

    def busy(self) -> list[tuple[Task, float]]:
        """See `Pool.busy`."""
        return [(seat.task, time.monotonic() - seat.began) for seat in self._seats if seat.task is not None]

    def alive(self) -> int:
        """See `Pool.alive`."""
        return sum(self.workers.values())

    def submit(self, task: Task) -> None:
        """Run a task as soon as a worker is free."""
        self._waiting.append(task)

    def ended(self, seconds: float | None = None) -> Iterator[tuple[Task, Done | Death]]:
        """Yield each task with its answer as it ends; see `Pool.ended`."""
        until = math.inf if seconds is None else time.time() + seconds
        while self._waiting or self._ended or any(seat.task for seat in self._seats):
            signals.check()
            if self._ended:
                yield self._ended.popleft()
            elif time.time() >= until:
                return
            else:
                self._turn(max(min(LOOK, until - time.time()), 0.0))

    def ask(
        self, function: Callable[..., Any], *args: Any, seconds: float | None = None, until: float = math.inf
    ) -> Any:
        """Return a function's value from a worker; see `Pool.ask`."""
        task = Task(getattr(function, "__name__", "a question"), function, args, seconds)
        self._waiting.appendleft(task)
        while not (answers := [answer for ended, answer in self._ended if ended is task]):
            signals.check()
            if time.time() >= until:
                self._withdraw(task)
                raise OutOfTime
            self._turn(max(min(LOOK, until - time.time()), 0.0))
        self._ended = deque(pair for pair in self._ended if pair[0] is not task)
        return value_of(answers[0])

    def _withdraw(self, task: Task) -> None:
        self._waiting = deque(waiting for waiting in self._waiting if waiting is not task)
        for seat in [seat for seat in self._seats if seat.task is task]:
            seat.task = None
            self._give_up(seat)

    def _turn(self, seconds: float) -> None:
        """Submit tasks, wait up to `seconds` for the first answer, process the answers, and give up silent actors."""
        import ray

        busy = sum(seat.task is not None for seat in self._seats)
        for _ in range(min(self.jobs, busy + len(self._waiting)) - len(self._seats)):
            self._begin()
        for seat in self._seats:
            if seat.ready and seat.task is None and self._waiting:
                self._hand(seat, self._waiting.popleft())
        by_reference = {seat.reference: seat for seat in self._seats if seat.reference is not None}
        try:
            ray.wait(list(by_reference), num_returns=1, timeout=seconds)
            # Collect all finished calls in one go, so that a turn takes as long with a thousand workers as with one.
            done, _ = ray.wait(list(by_reference), num_returns=max(len(by_reference), 1), timeout=0)
        except Exception as error:
            raise self._gone(error) from None
        for reference in done:
            self._hear(by_reference[reference])
        for seat in list(self._seats):
            limit = SILENT if seat.ready else self.limits.starting + SILENT
            if seat.node and seat.reference is not None and time.monotonic() - seat.since > limit:
                self._lose(seat, f"gave no sign of life in {limit:g} s")
        if not done and time.monotonic() - self._heard > UNREACHED:
            self._heard = time.monotonic()
            _reach(self._head, self._gone)

    def _gone(self, error: object) -> PoolLost:
        import ray

        self._seats.clear()  # ray would wait for the head until it ends this process
        atexit.unregister(ray.shutdown)
        atexit.register(_leave)
        reason = str(error).strip().partition("\n")[0]
        return PoolLost(
            f"the cluster at --pool {self._place.address} no longer answers ({reason}): what was found is on disk, and "
            "--resume goes on from there"
        )

    def _begin(self) -> None:
        import ray

        _reach(self._head, self._gone)  # without the head ray waits, and ends this process in the end
        selector = {"ray.io/node-id": f"!in({','.join(self._left_out)})"} if self._left_out else None
        actor: Any = ray.remote(_Actor).options(**self._options, label_selector=selector).remote(*self._supervised)
        self._seats.append(_Seat(actor, actor.node.remote()))

    def _hand(self, seat: _Seat, task: Task) -> None:
        try:
            relayed = Task(task.name, worker.relay, (pickle.dumps((task.function, task.args)),), task.seconds)
        except Exception as error:  # the task cannot be pickled
            self._ended.append((task, Done(error=error)))
            return
        seat.task = task
        seat.reference, seat.since = seat.actor.look.remote(WATCH, relayed), time.monotonic()
        seat.began = seat.since

    def _hear(self, seat: _Seat) -> None:
        """Process the answer of an actor's pending call."""
        import ray

        if seat not in self._seats:
            return
        try:
            news = ray.get(seat.reference)
        except Exception as error:  # the actor is gone, or unreachable
            self._lose(seat, _last(error))
            return
        self._heard = seat.since = time.monotonic()
        if not seat.node:
            seat.node, seat.reference = news, seat.actor.start.remote()
            return
        if not seat.ready:
            self._started(seat, news)
            return
        files, answer = news
        for path, text in files:
            write_atomic(Path(path), text)
        if answer is None:
            seat.reference = seat.actor.look.remote(WATCH)
            return
        task, seat.task, seat.reference = seat.task, None, None
        assert task is not None
        if isinstance(answer, bytes):
            try:
                answer = pickle.loads(answer)
            except Exception as error:  # the value cannot be unpickled here
                answer = Done(error=error)
            if isinstance(answer.error, (OSError, ReportError)):  # of the node's disk; run the task on another node
                self._leave_out(seat, task, answer.error)
                return
        self._failed.pop(id(task), None)
        self._ended.append((task, answer))

    def _started(self, seat: _Seat, answer: Death | str) -> None:
        seat.reference = None
        if not answer:
            seat.ready, self._unstarted = True, 0
            self.workers[seat.node] = self.workers.get(seat.node, 0) + 1
            return
        if isinstance(answer, Death) and not self.workers:
            self._give_up(seat)
            if self._waiting:
                self._ended.append((self._waiting.popleft(), answer))
            return
        self._leave_out(seat, None, answer.said if isinstance(answer, Death) else answer)

    def _leave_out(self, seat: _Seat, task: Task | None, why: object) -> None:
        """Exclude this node from now on, and run its tasks elsewhere. Raises UsageError if no node is left."""
        import ray

        self._left_out[seat.node] = str(why)
        self._tell(f"node {seat.node[:8]} is left out: {why}")
        if {node["NodeID"] for node in ray.nodes() if node["Alive"]} <= set(self._left_out):
            raise UsageError(f"no node at --pool {self._place.address} can be used: {why}")
        seat.task = task
        for other in [other for other in self._seats if other.node == seat.node]:
            self._give_up(other)

    def _lose(self, seat: _Seat, why: str) -> None:
        """Report a lost actor and submit its task again, unless the task lost `ATTEMPTS` workers."""
        self._tell(f"a worker{f' on node {seat.node[:8]}' if seat.node else ''} was lost: {why}")
        if not seat.ready:
            self._unstarted += 1
            if self._unstarted >= ATTEMPTS * self.jobs:
                raise UsageError(f"no worker starts at --pool {self._place.address}: {why}")
        task = seat.task
        if task is not None:
            self._failed[id(task)] = self._failed.get(id(task), 0) + 1
            if self._failed[id(task)] >= ATTEMPTS:
                seat.task = None
                died = Death(ExitReason.CRASH, f"was lost with its supervisor {ATTEMPTS} times ({why})")
                self._ended.append((task, died))
        self._give_up(seat)

    def _give_up(self, seat: _Seat) -> None:
        """Kill an actor; its task is the next one to be submitted."""
        _kill(seat.actor)
        self._seats.remove(seat)
        if seat.ready:
            self.workers[seat.node] -= 1
        if seat.task is not None:
            self._waiting.appendleft(seat.task)

    def _tell(self, event: str) -> None:
        self.lost.append(event)
        print(f"conformance: {event}", file=sys.stderr)
