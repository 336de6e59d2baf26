"""What is under test: one small class, one file per target in `targets/`, nothing imported until it is asked for.

The key insight: layout and aliasing survive a move only when *storages* move. Each storage is copied once, whole, and
every tensor on it is rebuilt with its own size, stride and offset; the way back is the same. So a device is asked for
one copy a storage, however many views there are, and bytes outside all views can be compared too.

A target says *beforehand* what it can be judged by (`oracles`), which dtypes it holds and which step families it leaves
out: an exception is never read as "unsupported". This module knows nothing of programs, OpInfo or reports.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

ORACLES = (
    "structure",
    "dtype",
    "shape",
    "stride",
    "storage_offset",
    "contiguity",
    "alias",
    "value",
    "storage",
    "error",
    "grad",
    "version",
    "kernels",
)

SIGNIFICANT_STRIDE = "significant_stride"
"""In place of `stride`, for what follows PyTorch's own rule: the strides of dimensions of length 1 and of tensors that
have no elements mean nothing (pytorch#77553). What differs is reported as `stride` all the same."""

BUILTIN = {
    "cpu": "conformance.targets.cpu:CpuTarget",
    "tiny": "conformance.targets.tiny:TinyTarget",
    "tinygrad-upstream": "conformance.targets.tinygrad_upstream:TinygradUpstreamTarget",
    "device": "conformance.targets.device:DeviceTarget",
    "meta": "conformance.targets.meta:MetaTarget",
    "fake": "conformance.targets.fake:FakeTarget",
    "functionalize": "conformance.targets.functionalize:FunctionalizeTarget",
    "aot_eager": "conformance.targets.aot_eager:AotEagerTarget",
    "inductor": "conformance.targets.inductor:InductorTarget",
    "mutant": "conformance.mutants:MutantTarget",
}
ENTRY_POINTS = "conformance.targets"


class TargetError(Exception):
    """The target cannot be used: one sentence for the user with what is wrong and what to do."""


@dataclass
class KernelCount:
    """Kernels run inside a `Target.kernels()` block; `total` is None while open and where the target cannot count."""

    total: int | None = None


class Target:
    """A PyTorch device under test. Subclass it, set `name` and `device`, and override what differs.

    `argument` is what stood behind the colon in the target's spec (`device:cuda` -> `cuda`), or the empty string.
    """

    name: str
    device: torch.device = torch.device("cpu")
    oracles: frozenset[str] = frozenset(ORACLES) - {"kernels", "version"}
    dtypes: frozenset[torch.dtype] | None = None
    """The dtypes that the device can hold; None means all."""
    without: frozenset[str] = frozenset()
    """What the target declares it does not support: step families, steps, and traits of `conformance.support`."""
    whole: bool = False
    """Whether a program runs as one function that `transform` is given, and not step by step."""
    storages: bool = True
    """Whether the device's tensors show their storages. Where not, inputs are made with `as_strided`, and aliasing can
    be judged by behaviour only: leave `alias` and `storage` out of `oracles`."""
    relatives: tuple[str, ...] = ()
    """Specs of targets that differ from this one in one part only, such as the code generator: a finding is run on each
    to say whose bug it is."""

    def __init__(self, argument: str = "") -> None:
        if argument:
            raise TargetError(f"target {self.name!r} takes no argument, but got {argument!r}: write just {self.name!r}")
        self.spec = self.name

    def prepare(self) -> None:
        """Import and register what the device needs; called before `torch.testing._internal` is imported.

        Raises TargetError when the device is not there."""

    def send(self, tree: Any) -> Any:
        """The same tree with every CPU tensor on the device: same layout, same aliasing, `requires_grad` kept."""
        return rebuild(tree, self.upload, _view_of if self.storages else _strided_like)

    def upload(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies of dense 1-d CPU tensors on the device, each with a storage of its own."""
        return [flat.clone() if self.device.type == "cpu" else flat.to(self.device) for flat in flats]

    def fetch(self, tree: Any) -> Any:
        """The same tree on the CPU: each storage brought over once and whole, all in one call of `download`; without
        storages each tensor by itself."""
        if not self.storages:
            return map_tensors(tree, lambda tensor: tensor.detach().cpu())
        return rebuild(tree, self.download)

    def key(self, tensor: torch.Tensor) -> int:
        """Equal for tensors that are known to share a storage."""
        return storage_key(tensor) if self.storages else id(tensor)

    def download(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies on the CPU of dense 1-d device tensors that each cover a whole storage. A lazy device computes all
        of them in one schedule."""
        return copied_to_host(flats)

    def synchronize(self) -> None:
        """Wait until everything that was asked of the device has run."""
        if self.device.type != "cpu" and torch.accelerator.is_available():
            torch.accelerator.synchronize(self.device)

    def forget(self) -> None:
        """A case begins: forget what earlier ones taught the device, where the kernels of later ones depend on that."""

    @contextlib.contextmanager
    def kernels(self) -> Iterator[KernelCount]:
        """Count the kernels that run inside the block; `total` stays None where the target cannot count."""
        yield KernelCount()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Surrounds each step of a program on the target, not the moves: a mode or a planted fault goes here."""
        yield

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What is called in place of the function that a whole program is; only for targets that are `whole`."""
        return function

    def attempt(self, step: Callable[..., Any], *tensors: torch.Tensor) -> Any:
        """Within a whole program, call a step that must raise: the exception, or "no error"."""
        try:
            step(*tensors)
        except Exception as error:
            return error
        return "no error"

    def environment(self) -> dict[str, str]:
        """What a report should say about the target: versions, compiler, renderer."""
        return {"torch": torch.__version__}

    def script(self) -> str:
        """Python lines that a standalone script needs before it may use the device as `DEVICE`."""
        return f"DEVICE = {str(self.device)!r}"


def copied_to_host(flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies on the CPU, each with a storage of its own."""
    return [flat.clone() if flat.device.type == "cpu" else flat.cpu() for flat in flats]


def map_tensors(tree: Any, replace: Callable[[torch.Tensor], Any]) -> Any:
    """The tree with each tensor replaced; tuples, named tuples, lists and dicts keep their types."""
    if isinstance(tree, torch.Tensor):
        return replace(tree)
    if isinstance(tree, tuple):
        items = [map_tensors(item, replace) for item in tree]
        if hasattr(tree, "_fields"):
            return type(tree)(*items)
        return type(tree)(items)
    if isinstance(tree, list):
        return [map_tensors(item, replace) for item in tree]
    if isinstance(tree, dict):
        return {key: map_tensors(item, replace) for key, item in tree.items()}
    return tree


def storage_key(tensor: torch.Tensor) -> int:
    """The identity of the tensor's storage: equal exactly for tensors that alias, also when it is empty."""
    return tensor.untyped_storage()._cdata


def whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    """A detached 1-d tensor over all of the tensor's storage: of its dtype, or of bytes when they do not divide."""
    storage = tensor.untyped_storage()
    size, rest = divmod(storage.nbytes(), tensor.element_size())
    if rest:
        return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, 0, (size,), (1,))


def rebuild(
    tree: Any,
    move: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]],
    lay_out: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
) -> Any:
    """The tree with all of its storages moved at once by `move`, and each tensor rebuilt on its moved storage.

    A tensor object that occurs twice stays one object. Size, stride, offset, dtype, `requires_grad` and the conj and
    neg bits are kept; a tensor that was not a leaf becomes one. Tensors that are not strided raise TargetError.
    """
    originals: dict[int, torch.Tensor] = {}
    map_tensors(tree, lambda tensor: originals.setdefault(id(tensor), tensor))
    flats: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        for tensor in originals.values():
            if tensor.layout is not torch.strided:
                raise TargetError(f"a tensor of layout {tensor.layout} has no storage to move: only strided tensors do")
            if storage_key(tensor) not in flats:
                flats[storage_key(tensor)] = whole_storage(tensor)
        moved = dict(zip(flats, move(list(flats.values())), strict=True))
        rebuilt = {key: (lay_out or _view_of)(moved[storage_key(tensor)], tensor) for key, tensor in originals.items()}
    for key, tensor in originals.items():
        # torch itself can make an integer that requires grad, and refuses to be asked for one.
        if tensor.requires_grad and (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
            rebuilt[key].requires_grad_()
    return map_tensors(tree, lambda tensor: rebuilt[id(tensor)])


def _view_of(flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    base = torch.empty(0, dtype=like.dtype, device=flat.device)
    base.set_(flat.untyped_storage(), like.storage_offset(), like.size(), like.stride())
    if like.is_conj():
        base = base.conj()
    return torch._neg_view(base) if like.is_neg() else base


def _strided_like(flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return flat.as_strided(like.size(), like.stride(), like.storage_offset())


def load_target(spec: str) -> Target:
    """The target for `NAME` or `NAME:ARGUMENT`, built in or registered under the entry points `conformance.targets`, or
    for `class:MODULE.CLASS`, any subclass of Target that can be imported.

    Its `prepare` has run. Raises TargetError with one sentence when there is none of that name or it cannot be used.
    """
    target = describe_target(spec)
    try:
        target.prepare()
    except TargetError:
        raise
    except Exception as error:  # it is anybody's code, which may fail in any way
        raise TargetError(f"target {spec!r} cannot be prepared: {_reason(error)}") from error
    return target


def describe_target(spec: str) -> Target:
    """The target of this spec before its `prepare`: it can be asked for its name and script, and imports no device.

    Raises TargetError, also where what the class says of itself is not understood."""
    name, _, argument = spec.partition(":")
    if name == "class":
        path, argument = ":".join(argument.rsplit(".", 1)), ""
    else:
        path = BUILTIN.get(name) or _registered().get(name, "")
    module, _, attribute = path.partition(":")
    if not module or not attribute:
        known = ", ".join(sorted({*BUILTIN, *_registered()}))
        raise TargetError(
            f"unknown target {spec!r}: choose one of {known}, write class:MODULE.CLASS, or install a "
            f"package that registers it under the entry points {ENTRY_POINTS!r}"
        )
    try:
        made = getattr(importlib.import_module(module), attribute)
        if not (isinstance(made, type) and issubclass(made, Target)):
            raise TargetError(f"target {spec!r} is no target: {path!r} is not a subclass of conformance.target.Target")
        target = made(argument)
        _check(spec, target)
    except TargetError:
        raise
    except Exception as error:  # its module is anybody's code, which may fail in any way
        raise TargetError(f"target {spec!r} cannot be loaded from {path!r}: {_reason(error)}") from error
    target.spec = spec
    return target


def _registered() -> dict[str, str]:
    return {entry.name: entry.value for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _check(spec: str, target: Target) -> None:
    """What a misspelt word would leave out in silence; `without` is checked where it is understood, in `support`."""
    unknown = [oracle for oracle in target.oracles if oracle not in (*ORACLES, SIGNIFICANT_STRIDE)]
    if unknown or not target.oracles:
        said = f"the unknown oracle {unknown[0]!r}" if unknown else "no oracle, so nothing of it would be compared"
        raise TargetError(f"target {spec!r} names {said}: choose from {', '.join((*ORACLES, SIGNIFICANT_STRIDE))}")
    for dtype in target.dtypes or ():
        if not isinstance(dtype, torch.dtype):
            raise TargetError(
                f"target {spec!r} holds the dtype {dtype!r}, which is no torch.dtype: write for example torch.float32"
            )
