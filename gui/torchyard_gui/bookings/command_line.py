"""The command that books the same: what the page does, for scripts and messages. No Qt."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime

from torchyard_core.booking.slots import name_slots
from torchyard_gui.bookings.dialogs.booking_form import written
from torchyard_gui.bridge.bookings_model import Seen


def command_for(gpus: Sequence[str], start: datetime, end: datetime, title: str, seen: Seen) -> str:
    """`torchyard book gpu-a:0-1 --from … --to … --zone … --title …`, quoted for a shell."""
    names = name_slots(gpus, seen.slots).replace(", ", ",")
    times = ["--from", written(start, seen.zone), "--to", written(end, seen.zone), "--zone", seen.zone]
    return shlex.join(["torchyard", "book", names, *times, "--title", title])
