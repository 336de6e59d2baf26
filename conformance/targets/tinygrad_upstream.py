"""tinygrad's own PyTorch backend, `tinygrad-upstream:PATH`, from a checkout of tinygrad; it is in no release.

Its tensors expose no storages, so aliasing is tested only by behaviour: a write through one view must show in the
others. Its import compiles a C++ extension.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

import conformance
from conformance.declare.declaration import unsupported
from conformance.engine.registration import features_of
from conformance.engine.target import Target, TargetFacts
from conformance.record.errors import TargetError
from conformance.record.names import ORACLES

BACKEND = Path("extra", "torch_backend", "backend.py")

NOT_WRITTEN = frozenset(
    {
        "index_copy_",
        "index_reduce_",
        "index_fill_",
        "index_add_",
        "masked_scatter_",
        "put_",
        "scatter_.reduce",
        "scatter_reduce_",
        "logical_not_",
        "gather.out",
        "masked_select.out",
        "matmul.out",
        "mm.out",
        "floor_divide.out",
        "as_strided_",
        "abs_",
        "squeeze_",
        "squeeze_.dim",
    }
)
"""Steps for which it registers no kernel: PyTorch says "Could not run 'aten::...' from the 'tiny' backend", and of
`squeeze_` "Cannot access storage of OpaqueTensorImpl".
"""


def choose_compiler() -> None:
    """Find a C compiler for tinygrad as the tiny device does, without importing that device, which has the
    same name.
    """
    place = Path(conformance.__file__).parent / "backend" / "runtime" / "toolchain.py"
    spec = importlib.util.spec_from_file_location("tinygrad_toolchain", place)
    assert spec is not None and spec.loader is not None
    toolchain = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = toolchain
    spec.loader.exec_module(toolchain)
    toolchain.ensure_compiler()


class TinygradUpstreamTarget(Target):
    name = "tinygrad-upstream"
    facts = TargetFacts(
        oracles=frozenset(ORACLES),
        dtypes=frozenset(
            {
                torch.float32,
                torch.float64,
                torch.float16,
                torch.bool,
                torch.uint8,
                torch.int8,
                torch.int16,
                torch.int32,
                torch.int64,
            }
        ),
        declarations=(
            unsupported("it has no complex numbers", step=("view_as_complex", "view_as_real")),
            unsupported(
                "its tensors cannot change their storage or graph", step=("set_data", "detach_", "is_contiguous")
            ),
            unsupported(
                "no kernel: PyTorch says \"Could not run 'aten::...' from the 'tiny' backend\"", step=NOT_WRITTEN
            ),
        ),
        probed=True,
        lazy=True,
    )

    def __init__(self, argument: str = "") -> None:
        super().__init__()
        path, _, without = argument.partition(",without=")
        if not path:
            raise TargetError("target 'tinygrad-upstream' needs a checkout of tinygrad: write tinygrad-upstream:PATH")
        self.checkout = Path(path).expanduser().resolve()
        self.spec = f"{self.name}:{argument}"
        if without:
            self.facts = replace(self.facts.without(features_of(without)), probed=False)

    def prepare(self) -> None:
        """Import the backend and tinygrad from the checkout. Raises TargetError."""
        if not (self.checkout / BACKEND).is_file():
            raise TargetError(f"{self.checkout} is no checkout of tinygrad with a PyTorch backend: it has no {BACKEND}")
        other = sys.modules.get("tinygrad")
        if other is not None and not str(other.__file__).startswith(str(self.checkout)):
            raise TargetError(
                f"target {self.spec!r} needs a process of its own: another tinygrad is already loaded "
                f"from {other.__file__}"
            )
        sys.path.insert(0, str(self.checkout))
        os.environ.setdefault("TINY_BACKEND", "1")
        if not os.environ.get("DEV"):
            os.environ["DEV"] = "CPU"
        try:
            choose_compiler()
            __import__("extra.torch_backend.backend")
            self.device = torch.device("tiny")
            (torch.ones(2).to(self.device) * 3).cpu()
        except Exception as error:  # a missing C++ compiler, an unsupported torch, or no C compiler for kernels
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise TargetError(
                f"tinygrad's PyTorch backend in {self.checkout} cannot be built or used with torch "
                f"{torch.__version__}: {reason}; it needs g++, ninja and Python's headers"
            ) from error

    def script(self) -> str:
        """Return the import of the backend from the checkout."""
        return (
            f"import sys\nsys.path.insert(0, {str(self.checkout)!r})\nimport extra.torch_backend.backend\n"
            'DEVICE = "tiny"'
        )
