"""Recorded calls: the distinct operator calls of models as data, their file, and each call as a program of one step.

Defines `RecordedCall`, `Calls` and `program_of`. A call has the operator, the exact geometry of its tensors, and its
other arguments, but no data. Each storage has the range of the values that were recorded, so that new random data keep
the call defined: an index stays inside its dimension, and a logarithm gets no negative number.
"""

from __future__ import annotations

import functools
import gzip
import json
import random
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from conformance.program.model import Input, Program, ProgramError, Storage, fresh_names
from conformance.program.steps import op_db
from conformance.program.steps.op import Json, Step
from conformance.program.steps.table import OPS
from conformance.record.errors import UserError
from conformance.record.files import write_atomic
from conformance.record.names import nearest
from conformance.standalone.torch_compat import DRAWS_NUMBERS

RECORDED = Path(__file__).parent.parent / "sources" / "models" / "calls.json.gz"
"""The recorded calls that the package has."""

SCHEMA = 1
KIND = "conformance calls"

RESULT = "result"
"""Name of the single result of a call; several results are `result_0`, `result_1`, ..."""

IN_PLACE, OUT, TENSOR, NOTHING, SEVERAL = "i", "o", "t", "-", "("
"""Letters of a call's results: the call writes its first argument, the call writes to `out`, a result is a tensor, and
a result is another value. The last one begins the letters of a tuple or list."""


class CallsError(UserError):
    """A file of recorded calls that cannot be read, or has no such model."""


@dataclass(frozen=True)
class RecordedCall:
    """One distinct call of an operator.

    `op` is an overload such as `add.Tensor`. `args` and `kwargs` are JSON as in a step. `storages` are triples of
    dtype, number of cells and range of values; `inputs` are tuples of storage, dtype, size, stride and offset.
    `results` has the letters of the results. `models` are the positions of the models that make the
    call."""

    op: str
    args: tuple[Json, ...]
    kwargs: Mapping[str, Json]
    storages: tuple[tuple[str, int, Mapping[str, Json]], ...]
    inputs: tuple[tuple[int, str, tuple[int, ...], tuple[int, ...], int], ...]
    results: str
    models: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The operator as the dispatcher writes it: aten::add.Tensor, and aten::exp for the default overload."""
        return f"aten::{self.op.removesuffix('.default')}"

    def key(self) -> str:
        """Return a text that is equal for calls that are the same but for the range of their values."""
        cells = [storage[:2] for storage in self.storages]
        return json.dumps([self.op, self.args, self.kwargs, cells, self.inputs])

    def to_json(self) -> dict[str, Json]:
        """Return the call as JSON, without its empty fields."""
        return {key: value for key, value in vars(self).items() if value or key in ("op", "args", "results")}

    @classmethod
    def from_json(cls, data: Json) -> RecordedCall:
        """Return the call from the output of `to_json`. Raises KeyError, TypeError or ValueError."""
        return cls(
            data["op"],
            tuple(data["args"]),
            data.get("kwargs", {}),
            tuple((str(dtype), int(cells), dict(values)) for dtype, cells, values in data.get("storages", ())),
            tuple(
                (int(at), str(dtype), tuple(size), tuple(stride), int(offset))
                for at, dtype, size, stride, offset in data.get("inputs", ())
            ),
            data["results"],
            tuple(data.get("models", ())),
        )


@dataclass
class Calls:
    """The distinct calls of some models, in the order of the recording. `made` counts the calls of each model, repeated
    ones included, and `excluded` the calls that no program can hold, by reason."""

    models: list[str] = field(default_factory=list)
    calls: list[RecordedCall] = field(default_factory=list)
    made: dict[str, int] = field(default_factory=dict)
    excluded: Counter[str] = field(default_factory=Counter)
    torch: str = field(default_factory=lambda: str(torch.__version__).partition("+")[0])

    def save(self, path: Path) -> None:
        """Write the calls as .json, or as .json.gz if the path ends so, with one call a line. Raises ReportError."""
        head = {"schema": SCHEMA, "kind": KIND, "torch": self.torch, "models": self.models, "made": self.made,
                "excluded": dict(self.excluded)}  # fmt: skip
        lines = ",\n".join(json.dumps(call.to_json(), separators=(",", ":")) for call in self.calls)
        text = f'{json.dumps(head, indent=1)[:-2]},\n "calls": [\n{lines}\n]}}\n'.encode()
        write_atomic(path, gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)

    @classmethod
    def load(cls, path: Path) -> Calls:
        """Read a file that `save` wrote. Raises CallsError."""
        try:
            raw = path.read_bytes()
            data = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
            if data["kind"] != KIND or data["schema"] != SCHEMA:
                raise ValueError(f"it has kind {data['kind']!r} and schema {data['schema']!r}")
            calls = [RecordedCall.from_json(call) for call in data["calls"]]
            result = cls(list(data["models"]), calls, dict(data["made"]), Counter(data["excluded"]), str(data["torch"]))
            if any(not 0 <= at < len(result.models) for call in calls for at in call.models):
                raise ValueError("a call is of a model that it does not name")
        except FileNotFoundError:
            raise CallsError(f"{path} does not exist: write it with `conformance record SCRIPT.py`") from None
        except (
            OSError,
            EOFError,
            zlib.error,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:
            fault = f"{type(error).__name__}: {error}"[:120]
            raise CallsError(f"{path} is no file of recorded calls ({fault}): record it again") from None
        return result

    def of(self, names: Sequence[str]) -> Calls:
        """Return the calls of these models, and only these models; all of them without a name. Raises CallsError."""
        for name in names:
            if name not in self.models:
                hint = nearest(name, self.models) or f"; choose from {', '.join(self.models)}"
                raise CallsError(f"there is no recorded model {name!r}{hint}")
        if not names:
            return self
        kept = [name for name in self.models if name in names]
        places = {at: kept.index(name) for at, name in enumerate(self.models) if name in names}
        mine = [replace(call, models=tuple(places[at] for at in call.models if at in places)) for call in self.calls]
        counts = {name: count for name, count in self.made.items() if name in kept}
        return replace(self, models=kept, calls=[call for call in mine if call.models], made=counts)

    def ordered(self) -> list[RecordedCall]:
        """Return the calls in the order in which they run: in random order, but the first call of each operator before
        the second call of any. So the beginning of a run covers all operators."""
        seen, shuffled = Counter[str](), list(self.calls)
        random.Random(0).shuffle(shuffled)
        ranked = []
        for call in shuffled:
            ranked.append((seen[call.op], call))
            seen[call.op] += 1
        return [call for _, call in sorted(ranked, key=lambda pair: pair[0])]


@functools.lru_cache(4)
def chosen(file: str, models: tuple[str, ...]) -> tuple[Calls, tuple[RecordedCall, ...]]:
    """Return the calls of these models in a file, and the same calls in the order in which they run. Raises
    CallsError."""
    calls = Calls.load(Path(file)).of(models)
    return calls, tuple(calls.ordered())


def is_recorded(program: Program) -> bool:
    """Whether the program is a recorded call, whose operator is the cause of each failure."""
    families = {OPS[step.op].family for step in program.steps}
    return bool(families) and families <= {op_db.RECORDED, op_db.BY_VALUES}


POOLS = ("max_pool2d_with_indices_backward.default", "max_pool3d_with_indices_backward.default")

ROWS = {IN_PLACE: "aten.inplace", OUT: "aten.out", TENSOR: "aten"}
"""Kinds of rows of the step table, by the letters of the results."""


def program_of(call: RecordedCall, seed: int) -> Program:
    """Return the call as a program of one step, on random data of this seed. Raises ProgramError."""
    names = fresh_names({})
    inputs = tuple(
        Input(next(names), at, dtype, size, stride, offset) for at, dtype, size, stride, offset in call.inputs
    )
    storages = tuple(
        Storage(dtype, cells, {"random": 1000 * seed + number, **values})
        for number, (dtype, cells, values) in enumerate(call.storages)
    )
    letters, out = call.results, tuple[str, ...]()
    row = ROWS.get(letters) or ("aten.many" if TENSOR in letters else "aten.query")
    if letters == TENSOR:
        out = (RESULT,)
    elif letters.startswith(SEVERAL) and TENSOR in letters:
        out = tuple(f"{'_' * (letter != TENSOR)}{RESULT}_{at}" for at, letter in enumerate(letters[1:]))
    step = Step(f"{row}:{call.op}", call.args, call.kwargs, out)
    written = [inputs[0].name] if letters == IN_PLACE and inputs else []
    undefined = [f"{fact} of {name}" for name in (*out, *written) for fact in ("value", "storage")]
    program = Program(
        storages, inputs, _prepared(step, call), undefined=tuple(undefined) if without_values(call.op) else ()
    )
    program.check()
    return program


def _prepared(step: Step, call: RecordedCall) -> tuple[Step, ...]:
    """Return the steps of a call. The backward of a maximum pool gets the indices of its forward, since random indices
    lie outside the windows, where devices need not look."""
    if call.op not in POOLS:
        return (step,)
    forward = f"aten.many:{call.op.replace('_backward', '')}"
    return (
        Step(forward, call.args[1:-1], {}, ("_values", "indices")),
        replace(step, args=(*call.args[:-1], {"t": "indices"})),
    )


@functools.cache
def without_values(op: str) -> bool:
    """Whether the values of an overload's results mean nothing: it draws random numbers, or leaves memory unwritten.
    Raises ProgramError for an unknown overload."""
    packet, _, overload = op.partition(".")
    try:
        operator: Any = getattr(getattr(torch.ops.aten, packet), overload)
    except AttributeError:
        raise ProgramError(f"this torch has no operator aten::{op}") from None
    return "empty" in packet or any(tag in operator.tags for tag in DRAWS_NUMBERS)
