"""Runner of PyTorch's op_db against a target: `python -m conformance.opinfo_runner`, and `run` as a library call."""

import sys

from conformance.record.errors import UserError

if __name__ == "__main__":  # before the imports that take long
    from conformance.run.signals import ends_imports

    ends_imports("conformance opinfo")

try:
    from conformance.sources.opinfo.runner import Listener, Request, main, run
except UserError as error:  # the installed torch lacks a required symbol
    if __name__ != "__main__":
        raise
    print(f"opinfo_runner: {error}", file=sys.stderr)
    sys.exit(2)

__all__ = ["Listener", "Request", "main", "run"]

if __name__ == "__main__":
    sys.exit(main())
