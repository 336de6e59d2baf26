"""Write `conformance/sources/modules/rows.json`: the entries of torch's `module_db` and `optim_db`, for the commands.

The process that plans a run imports no torch, so it needs the names beforehand. Run again with a newer torch:

    python -m scripts.module_table
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from conformance.record.files import write_atomic
from conformance.standalone.torch_compat import module_infos, optimizer_infos

FILE = Path(__file__).parent.parent / "conformance" / "sources" / "modules" / "rows.json"


def table() -> dict[str, Any]:
    """Return the rows: the dtypes and modes of each module, the forms of each optimizer with dense gradients."""
    name = lambda dtype: str(dtype).removeprefix("torch.")  # noqa: E731
    modules = {
        key: {
            "dtypes": sorted(map(name, info.dtypes)),
            "modes": ["train", "eval"] if info.train_and_eval_differ else ["train"],
        }
        for key, info in module_infos().items()
    }
    optimizers = {
        key: ["step", *(form for form in ("foreach", "fused") if form in info.supported_impls)]
        for key, info in optimizer_infos().items()
        if not info.only_supports_sparse_grads
    }
    return {
        "torch": torch.__version__.partition("+")[0],
        "modules": dict(sorted(modules.items())),
        "optimizers": dict(sorted(optimizers.items())),
    }


def dumps(rows: dict[str, Any]) -> str:
    """Return the file's text, one row a line."""
    parts = [f'"torch": {json.dumps(rows["torch"])}']
    for key in ("modules", "optimizers"):
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows[key].items())
        parts.append(f"{json.dumps(key)}: {{\n{lines}\n }}")
    return "{\n " + ",\n ".join(parts) + "\n}\n"


if __name__ == "__main__":
    write_atomic(FILE, dumps(table()))
