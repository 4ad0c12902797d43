"""Tests of the descriptions in a booking's change history: times, fields, GPUs and the user's name."""

from __future__ import annotations

from datetime import timedelta

from tests.core.booking.teams import NOW, SLOTS
from torchyard_core.booking.change_history import Change, FieldChange
from torchyard_gui.bookings.history_labels import HistoryView, change_headline, change_lines

VIEW = HistoryView(SLOTS, "kim", "UTC", NOW + timedelta(days=1))
HOUR = timedelta(hours=1)


def change(*fields: FieldChange, kind: str = "changed", person: str = "lee") -> Change:
    return Change(NOW, person, "desk-1", kind, fields)


def test_a_change_has_the_times_and_words_of_the_page() -> None:
    one = change(
        FieldChange("ends", NOW + 25 * HOUR, NOW + 48 * HOUR),
        FieldChange("state", "booked", "no_show"),
        FieldChange("stop_at_end", False, True),
        FieldChange("purpose", None, "letters"),
        FieldChange("run_id", "digits-1", None),
        FieldChange("gpus", ("GPU-a0",), ("GPU-a0", "GPU-a1")),
    )
    assert change_headline(one, VIEW) == f"Yesterday {NOW:%H:%M} · lee (desk-1) changed it"
    assert change_lines(one, VIEW) == [
        f"End: today {NOW + HOUR:%H:%M} → tomorrow {NOW:%H:%M}",
        "Status: booked → released: not used",
        "Stop the run at the end: no → yes",
        "Purpose: letters",
        "Run: digits-1 → none",
        "GPUs: gpu-a:0 → gpu-a:0-1",
    ]


def test_a_change_of_nodes_is_called_so() -> None:
    one = change(FieldChange("gpus", ("slurm:hpc/n1",), ("slurm:hpc/n1", "slurm:hpc/n2")))
    assert [line.partition(":")[0] for line in change_lines(one, VIEW)] == ["Nodes"]


def test_a_new_booking_is_described_by_title_time_and_gpus() -> None:
    fields = (("title", "letters"), ("owner", "kim"), ("state", "booked"), ("zone", "UTC"), ("stop_at_end", False))
    times = FieldChange("starts", None, NOW + HOUR), FieldChange("ends", None, NOW + 2 * HOUR)
    gpus = FieldChange("gpus", None, ("GPU-a0",))
    one = change(*(FieldChange(name, None, after) for name, after in fields), *times, gpus, kind="made", person="kim")
    assert change_headline(one, VIEW) == f"Yesterday {NOW:%H:%M} · You (desk-1) booked it"
    assert change_lines(one, VIEW) == [
        "letters",
        f"Yesterday {NOW + HOUR:%H:%M} – {NOW + 2 * HOUR:%H:%M}",
        "gpu-a:0",
    ]


def test_a_change_by_another_program_has_no_name() -> None:
    assert "Another program (desk-1) deleted it" in change_headline(change(kind="deleted", person=""), VIEW)


def test_a_change_in_slurm_is_not_the_user_s() -> None:
    one = Change(NOW, "kim", "slurm:hpc", "changed", ())
    assert change_headline(one, VIEW) == f"Yesterday {NOW:%H:%M} · Slurm (hpc) changed it"
