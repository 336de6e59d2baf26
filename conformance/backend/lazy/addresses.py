"""The address space that gives every storage its own data pointer.

torch compares data pointers to detect overlap between tensors. Pointers must therefore be unique and differ by offsets,
but no code may read through them.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys

from ..runtime import first_use
from ..runtime.lock import LOCK


def size_class(nbytes: int) -> int:
    """The size class that holds `nbytes` bytes."""
    return max(64, 1 << (max(nbytes, 1) - 1).bit_length())


class AddressSpace:
    """Unique addresses in reserved, unreadable memory, so that pointer arithmetic and overlap checks are correct.

    A size class is a power of two, of at least 64 bytes. `release` makes an address available again.
    """

    REGION = 1 << 40

    def __init__(self) -> None:
        self._free: dict[int, list[int]] = {}
        self._next = self._end = 0

    def reserve(self, size: int) -> int:
        """The address of unused bytes of a size class; `release` takes both."""
        if freed := self._free.get(size):
            with contextlib.suppress(IndexError):  # another thread was faster
                return freed.pop()
        with LOCK:
            if self._next + size > self._end:
                first_use.begin()  # the address space is empty until the first storage
                self._next, length = _map_unreadable(size, self.REGION)
                self._end = self._next + length
            address = self._next
            self._next += size
            return address

    def release(self, address: int, size: int) -> None:
        """Make an address available again. Finalizers call this, so it takes no lock."""
        self._free.setdefault(size, []).append(address)


def _map_unreadable(least: int, most: int) -> tuple[int, int]:
    """(address, length) of new PROT_NONE memory, as near to `most` bytes as the process's limits allow.

    Raises MemoryError if fewer than `least` bytes of address space are left.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t]
    no_reserve = {"linux": 0x4000, "darwin": 0x40}.get(sys.platform, 0)
    length = max(least, most)
    while length >= least:
        address = libc.mmap(None, length, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve, -1, 0)
        if address != ctypes.c_void_p(-1).value:
            return address, length
        length = length >> 2 if length > least else 0
        length = max(length, least) if length else 0
    raise MemoryError(f"tiny: no address space left for a storage of {least} bytes")


ADDRESSES = AddressSpace()
