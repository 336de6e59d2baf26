"""`TargetFacts`: what a target supports, measures and compares, as plain data.

Everything that draws, samples, judges or reports reads `target.facts`, and needs no device for it. For example, a
device that holds three dtypes, and whose tensors show no storages:

    facts = TargetFacts(dtypes=frozenset({torch.float32, torch.int64, torch.bool}), lacks=frozenset({"storages"}))

A target states its facts *beforehand*, so that an exception is never read as "unsupported". They are frozen: what a
spec, a profile or a probe adds makes new facts, by `dataclasses.replace` or `without`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from conformance.declare.declaration import Declaration
from conformance.declare.features import FEATURES
from conformance.declare.profile import Profile
from conformance.declare.tolerances import DeclaredTolerance
from conformance.record.measurements import EXTENTS, Measure
from conformance.record.names import ORACLES, SIGNIFICANT_STRIDE


@dataclass(frozen=True, kw_only=True)
class TargetFacts:
    """What a target supports, measures and compares. The defaults are those of a plain device that lacks nothing."""

    oracles: frozenset[str] = frozenset(ORACLES) - {"version"}
    """The properties to compare, without those that depend on a missing feature. Without "value", the tensors of the
    target hold metadata only."""
    dtypes: frozenset[torch.dtype] | None = None
    """The dtypes that the device can hold; None means all."""
    declarations: tuple[Declaration, ...] = ()
    """The parts that are unsupported, each with a reason, by `declare.declaration.unsupported`."""
    lacks: frozenset[str] = frozenset()
    """Names of `FEATURES` that the device does not have. They decide how to make inputs, and which steps and oracles
    are left out. For example, without storages, the judge compares aliasing by behaviour only."""
    probed: bool = False
    """Whether a probe before the run finds the missing features. If False, `lacks` has them all."""
    tolerances: tuple[DeclaredTolerance, ...] = ()
    """The tolerances of a target that computes with less precision than torch CPU. What passes by them is counted."""
    profile: Profile | None = None
    """The profile, `conformance.toml`, that loaded the target; None if no profile did."""
    follows_eager: bool = False
    """Whether the target must answer as torch CPU does where PyTorch leaves the answer to each device: a call for whose
    dtype torch CPU has no kernel, or a float outside of an integer's range."""
    measures: tuple[Measure, ...] = ()
    """The counts that the target offers beside its answers. A device reports its own in `counters`."""

    transforms_program: bool = False
    """Whether a program runs as one function, passed through `transform`, and not step by step."""
    on: str = "cpu"
    """Name of the device of the tensors of a transformed function."""
    compiles: bool = False
    """Whether `transform` compiles Python code."""
    saves_graphs: bool = False
    """Whether later processes load compiled graphs."""
    differentiates: bool = False
    """Whether `transform` changes gradients. A program then ends with `backward`, outside of the function."""
    lazy: bool = False
    """Whether the target computes only when a value is read. The kernels that it builds then depend on all steps since
    the last read."""
    survives_fork: bool = False
    """Whether a fork of a process that has used the device can use it."""
    rehearsals: int = 0
    """Number of runs of a subject before the observed run, for a device that runs repeated subjects in another way."""
    relations: tuple[str, ...] = ()
    """Names of the metamorphic relations (`program/relations.py`) that judge the target in place of torch CPU; empty
    for a target that is compared with torch CPU."""

    preload: tuple[str, ...] = ()
    """Modules, and functions as `module:function`, that a fork server loads for all workers. None may start a
    thread."""
    of_pytorch: str = ""
    """The part of PyTorch itself that this target runs, as the index of reported bugs names it (`record/upstream.py`);
    empty for a device and for a compiler, whose findings have a culprit."""
    siblings: tuple[str, ...] = ()
    """Specs of targets that differ from this one in one part only, such as the code generator. The harness reruns each
    finding on each of them, to determine whose bug it is."""
    without_backend: tuple[str, ...] = ()
    """Specs of targets that take the same path without the backend under test. A finding that fails there in the same
    way is PyTorch's own, and does not fail a run."""

    def __post_init__(self) -> None:
        # Features and the transform imply oracles and measures. Derived here, so that no target can forget them, and so
        # that `replace` derives them again. `engine/loading.py` refuses an unknown feature.
        lost = {oracle for name in self.lacks & FEATURES.keys() for oracle in FEATURES[name].oracles}
        lost |= {SIGNIFICANT_STRIDE} if "stride" in lost else set()
        lost |= set() if self.reads_storages else {"storage"}
        object.__setattr__(self, "oracles", self.oracles - lost)
        if self.transforms_program:
            object.__setattr__(self, "measures", tuple(dict.fromkeys((*self.measures, *EXTENTS))))

    def without(self, features: Iterable[str]) -> TargetFacts:
        """Return the facts of a device that lacks these features, too."""
        return replace(self, lacks=self.lacks.union(features))

    @property
    def shows_values(self) -> bool:
        """Whether the target's tensors hold values, and not only metadata."""
        return "value" in self.oracles

    @property
    def exposes_storages(self) -> bool:
        """Whether the device's tensors expose their storages."""
        return "storages" not in self.lacks

    @property
    def reads_storages(self) -> bool:
        """Whether a whole storage can be read, with the bytes outside all views."""
        return self.exposes_storages and not {"set_", "as_strided"} <= self.lacks
