"""PyTorch's op_db against a target: `python -m conformance.opinfo_runner`, and `run` for use as a library."""

import sys

if __name__ == "__main__":  # before all imports that take long
    from conformance.run.stop import ends_imports

    ends_imports("opinfo_runner")

from conformance.opinfo.runner import main, run

__all__ = ["main", "run"]

if __name__ == "__main__":
    sys.exit(main())
