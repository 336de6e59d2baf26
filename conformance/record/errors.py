"""Errors that the user can correct: each is one sentence with the problem, its place, and the action to take.

A command catches only `UserError`, prints its sentence and exits with 2, so a traceback is always a fault of this
package.
"""

from __future__ import annotations


class UserError(Exception):
    """One sentence for the user; commands print it and exit with 2."""


class TargetError(UserError):
    """The target cannot be used."""


class UsageError(UserError):
    """The requested case does not exist or cannot be displayed."""


class ReportError(UserError):
    """A report file cannot be read or written."""


class DeviceLost(BaseException):
    """An error has left the device unusable for the rest of the process, as CUDA's failed assertions do. Its text is
    that error. Not an Exception, so that no step of a program can catch it."""
