"""`Target`, the device or transform under test: one small class, and one file per target in `targets/`.

A target declares *beforehand* which oracles can judge it (`oracles`), which dtypes it holds and which parts are
unsupported (`declarations`). So an exception is never read as "unsupported". A target moves tensors (`device`),
transforms functions (`transforms_program`), or interprets metadata (no oracle "value"). Only the executor runs anything
on it. This module does not depend on programs, OpInfo or reports.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.declare.declaration import Declaration, unsupported
from conformance.declare.features import FEATURES
from conformance.declare.profile import Profile
from conformance.record.errors import TargetError
from conformance.record.measurements import COMPILED, EXTENTS, NOT_COMPILED, PARTLY, Measure
from conformance.record.names import ORACLES, SIGNIFICANT_STRIDE, SPECIALS_BACKWARD
from conformance.standalone.input_layout import lay_out
from conformance.standalone.moving import copied_to_host, map_tensors, rebuild, storage_key, whole_storage


@dataclass
class Capture:
    """Input of a compiler inside a `Target.capture()` block: number of graphs, of ops in them, and of graph breaks.

    `lines` are the lines of the transformed function whose ops the compiler received, if the target reports them.
    `after` has the number of graphs after each step of the subject."""

    graphs: int = 0
    ops: int = 0
    breaks: int = 0
    lines: set[int] = field(default_factory=set)
    after: list[int] = field(default_factory=list)

    def counting(self, function: Callable[..., Any], reached: Callable[[], bool] = lambda: True) -> Callable[..., Any]:
        """Return the function with its calls counted, those of which `reached` says that the transform ran them."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            inside = reached()
            self.graphs, self.ops = self.graphs + inside, self.ops + inside
            return function(*args, **kwargs)

        return counted

    @property
    def extent(self) -> str:
        """COMPILED, PARTLY or NOT_COMPILED."""
        return NOT_COMPILED if not self.ops else PARTLY if self.breaks else COMPILED


SPARSE = "sparse"
"""A trait of op_db's samples that a target may declare as unsupported: a tensor that is not strided."""


EAGER_ONLY = {"step": frozenset({"conversions", "dtypes"}), "trait": frozenset({"a dtype without a kernel"})}
"""Step families and traits of calls whose answer PyTorch leaves to the device: torch CPU has no kernel for a dtype, or
a float is outside of an integer's range."""

ZERO = torch.zeros(1)
"""A number on the CPU, made before the modes of any target."""


class Target:
    """A PyTorch device under test. Subclass it, set `name` and `device`, and override the methods that differ.

    `argument` is the text behind the colon in the target's spec (`device:cuda` -> `cuda`), or the empty string.
    """

    name: str
    device: torch.device = torch.device("cpu")
    oracles: frozenset[str] = frozenset(ORACLES) - {"version"}
    measures: tuple[Measure, ...] = ()
    """The counts that the target offers beside its answers. A device reports its own in `counters`."""
    dtypes: frozenset[torch.dtype] | None = None
    """The dtypes that the device can hold; None means all."""
    declarations: tuple[Declaration, ...] = ()
    """The parts that are unsupported, each with a reason, by `declare.declaration.unsupported`. The declarations of the
    target's profile and of its missing features are added to those of its class."""
    transforms_program: bool = False
    """Whether a program runs as one function, passed through `transform`, and not step by step."""
    on: str = "cpu"
    """Name of the device of the tensors of a transformed function."""
    compiles: bool = False
    """Whether the target compiles Python code."""
    preload: tuple[str, ...] = ()
    """Modules, and functions as `module:function`, that a fork server loads for all workers. None may start a
    thread."""
    draws_functions: bool = False
    """Whether programs have topics of functions, too (`program/steps/functions.py`). Their factories name no device."""
    follows_eager: bool = False
    """Whether the target must answer `EAGER_ONLY` calls as torch CPU does. PyTorch leaves these answers to each
    device."""
    differentiates: bool = False
    """Whether `transform` changes gradients. A drawn program then ends with `backward`, outside of the function."""
    lacks: frozenset[str] = frozenset()
    """Names of `FEATURES` that the device does not have. They decide how to make inputs. Steps and oracles that depend
    on a missing feature are neither drawn nor judged. For example, without storages, the judge compares aliasing by
    behaviour only."""
    probed: bool = False
    """Whether a probe before the run finds the missing features. If False, the target's class declares them."""
    saves_graphs: bool = False
    """Whether later processes load compiled graphs."""
    lazy: bool = False
    """Whether the target computes only when a value is read. The kernels that it builds then depend on all steps since
    the last read."""
    rehearsals: int = 0
    """Number of runs of a subject before the observed run, for a device that runs repeated subjects in another way."""
    profile: Profile | None = None
    """The profile, `conformance.toml`, that loaded the target; None if no profile did."""
    of_pytorch: str = ""
    """The part of PyTorch itself that this target runs, as the index of reported bugs names it (`record/upstream.py`);
    empty for a device and for a compiler, whose findings have a culprit."""
    _waits: bool | None = None
    relations: tuple[str, ...] = ()
    """Names of the metamorphic relations (`program/relations.py`) that judge the target in place of torch CPU; empty
    for a target that is compared with torch CPU."""
    siblings: tuple[str, ...] = ()
    """Specs of targets that differ from this one in one part only, such as the code generator. The harness reruns each
    finding on each of them, to determine whose bug it is."""
    without_backend: tuple[str, ...] = ()
    """Specs of targets that take the same path without the backend under test. A finding that fails there in the same
    way is PyTorch's own, and does not fail a run."""

    def __init__(self, argument: str = "") -> None:
        if argument:
            raise TargetError(f"target {self.name!r} takes no argument, but got {argument!r}: write just {self.name!r}")
        self.spec = self.name
        if self.transforms_program:
            self.measures += EXTENTS
        if self.lacks:
            self.without(self.lacks)

    @property
    def unsupported_variants(self) -> frozenset[str]:
        """Variants of op_db that the target does not support."""
        named = self.unsupported("variant")
        return named | (SPECIALS_BACKWARD.keys() if "backward" in named else set())

    def unsupported(self, key: str) -> frozenset[str]:
        """Return the names of unsupported parts. `key` is a key of a scope: "step" (families included), "state",
        "trait" or "variant"."""
        declared = frozenset(
            name for declaration in self.declarations if declaration.holds for name in getattr(declaration.scope, key)
        )
        return declared if self.follows_eager else declared | EAGER_ONLY.get(key, frozenset())

    @property
    def shows_values(self) -> bool:
        """Whether the target's tensors hold values, and not only metadata."""
        return "value" in self.oracles

    def prepare(self) -> None:
        """Import and register the device's modules; called before `torch.testing._internal` is imported.

        Raises TargetError if the device is not available.
        """

    def without(self, lacks: frozenset[str]) -> None:
        """Declare that this target lacks these features, and remove the oracles and steps that depend on them. Raises
        TargetError for an unknown feature."""
        unknown = sorted(lacks - {*FEATURES})
        if unknown:
            raise TargetError(
                f"target {self.spec!r} lacks the unknown feature {unknown[0]!r}: choose from {', '.join(FEATURES)}"
            )
        self.lacks = self.lacks | lacks
        for name in lacks:
            without = FEATURES[name].oracles
            self.oracles = self.oracles - without - ({SIGNIFICANT_STRIDE} if "stride" in without else set())
            if FEATURES[name].steps:
                self.declarations += (unsupported(f"the device lacks {name}", step=FEATURES[name].steps),)
        if not self.reads_storages:
            self.oracles = self.oracles - {"storage"}

    @property
    def exposes_storages(self) -> bool:
        """Whether the device's tensors expose their storages."""
        return "storages" not in self.lacks

    def send(self, tree: Any) -> Any:
        """Return the tree with every CPU tensor on the device, with the same layout, aliasing and `requires_grad`.
        Raises LayoutUnavailable."""
        return rebuild(tree, self.upload, self.lay_out)

    def lay_out(self, flat: torch.Tensor, like: torch.Tensor, alone: bool) -> torch.Tensor:
        """Return a tensor on the memory of the device tensor `flat` with the geometry of the CPU tensor `like`. `alone`
        says that no other tensor uses that memory."""
        return lay_out(flat, like, self.lacks, alone)

    def upload(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy dense 1-d CPU tensors to the device, each into a new storage."""
        return [flat.clone() if self.device.type == "cpu" else flat.to(self.device) for flat in flats]

    def fetch(self, tree: Any) -> Any:
        """Return the tree on the CPU. Each storage is copied once and whole, all in one call of `download`, which
        receives only tensors of the device. If storages are not exposed or cannot be read whole, each tensor is copied
        separately."""
        if self.lacks and not self.reads_storages:
            return map_tensors(tree, lambda tensor: tensor.detach().cpu())
        return rebuild(tree, self._brought, flatten=self.flatten)

    @property
    def reads_storages(self) -> bool:
        """Whether a whole storage can be read, with the bytes outside all views."""
        return "storages" not in self.lacks and not {"set_", "as_strided"} <= self.lacks

    def flatten(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a 1-d tensor over the whole storage of a device tensor."""
        return whole_storage(tensor, by_set="set_" not in self.lacks)

    def _brought(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        own = iter(self.download([flat for flat in flats if flat.device.type == self.device.type]))
        return [next(own) if flat.device.type == self.device.type else flat.clone() for flat in flats]

    def key(self, tensor: torch.Tensor) -> int:
        """Return a key that is equal for tensors known to share a storage."""
        return storage_key(tensor) if self.exposes_storages else id(tensor)

    def download(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy dense 1-d device tensors, which each cover a whole storage, to the CPU. A lazy device computes all of
        them in one schedule."""
        return copied_to_host(flats)

    def is_lost(self) -> bool:
        """Whether the device cannot hold a number any more. The first attempt may raise the error of an earlier call,
        so a device is lost if two attempts fail."""
        for _ in range(2):
            with contextlib.suppress(Exception), self.entered():
                self.upload([ZERO])[0].cpu()
                return False
        return True

    def synchronize(self) -> None:
        """Wait until the device has run all earlier calls. If torch cannot wait for it, fetch a value."""
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
        """Forget state that earlier subjects left in the device, if kernels of later subjects depend on it. Called
        before each subject."""

    def saving_graphs(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that saves compiled graphs and loads its own."""
        return contextlib.nullcontext()

    def entered(self) -> contextlib.AbstractContextManager[None]:
        """Return a context around all work on the target, moves and observations included. If loading the device pushes
        modes permanently, activate them here, so that torch CPU does not run under them."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Context around each step of a subject on the target, without the moves: for a mode or a planted fault."""
        yield

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that is called in place of the subject's function; only for targets with
        `transforms_program`."""
        raise NotImplementedError(f"target {self.name!r} does not transform functions")

    @contextlib.contextmanager
    def capture(self) -> Iterator[Capture | None]:
        """Count the graphs and ops that the compiler behind `transform` receives inside the block; yields None if it
        cannot be counted."""
        yield None

    def attempt(self, step: Callable[..., Any], *tensors: torch.Tensor) -> Any:
        """Within a whole program, call a step that must raise, and return the exception, or "no error"."""
        try:
            step(*tensors)
        except Exception as error:
            return error
        return "no error"

    def environment(self) -> dict[str, str]:
        """Facts about the target for a report: versions, compiler, renderer."""
        return {"torch": torch.__version__}

    def counters(self) -> Mapping[str, Any]:
        """Return the totals so far of the measures that the device counts, by name: a number, or a number by
        operator."""
        return {}

    def script(self) -> str:
        """Python lines that a standalone script needs before it may use the device as `DEVICE`."""
        return f"DEVICE = {str(self.device)!r}"


class TransformingTarget(Target):
    """A target that transforms functions, and counts in `_seen` the calls that the transform runs."""

    transforms_program = True
    _seen = Capture()

    @contextlib.contextmanager
    def capture(self) -> Iterator[Capture]:
        """Count the calls inside the transform."""
        self._seen = Capture()
        yield self._seen
