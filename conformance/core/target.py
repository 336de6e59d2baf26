"""What is under test: one small class, one file per target in `targets/`, nothing imported until it is asked for.

The key insight: a target says *beforehand* what it can be judged by (`oracles`), which dtypes it holds and which steps
it does not support, so an exception is never read as "unsupported". It moves tensors (`device`), or transforms
functions (`transforms_program`), or interprets metadata (no oracle "value"). Only the executor runs anything on it.
This module knows nothing of programs, OpInfo or reports."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from conformance.core.errors import TargetError
from conformance.core.features import FEATURES
from conformance.core.input_layout import lay_out
from conformance.core.moving import copied_to_host, map_tensors, rebuild, storage_key, whole_storage
from conformance.core.names import ORACLES, SIGNIFICANT_STRIDE, SPECIALS_BACKWARD, VARIANTS
from conformance.core.profile import Profile


@dataclass
class KernelCount:
    """Kernels run inside a `Target.kernels()` block; `total` is None while open and where the target cannot count."""

    total: int | None = None


@dataclass
class Capture:
    """What a compiler was handed inside a `Target.capture()` block: its graphs, the ops in them, and how often tracing
    gave up and went on in plain Python."""

    graphs: int = 0
    ops: int = 0
    breaks: int = 0

    @property
    def extent(self) -> str:
        """COMPILED, PARTLY or NOT_COMPILED."""
        return NOT_COMPILED if not self.ops else PARTLY if self.breaks else COMPILED


COMPILED, PARTLY, NOT_COMPILED = "compiled", "partly compiled", "not compiled"

RENAMED = {"whole": "transforms_program", "without": "unsupported", "relatives": "siblings", "forget": "reset_state"}
"""Attributes of a target by their former names, which are still understood, with a DeprecationWarning."""


class Target:
    """A PyTorch device under test. Subclass it, set `name` and `device`, and override what differs.

    `argument` is what stood behind the colon in the target's spec (`device:cuda` -> `cuda`), or the empty string.
    """

    name: str
    device: torch.device = torch.device("cpu")
    oracles: frozenset[str] = frozenset(ORACLES) - {"kernels", "version"}
    dtypes: frozenset[torch.dtype] | None = None
    """The dtypes that the device can hold; None means all."""
    unsupported: frozenset[str] = frozenset()
    """What the target declares it does not support: step families, steps, traits (`program/unsupported.py`), OpInfo
    variants, and "sparse"."""
    transforms_program: bool = False
    """Whether a program runs as one function that `transform` is given, and not step by step."""
    lacks: frozenset[str] = frozenset()
    """Names of `FEATURES` that the device does not have. They decide how inputs are made; what follows from the missing
    ones alone is neither drawn nor judged: without storages, aliasing is judged by behaviour only."""
    probed: bool = False
    """Whether a probe finds out what it lacks before a run; otherwise it says so itself."""
    lazy: bool = False
    """Whether it computes only when a value is read, so that the kernels that it builds follow from all steps since."""
    rehearsals: int = 0
    """How often a subject runs before the run that is observed, on a device that answers repeated ones another way."""
    profile: Profile | None = None
    """Where it is loaded by a profile, `conformance.toml`."""
    _waits: bool | None = None
    siblings: tuple[str, ...] = ()
    """Specs of targets that differ from this one in one part only, such as the code generator: a finding is run on each
    to say whose bug it is."""
    without_backend: tuple[str, ...] = ()
    """Specs of targets that take the same path without the backend under test. A finding that fails there in the same
    way is PyTorch's own, and does not fail a run."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for old, new in RENAMED.items():
            if old in vars(cls):
                warnings.warn(f"{cls.__name__}.{old} is called {new} now", DeprecationWarning, stacklevel=2)
                setattr(cls, new, vars(cls)[old])
        for old in ("storages", "exposes_storages"):
            if isinstance(vars(cls).get(old), bool):
                warnings.warn(f"{cls.__name__}.{old} = False is lacks = {{'storages'}} now", DeprecationWarning, 2)
                cls.lacks = cls.lacks - {"storages"} if vars(cls)[old] else cls.lacks | {"storages"}
                delattr(cls, old)

    def __init__(self, argument: str = "") -> None:
        if argument:
            raise TargetError(f"target {self.name!r} takes no argument, but got {argument!r}: write just {self.name!r}")
        self.spec = self.name
        if self.lacks:
            self.without(self.lacks)

    @property
    def unsupported_variants(self) -> frozenset[str]:
        """Variants of op_db that it does not support. `backward` among `unsupported` is the step of a program where
        functions are transformed: a sample's gradients are taken outside of the function."""
        named = self.unsupported & VARIANTS.keys() - ({"backward"} if self.transforms_program else set())
        return named | (SPECIALS_BACKWARD.keys() if "backward" in named else set())

    @property
    def shows_values(self) -> bool:
        """Whether its tensors hold values, and not only metadata."""
        return "value" in self.oracles

    def prepare(self) -> None:
        """Import and register what the device needs; called before `torch.testing._internal` is imported.

        Raises TargetError when the device is not there."""

    def without(self, lacks: frozenset[str]) -> None:
        """This target is without these features: it is not judged by what follows from them. Raises TargetError."""
        unknown = sorted(lacks - {*FEATURES})
        if unknown:
            raise TargetError(
                f"target {self.spec!r} lacks the unknown feature {unknown[0]!r}: choose from {', '.join(FEATURES)}"
            )
        self.lacks = self.lacks | lacks
        for name in lacks:
            without = FEATURES[name].oracles
            self.oracles = self.oracles - without - ({SIGNIFICANT_STRIDE} if "stride" in without else set())
            self.unsupported = self.unsupported | FEATURES[name].steps
        if not self.reads_storages:
            self.oracles = self.oracles - {"storage"}

    @property
    def exposes_storages(self) -> bool:
        """Whether the device's tensors show their storages, and these can be read whole."""
        return "storages" not in self.lacks

    def send(self, tree: Any) -> Any:
        """The same tree with every CPU tensor on the device: same layout, same aliasing, `requires_grad` kept. Raises
        LayoutUnavailable."""
        return rebuild(tree, self.upload, self.lay_out)

    def lay_out(self, flat: torch.Tensor, like: torch.Tensor, alone: bool) -> torch.Tensor:
        """A tensor on the memory of the device tensor `flat` with the geometry of the CPU tensor `like`, which is
        `alone` where no other tensor lies there."""
        return lay_out(flat, like, self.lacks, alone)

    def upload(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies of dense 1-d CPU tensors on the device, each with a storage of its own."""
        return [flat.clone() if self.device.type == "cpu" else flat.to(self.device) for flat in flats]

    def fetch(self, tree: Any) -> Any:
        """The same tree on the CPU: each storage brought over once and whole, all in one call of `download`, which is
        asked for the device's own only; each tensor by itself where storages are not shown or cannot be read whole."""
        if self.lacks and not self.reads_storages:
            return map_tensors(tree, lambda tensor: tensor.detach().cpu())
        return rebuild(tree, self._brought, flatten=self.flatten)

    @property
    def reads_storages(self) -> bool:
        """Whether a whole storage can be read, with the bytes outside of all views."""
        return "storages" not in self.lacks and not {"set_", "as_strided"} <= self.lacks

    def flatten(self, tensor: torch.Tensor) -> torch.Tensor:
        """A 1-d tensor over all of the storage of a tensor of the device."""
        return whole_storage(tensor, by_set="set_" not in self.lacks)

    def _brought(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        own = iter(self.download([flat for flat in flats if flat.device.type == self.device.type]))
        return [next(own) if flat.device.type == self.device.type else flat.clone() for flat in flats]

    def key(self, tensor: torch.Tensor) -> int:
        """Equal for tensors that are known to share a storage."""
        return storage_key(tensor) if self.exposes_storages else id(tensor)

    def download(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies on the CPU of dense 1-d device tensors that each cover a whole storage. A lazy device computes all
        of them in one schedule."""
        return copied_to_host(flats)

    def synchronize(self) -> None:
        """Wait until the device has run all earlier calls. If torch cannot wait for this device, fetch a value from
        it."""
        if self.device.type == "cpu":
            return
        if self.can_be_waited_for():
            torch.accelerator.synchronize(self.device)
        else:
            torch.zeros(1, device=self.device).cpu()

    def can_be_waited_for(self) -> bool:
        """Whether torch can wait for the device. The first call of this method tries it, so it comes before any work
        whose errors must not be lost."""
        if self._waits is None:
            try:
                torch.accelerator.synchronize(self.device)
                self._waits = True
            except Exception:  # a device without streams, or no accelerator of torch's
                self._waits = False
        return self._waits

    def reset_state(self) -> None:
        """A subject begins: forget what earlier ones taught the device, where kernels of later ones depend on that."""

    @contextlib.contextmanager
    def kernels(self) -> Iterator[KernelCount]:
        """Count the kernels that run inside the block; `total` stays None where the target cannot count."""
        yield KernelCount()

    def entered(self) -> contextlib.AbstractContextManager[None]:
        """Surrounds all that is done on the target, moves and observations included: modes that a device pushes for
        good when it is loaded go here, so that torch CPU is not under them elsewhere."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Surrounds each step of a subject on the target, not the moves: a mode or a planted fault goes here."""
        yield

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What is called in place of the function that a subject is; only for targets with `transforms_program`."""
        raise NotImplementedError(f"target {self.name!r} does not transform functions")

    @contextlib.contextmanager
    def capture(self) -> Iterator[Capture | None]:
        """Count what the compiler behind `transform` is handed inside the block; None where that cannot be counted."""
        yield None

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

    def counted_calls(self) -> dict[str, dict[str, int]] | None:
        """Calls so far, by how they ran and by op: {"native": {op: n}, "decomposed": ..., "host": ..., "fallback":
        ...}; None when the target cannot tell."""
        return None

    def scheduled(self) -> int | None:
        """Graphs scheduled so far; None when the target cannot tell."""
        return None

    def script(self) -> str:
        """Python lines that a standalone script needs before it may use the device as `DEVICE`."""
        return f"DEVICE = {str(self.device)!r}"
