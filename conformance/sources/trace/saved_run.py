"""The results of a traced run in a file, for two runs that cannot share a process: of two machines, or of two versions.

    conformance trace --save run.safetensors train.py cuda
    conformance trace --against run.safetensors train.py mydevice

The file has the format of safetensors: the length of a header, the header as JSON, and the bytes of all tensors one
after the other. The name of a tensor tells where the run made it: phase, operator, line, the number of this call among
those of the operator at the line, and the result or argument. So two runs are aligned although one of them has further
calls, for example since its device has other fused operators.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from conformance.record.errors import UserError

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
"""Names of dtypes in the format. It has none for complex numbers, which are stored as pairs."""


class RunWriter:
    """Writes the tensors of a run. Their bytes go to a file beside the final one, since the header comes first."""

    def __init__(self, path: Path) -> None:
        self.path, self.header, self.size = path, dict[str, Any](), 0
        self._data = path.with_name(f"{path.name}.part")
        try:
            self._file = self._data.open("wb")
        except OSError as error:
            raise UserError(f"--save {path} cannot be written: {error.strerror}") from error

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Add a tensor of the CPU. Raises TypeError for a dtype that the format does not have."""
        tensor = _as_real(tensor)
        if tensor.dtype not in DTYPES:
            raise TypeError(f"{tensor.dtype} cannot be saved")
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        place = [self.size, self.size + len(data)]
        self.header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
        self.size += self._file.write(data)

    def close(self, facts: Mapping[str, str]) -> None:
        """Write the file, with facts about the run. Raises UserError."""
        self._file.close()
        header = json.dumps({"__metadata__": dict(facts), **self.header}).encode()
        whole = self.path.with_name(f"{self.path.name}.tmp")
        try:
            with whole.open("wb") as file, self._data.open("rb") as data:
                file.write(len(header).to_bytes(8, "little") + header)
                shutil.copyfileobj(data, file)
            whole.replace(self.path)  # a write that fails must not damage the file of an earlier run
        except OSError as error:
            raise UserError(f"--save {self.path} cannot be written: {error.strerror}") from error
        finally:
            whole.unlink(missing_ok=True)
            self._data.unlink(missing_ok=True)


class SavedRun:
    """The tensors of a saved run, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        """Read the header. Raises UserError for anything but a saved run."""
        self.path, self.compared = path, 0
        try:
            self._file = path.open("rb")
            size = int.from_bytes(self._file.read(8), "little")
            if size > path.stat().st_size:
                raise ValueError("no header")
            self.header: dict[str, Any] = json.loads(self._file.read(size))
            self.facts: dict[str, str] = self.header.pop("__metadata__")
            self.facts["device"]  # written by every trace
            ends = [row["data_offsets"][1] for row in self.header.values()]
            if path.stat().st_size != 8 + size + max(ends, default=0):
                raise ValueError("the end is missing")
        except OSError as error:
            raise UserError(f"--against {path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise UserError(f"--against {path} is no run that `conformance trace --save` wrote") from error
        self._start = 8 + size

    def tensor(self, name: str, like: torch.Tensor) -> torch.Tensor | None:
        """Return a tensor of the run with the dtype of another one; None if the run has no tensor of this name, dtype
        and shape."""
        row, real = self.header.get(name), _as_real(like)
        if row is None or (row["dtype"], row["shape"]) != (DTYPES.get(real.dtype), list(real.shape)):
            return None
        first, end = row["data_offsets"]
        self._file.seek(self._start + first)
        data = bytearray(self._file.read(end - first))
        flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        tensor = flat.view(real.dtype).reshape(real.shape)
        self.compared += 1
        return torch.view_as_complex(tensor) if like.is_complex() else tensor


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
