"""The command `conformance mutants`: programs until the fuzzer finds each planted fault, and their minimal
size.
"""

import sys

from conformance.record.errors import UserError

try:
    from conformance.selftest.hunting import main
except UserError as error:  # the installed torch lacks a required symbol
    if __name__ != "__main__":
        raise
    print(f"conformance mutants: {error}", file=sys.stderr)
    sys.exit(2)

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
