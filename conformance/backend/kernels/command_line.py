"""The parser of the device's own commands: bad usage is one sentence and exit code 2."""

from __future__ import annotations

import argparse
from typing import NoReturn


class KernelsParser(argparse.ArgumentParser):
    """Parser that reports bad usage in one sentence. The harness has its own, which the device does not import."""

    def error(self, message: str) -> NoReturn:
        """Print the sentence and exit with code 2."""
        self.exit(2, f"{self.prog}: {message.removeprefix('argument ')}; --help lists the arguments\n")
