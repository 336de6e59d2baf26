"""Escaping of text from targets: control characters become visible signs, without effect on terminals and pages.

Defines `escape_control_characters`, and `exit_code_of`, which prints the errors of every command with it.

The key insight: a control character becomes a sign and is not dropped, since it may be the finding.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable

from conformance.record.errors import UserError

_CONTROLS = r"[^\n\t -~\u00a0-\uffff\U00010000-\U0010ffff]"
_DIRECTIONS = r"[\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
_UNSEEN = re.compile(f"{_CONTROLS}|{_DIRECTIONS}")


def escape_control_characters(text: str) -> str:
    """Replace control characters and direction marks with visible signs, so that they have no effect where the text is
    pasted. Newlines and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSEEN.sub(_sign, text)


def _sign(match: re.Match[str]) -> str:
    character = match[0]
    if character < " ":
        return chr(0x2400 + ord(character))
    return "\u2421" if character == "\x7f" else f"\u27e8U+{ord(character):04X}\u27e9"


def exit_code_of(command: str, job: Callable[[], int]) -> int:
    """Run the job of a command and return its exit code; 2 for a UserError, which is printed as one sentence."""
    try:
        code = job()
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of the output has gone, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that Python's flush at exit does not fail
        return 1
    except UserError as error:
        print(f"{command}: {escape_control_characters(str(error))}", file=sys.stderr)
        return 2
