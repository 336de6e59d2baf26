"""PyTorch's op_db against a target: `python -m conformance.opinfo_runner`, and `run` for use as a library."""

import sys

from conformance.opinfo.runner import main, run

__all__ = ["main", "run"]

if __name__ == "__main__":
    sys.exit(main())
