"""The command `python -m conformance.mutants`: how soon the fuzzer finds each planted fault, and how small it gets."""

import sys

from conformance.selftest.mutants import MutantTarget, main

__all__ = ["MutantTarget", "main"]

if __name__ == "__main__":
    sys.exit(main())
