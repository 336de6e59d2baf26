"""Global states and modes around a call, and calls whose answers depend on them."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from conformance.standalone.torch_compat import TorchDispatchMode


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set the default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def seed(number: int) -> Iterator[None]:
    """Set the seed of every random generator; afterwards, the CPU's continues as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        yield


@contextlib.contextmanager
def default_device(device: Any) -> Iterator[None]:
    """Set the default device."""
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Enable deterministic algorithms. Torch then fills new memory with nan or the largest number."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextlib.contextmanager
def flush_denormal() -> Iterator[None]:
    """Make the CPU treat subnormal floats as zero, if it can."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the number of threads within an op."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def function_mode() -> Any:
    """Return a mode that intercepts torch functions and changes nothing."""

    class Passing(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    return Passing()


def dispatch_mode() -> Any:
    """Return a mode that intercepts aten ops and changes nothing."""

    class Passing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    return Passing()


def in_thread(call: Callable[[], Any]) -> Any:
    """Return the result of the call in a new thread."""
    results, raised = [], []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return results[0]


def in_vmap(call: Callable[[], Any]) -> Any:
    """Return the result of the call in a level of vmap in which no tensor has a batch dimension."""
    results = []

    def level(tensor: torch.Tensor) -> torch.Tensor:
        results.append(call())
        return tensor

    torch.vmap(level)(torch.zeros(1))
    return results[0]


def in_vjp(call: Callable[[], Any]) -> Any:
    """Return the result of the call in a level of grad in which no tensor is a primal."""
    results: list[Any] = []

    def of_tensors() -> bool:
        parts = results[0] if isinstance(results[0], (tuple, list)) else (results[0],)
        return bool(parts) and all(isinstance(part, torch.Tensor) for part in parts)

    def level(tensor: torch.Tensor) -> Any:
        results.append(call())
        return results[0] if of_tensors() else tensor

    result = torch.func.vjp(level, torch.zeros(()))[0]
    return result if of_tensors() else results[0]


def global_state() -> list[Any]:
    """Return the global state, which no call may leave changed."""
    return [
        str(torch.get_default_dtype()),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_num_threads(),
        torch.is_warn_always_enabled(),
    ]


def new_tensors_lie(device: Any) -> list[bool]:
    """Make new tensors under several default devices, and return for each whether it lies there."""
    result = []
    for default in (device, "meta", device, "cpu"):
        with torch.device(default):
            tensors = [torch.full((2,), 1.5), torch.arange(3), torch.tensor([1.0]), torch.empty(2)]
        result += [tensor.device.type == torch.device(default).type for tensor in tensors]
    return result


def subnormals(tensor: torch.Tensor) -> torch.Tensor:
    """Scale the numbers to subnormal ones and back, after a call under `flush_denormal`."""
    with flush_denormal():
        tensor * 2.0**-130
    return tensor * 2.0**-130 * 2.0**100 * 2.0**30


def seeded(kind: str, seed: int, device: Any) -> list[bool]:
    """Return whether a seed repeats its random numbers, another seed does not, and neither depends on earlier draws."""

    def draw(seed: int) -> list[Any]:
        torch.manual_seed(seed)
        if kind == "randperm":
            return torch.randperm(64, device=device).tolist()
        if kind == "randint":
            return torch.randint(0, 1000, (64,), device=device).tolist()
        if kind in ("rand", "randn"):
            return getattr(torch, kind)(64, device=device).tolist()
        if kind == "bernoulli":
            return torch.bernoulli(torch.full((256,), 0.5, device=device)).tolist()
        if kind == "dropout":
            return torch.nn.functional.dropout(torch.ones(256, device=device)).tolist()
        return getattr(torch.ones(64, device=device), kind)().tolist()

    with torch.random.fork_rng(devices=[]):
        first, second, other, again = draw(seed), draw(seed), draw(seed + 1), draw(seed)
    return [first == second, first != other, first == again]


def generated(seed: int, device: Any) -> list[bool]:
    """Return the same checks for the device's own generator, including saving and restoring its state."""
    first, second = torch.Generator(device=device), torch.Generator(device=device)

    def draw(generator: Any) -> list[float]:
        return torch.rand(64, generator=generator, device=device).tolist()

    drawn, repeated = draw(first.manual_seed(seed)), draw(second.manual_seed(seed))
    state, other = first.get_state(), draw(first)
    first.set_state(state)
    return [drawn == repeated, drawn != other, draw(first) == other, first.initial_seed() == seed]


def warned(kind: str, device: Any) -> list[str]:
    """Return the warnings of a call that must warn each time: their categories and first words."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ones = torch.ones(2, 2, 2, device=device)
            if kind == "real":
                ones.to(torch.complex64).to(torch.float32)
            elif kind == "resize":
                torch.add(ones, ones, out=torch.ones(1, device=device))
            elif kind == "freedom":
                ones[0, 0, :1].var()
            elif kind == "transpose":
                _ = ones.T
            elif kind == "mask":
                _ = ones[torch.ones(2, dtype=torch.uint8, device=device)]
            elif kind == "grad":
                _ = (ones.requires_grad_() * 2).grad
            elif kind == "loss":
                torch.nn.functional.mse_loss(ones, ones[:1])
            elif kind == "meshgrid":
                torch.meshgrid(ones[0, 0], ones[0, 0])
    finally:
        torch.set_warn_always(before)
    texts = (f"{warning.category.__name__}: {' '.join(str(warning.message).split()[:4])}" for warning in caught)
    return sorted(text for text in texts if not text.startswith("ResourceWarning"))


def random_zeros(kind: str, size: list[int], device: Any) -> torch.Tensor:
    """Return zeros with the dtype, shape and strides of a random operator's result."""
    if kind == "randperm":
        drawn = torch.randperm(size[0], device=device)
    elif kind == "randint":
        drawn = torch.randint(0, 9, size, device=device)
    elif kind in ("rand", "randn"):
        drawn = getattr(torch, kind)(size, device=device)
    elif kind == "rand_like":
        drawn = torch.rand_like(
            torch.ones(size, device=device).t() if len(size) < 3 else torch.ones(size, device=device)
        )
    elif kind == "bernoulli":
        drawn = torch.bernoulli(torch.full(size, 0.5, device=device))
    elif kind == "dropout":
        drawn = torch.nn.functional.dropout(torch.ones(size, device=device))
    else:
        drawn = getattr(torch.ones(size, device=device), kind)()
    return torch.zeros_like(drawn)
