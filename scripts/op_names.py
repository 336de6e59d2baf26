"""Record the names of op_db's entries under the running torch, for declarations that name ops of other versions.

    python -m scripts.op_names            write the names of this minor version
    python -m scripts.op_names --check    exit code 1 if the record of this version is stale

The file is conformance/record/op_names.json: for each entry, the tested minor versions of torch that have it.
`nox -s versions` runs the script under each version.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Mapping, Sequence

from conformance.record import op_names, versions


def renewed(names: Mapping[str, Sequence[str]], version: str, present: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the record with these names as the entries of the version."""
    record = {
        name: tuple(sorted({*names.get(name, ())} - {version} | ({version} if name in present else set()), key=_number))
        for name in sorted({*names, *present})
    }
    return {name: has for name, has in record.items() if has}


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the record is stale")
    args = parser.parse_args(arguments)
    from conformance.sources.opinfo import catalog

    version, present = versions.minor(), [entry.name for entry in catalog.entries()]
    if args.check:
        changed = {*present} ^ {*op_names.recorded(version)}
        if changed:
            print(f"stale for torch {version}, run python -m scripts.op_names: {', '.join(sorted(changed))}")
        return int(bool(changed))
    names = renewed(op_names.versions_of() if op_names.DATA.exists() else {}, version, present)
    lines = (f" {json.dumps(name)}: {json.dumps(' '.join(has))}" for name, has in names.items())
    op_names.DATA.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{op_names.DATA}: {len(present)} entries in torch {version}, {len(names)} in all versions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
