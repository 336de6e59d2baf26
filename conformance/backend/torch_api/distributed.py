"""`torch.distributed` on tensors of tiny, through the CPU; refusal of DataParallel, which cannot work.

Defines `install`. torch dispatches a collective like any operator, by the device of its tensors. Each kernel here runs
the same collective on CPU copies, with the process group's backend for the CPU (gloo). It waits, and copies received
data back. DistributedDataParallel needs nothing more.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..dispatch.tensors import is_tiny
from ..runtime import torch_compat
from .devices import index_of
from .replacements import replace_at_import, replace_on_first_use

# The first argument of every other collective holds the tensors that it fills.
FILLS_NOTHING = frozenset({"send", "barrier"})
_libraries: list[torch.library.Library] = []  # kept, because the kernels of a collected library are removed

REFUSED = (
    "tiny: DataParallel and the functions it is made of (scatter, gather, replicate, broadcast) are written for CUDA "
    "devices: use one tiny device, or torch.nn.parallel.DistributedDataParallel with a process each over gloo"
)

UNUSED = (
    "needs an allocator of pinned memory, which torch has for devices written in C++ alone: "
    "let every parameter take part in the loss, and leave it out"
)


def install() -> None:
    """Serve collectives of tensors on tiny, and refuse DataParallel of modules there."""
    if torch.distributed.is_available():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"(?s).*Overriding a previously registered kernel")
            _serve_collectives()
        _choose_gloo()
    _refuse_data_parallel()
    _refuse_unused_parameters()


def _serve_collectives() -> None:
    """Replace torch's kernels for the device, which need a process-group backend for it; such a backend is
    impossible.
    """
    collectives = torch.library.Library("c10d", "IMPL")
    _libraries.append(collectives)
    for name in torch_compat.all_op_names():
        namespace, _, op = name.partition("::")
        if namespace == "c10d" and torch_compat.has_kernel(name, "PrivateUse1"):
            kernel = functools.partial(_on_cpu, getattr(torch.ops.c10d, op).default)
            collectives.impl(op, kernel, "PrivateUse1")


def _choose_gloo() -> None:
    """Use gloo over the CPU as the default backend, also for a group that is bound to a tiny device.

    Without a named backend, torch makes one for the accelerator alone. Here it is one for the CPU, as in a process
    without accelerator. It serves the tensors of both.
    """
    torch_compat.default_backends()["tiny"] = "gloo"
    replace_at_import("torch.distributed.distributed_c10d:BackendConfig.__init__", _over_the_cpu)
    replace_at_import("torch.distributed.distributed_c10d:_new_process_group_helper", _unbound)


def _over_the_cpu(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, backend: Any) -> None:
        original(self, backend)
        if list(self.device_backend_map) == ["tiny"]:
            self.device_backend_map = {"cpu": self.device_backend_map["tiny"]}

    return init


def _unbound(original: Callable[..., Any]) -> Callable[..., Any]:
    """The function that makes a process group, without a binding to a tiny device."""

    @functools.wraps(original)
    def create(*args: Any, device_id: Any = None, **kwargs: Any) -> Any:
        if device_id is not None and torch.device(device_id).type == "tiny":
            index_of(device_id)
            device_id = None
        return original(*args, device_id=device_id, **kwargs)

    return create


def _on_cpu(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a collective on CPU copies, and copy received data into the original tensors."""
    hosts: list[tuple[torch.Tensor, torch.Tensor]] = []
    moved = [_moved(x, hosts) for x in args]
    result = op(*moved, **kwargs)
    work = result[-1] if isinstance(result, tuple) else result
    torch_compat.wait_for(work)
    filled = args[0]
    if op._schema.name.removeprefix("c10d::") not in FILLS_NOTHING:
        filled_ids = {id(t) for t in _tensors(filled)}
        for tensor, host in hosts:
            if id(tensor) in filled_ids:
                tensor.detach().copy_(host)
    finished = torch_compat.finished_work(_tensors(filled))
    return (filled, finished) if isinstance(result, tuple) else finished


def _moved(x: Any, hosts: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    if isinstance(x, list):
        return [_moved(y, hosts) for y in x]
    if not is_tiny(x):
        return x
    host = next((host for tensor, host in hosts if tensor is x), None)
    if host is None:
        host = x.detach().cpu()
        hosts.append((x, host))
    return host


def _tensors(x: Any) -> list[torch.Tensor]:
    return [t for y in x for t in _tensors(y)] if isinstance(x, list) else [x]


def _refuse_data_parallel() -> None:
    """Refuse DataParallel: torch assumes that it serves any accelerator, and fails inside, also for CPU modules."""
    replace_at_import("torch.nn.parallel.data_parallel:_get_available_device_type", _other_than_tiny)
    replace_on_first_use("torch.nn.parallel.data_parallel:DataParallel.__init__", _refusing)
    replace_on_first_use("torch.nn.parallel:data_parallel", _refusing)
    for name in ("broadcast", "broadcast_coalesced", "reduce_add", "reduce_add_coalesced", "scatter", "gather"):
        replace_on_first_use(f"torch.nn.parallel.comm:{name}", _refusing)


def _other_than_tiny(available: Callable[[], str | None]) -> Callable[[], str | None]:
    def device_type() -> str | None:
        current = available()
        return None if current == "tiny" else current

    return device_type


def _refuse_unused_parameters() -> None:
    """Refuse options that record used parameters: torch pins memory for them with a C++ allocator, which tiny lacks."""

    def constructing(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def init(self: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
            options = [name for name in ("find_unused_parameters", "static_graph") if kwargs.get(name)]
            if options and any(map(is_tiny, module.parameters())):
                raise RuntimeError(f"tiny: DistributedDataParallel({options[0]}=True) {UNUSED}")
            original(self, module, *args, **kwargs)

        return init

    def setting(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def set_static_graph(self: Any) -> None:
            if any(map(is_tiny, self.module.parameters())):
                raise RuntimeError(f"tiny: DistributedDataParallel._set_static_graph() {UNUSED}")
            original(self)

        return set_static_graph

    replace_on_first_use("torch.nn.parallel.distributed:DistributedDataParallel.__init__", constructing)
    replace_on_first_use("torch.nn.parallel.distributed:DistributedDataParallel._set_static_graph", setting)


def _refusing(function: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper that raises RuntimeError if a tensor on tiny, or a module with one, is among the arguments."""

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if any(map(is_tiny, _inside([*args, *kwargs.values()]))):
            raise RuntimeError(REFUSED)
        return function(*args, **kwargs)

    return checked


def _inside(x: Any) -> Iterator[Any]:
    if isinstance(x, (list, tuple)):
        for y in x:
            yield from _inside(y)
    elif isinstance(x, torch.nn.Module) and not isinstance(x, torch.nn.DataParallel):  # `__init__` has just created it
        yield from (*x.parameters(), *x.buffers())
    else:
        yield x
