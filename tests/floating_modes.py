"""The floating-point mode of a thread, as callers of treefold may have set it: by C's library."""

import contextlib
import ctypes
import platform
import struct
import sys

import pytest

#: What fesetround takes, by processor.
_ROUNDINGS = {
    "x86_64": {"down": 0x400, "up": 0x800, "towards zero": 0xC00},
    "aarch64": {"down": 0x800000, "up": 0x400000, "towards zero": 0xC00000},
}
#: Where Linux's fenv_t has the word with the bits that flush subnormals, and those bits.
_FLUSHING = {"x86_64": (28, 0x8040), "aarch64": (0, 1 << 24)}
MODES = ("nearest", *_ROUNDINGS["x86_64"], "flushing")


def set_mode(mode):
    """Set a mode of ``MODES`` for this thread, from the default one."""
    processor = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if sys.platform == "win32" or processor not in _ROUNDINGS or (mode == "flushing" and sys.platform != "linux"):
        pytest.skip(f"this test cannot set the mode {mode} here")
    library = ctypes.CDLL(None)
    if mode != "flushing":
        assert library.fesetround(_ROUNDINGS[processor].get(mode, 0)) == 0
        return
    environment = ctypes.create_string_buffer(512)
    library.fegetenv(environment)
    at, bits = _FLUSHING[processor]
    environment[at : at + 4] = (int.from_bytes(environment[at : at + 4], "little") | bits).to_bytes(4, "little")
    library.fesetenv(environment)


def current_mode():
    """Return the bits of what this thread makes of numbers that show how it rounds, and whether it flushes."""
    ten = float(len(MODES) * 2)
    return struct.pack("3d", 1 / ten, -1 / ten, sys.float_info.min / 2)


@contextlib.contextmanager
def thread_mode(mode):
    library, before = ctypes.CDLL(None), ctypes.create_string_buffer(512)
    library.fegetenv(before)
    try:
        set_mode(mode)
        yield
    finally:
        library.fesetenv(before)
