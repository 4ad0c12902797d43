"""The XID errors that NVIDIA's driver has written to the kernel log since the host booted.

Sources: https://docs.kernel.org/admin-guide/abi-testing.html (/dev/kmsg), https://docs.nvidia.com/deploy/xid-errors/
"""

from __future__ import annotations

import os
import re

KERNEL_LOG = "/dev/kmsg"
OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 69})
"""XIDs that are caused by faulty programs rather than by the GPU."""
_XID = re.compile(rb"NVRM: Xid \(PCI:([0-9a-fA-F:]+)(?:\.\d)?\): (\d+)")
_RECORD = 16384
_LONGEST = 64 * 1024 * 1024


def xids(path: str = KERNEL_LOG) -> dict[str, list[int]] | None:
    """Returns the XIDs by the GPU's bus ID (`0000:3b:00`), oldest first, or None if the kernel log is not readable.

    XIDs that programs cause are excluded.
    """
    try:
        log = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    found: dict[str, list[int]] = {}
    try:
        for _ in range(_LONGEST // _RECORD):
            try:
                record = os.read(log, _RECORD)
            except BlockingIOError:
                break  # The end of the log is reached.
            except BrokenPipeError:
                continue  # The oldest records were overwritten while the log was being read.
            if not record:
                break
            for bus_id, code in _XID.findall(record):
                if int(code) not in OF_PROGRAMS:
                    found.setdefault(bus_id.decode().lower(), []).append(int(code))
    except OSError:
        return None
    finally:
        os.close(log)
    return found
