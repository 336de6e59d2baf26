"""The text of an error from outside, such as a device's driver. Saved scripts carry this module."""

from __future__ import annotations


def text_of(error: BaseException) -> str:
    """Return the text of an error from outside, such as a device's driver, as text that any file and terminal can hold.

    For example, a driver's message in another encoding has lone surrogates (`"\\udcff"`), which no UTF-8 file can hold,
    and an exception's `__str__` may raise.
    """
    try:
        text = str(error)
    except Exception as failure:
        text = f"(its text cannot be read: {type(failure).__name__})"
    return text.encode("utf-8", "backslashreplace").decode()
