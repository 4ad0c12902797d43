"""What slots and racks say of who uses a host now, ready to be translated."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from torchyard_gui.canvas import labels
from torchyard_gui.canvas.racks.content import RackContent

translate = QCoreApplication.translate


def holder(user: str, gpu: int) -> str:
    """In a slot, in two lines."""
    if not user:
        return translate("Canvas", "in use\nGPU {gpu}").format(gpu=gpu)
    return translate("Canvas", "{user}\nuses GPU {gpu}").format(user=user, gpu=gpu)


def slot_sentence(rack: RackContent, gpu: int) -> str:
    """A slot without a chip, for its tool tip."""
    if gpu in rack.busy:
        user = rack.users.get(gpu, "")
        if user:
            return translate("Canvas", "GPU {gpu} of {host} is used by {user}: it is not free").format(
                gpu=gpu, host=rack.key, user=user
            )
        return translate("Canvas", "GPU {gpu} of {host} is in use: it is not free").format(gpu=gpu, host=rack.key)
    if not rack.use_known:
        return translate("Canvas", "GPU {gpu} of {host}: nobody knows now whether it is free").format(
            gpu=gpu, host=rack.key
        )
    return translate("Canvas", "GPU {gpu} of {host} is free").format(gpu=gpu, host=rack.key)


def rack_sentence(rack: RackContent, use: str) -> str:
    """A rack's header in whole, for its tool tip: it may be cut there."""
    lines = [" · ".join(part for part in (rack.key, labels.gpu_kinds(rack), use) if part)]
    if not rack.checked:
        lines.append(translate("Canvas", "What it has is not known yet; it counts as able."))
    elif not rack.use_known:
        lines.append(translate("Canvas", "Nobody knows now who uses it."))
    return "\n".join(lines)


def short_use(rack: RackContent) -> str:
    """How much of a rack this design uses, where the header has no room for more."""
    if rack.is_tray or not rack.gpus:
        return ""
    return translate("Canvas", "{used} of {total} used").format(used=rack.used, total=len(rack.layout.slots))
