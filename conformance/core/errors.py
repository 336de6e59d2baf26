"""Errors that are the user's to mend: each is one sentence saying what is wrong, where, and what to do.

The key insight: a command catches `UserError` alone, prints its sentence and exits with 2, so a traceback is always a
fault of this package.
"""

from __future__ import annotations


class UserError(Exception):
    """One sentence for the user; commands print it and exit with 2."""


class TargetError(UserError):
    """The target cannot be used."""


class UsageError(UserError):
    """What was asked for names nothing, or cannot be shown."""


class ReportError(UserError):
    """A report file cannot be read or written."""
