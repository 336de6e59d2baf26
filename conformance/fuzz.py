"""The command `python -m conformance.fuzz`: draw programs, run them on a target and on torch CPU, show what differs."""

import sys

from conformance.fuzzing.command import main

if __name__ == "__main__":
    sys.exit(main())
