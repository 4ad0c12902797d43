"""A sample calendar for screenshots: one week on the sample hosts, on hosts with long names, or on 128 hosts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tools.sample_fleet import KINDS, LONG

from torchyard_core.booking.model import Draft, IdleEvidence, Slot, Use, cpu_slot
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.store import BookingStore, open_store
from torchyard_core.booking.sync.cached_calendar import Calendar
from torchyard_core.booking.time_parser import to_utc
from torchyard_gui.bridge.bookings_model import BookingsModel

ZONE = "Asia/Seoul"
MONDAY = datetime(2026, 11, 23)
NOW = datetime(2026, 11, 25, 5, 26, tzinfo=UTC)
"""Wednesday 14:26 in Seoul."""
ME = "kim"
LONG_TITLE = " · 한국어 음성 인식 대규모 사전학습 3차 실험"
H100, A100 = ("NVIDIA H100 80GB HBM3", 81559), ("NVIDIA A100-SXM4-40GB", 40960)
HOSTS = {"gpu-a": (8, *H100), "gpu-b": (8, *H100), "gpu-c": (4, *A100), "gpu-d": (4, *A100)}

WEEK = (
    # Each entry has title, owner, GPUs, start and end (as days after Monday and hour), and the part of the booking that
    # was used.
    ("ViT-L pretraining", "vision", "gpu-a:0-3", (0, 9), (1, 18), (0.0, 1.0)),
    ("ablation 7", "speech", "gpu-a:4-7", (0, 13), (0, 22), (0.0, 0.4)),
    ("probe", "robots", "gpu-a:4-5", (1, 8), (1, 20), (0.0, 1.0)),
    ("notebook", "intern", "gpu-a:6", (1, 10), (1, 19), (0.0, 0.45)),
    ("resnet-sandblaster", ME, "gpu-a:0-7 gpu-c:0-2", (2, 8), (3, 12), (0.0, 1.0)),
    ("ViT-L pretraining, part 2", "vision", "gpu-a:0-3", (3, 14), (5, 9), None),
    ("distill", "nlp", "gpu-a:4-5", (3, 18), (4, 12), None),
    ("long eval", "nlp", "gpu-b:0-1", (0, 0), (2, 20), (0.0, 1.0)),
    ("smoke", ME, "gpu-b:2-5", (0, 10), (0, 19), (0.0, 1.0)),
    ("diffusion 256", "audio", "gpu-b:2-4", (1, 9), (2, 18), (0.0, 0.881)),
    ("seq2seq", "intern", "gpu-b:6-7", (2, 9), (2, 23), (0.0, 1.0)),
    ("class", "robots", "gpu-c:0-3", (0, 9), (0, 13), (0.0, 1.0)),
    ("class", "robots", "gpu-c:0-3", (4, 9), (4, 13), None),
    ("nb", "intern", "gpu-c:1", (1, 7), (1, 12), (0.0, 1.0)),
    ("weekend sweep", "speech", "gpu-b:0-7", (4, 20), (6, 8), None),
    ("tuning", "vision", "gpu-d:0-2", (0, 0), (0, 19), (0.0, 1.0)),
    ("tuning 2", "nlp", "gpu-d:0-3", (1, 2), (1, 14), (0.0, 1.0)),
    ("tuning 3", "nlp", "gpu-d:0-1", (1, 15), (2, 10), (0.0, 1.0)),
    ("long tuning", "audio", "gpu-d:0-3", (5, 2), (5, 14), None),
    ("data", "intern", "cpu-g:cpu", (0, 8), (1, 20), None),
    ("data", "vision", "cpu-g:cpu", (4, 8), (5, 2), None),
)


def sample_slots(state: str) -> tuple[Slot, ...]:
    """Returns the slots of one computer, of the sample hosts, or of 128 hosts with eight GPUs each."""
    if state == "one":
        return tuple(
            Slot(f"GPU-this-{number}", "this-computer", number, "NVIDIA RTX 4090", 24564) for number in range(2)
        )
    if state == "many":
        return tuple(
            Slot(f"GPU-n{host:03}-{number}", f"n{host:03}", number, *H100) for host in range(128) for number in range(8)
        )
    long = dict(zip(KINDS, LONG if state == "long" else KINDS, strict=True))
    slots = [
        Slot(f"GPU-{long[host]}-{number}", long[host], number, model, memory)
        for host, (count, model, memory) in HOSTS.items()
        for number in range(count)
    ]
    return (*slots, cpu_slot(long["cpu-g"]), cpu_slot(long["cpu-h"]))


def at(day: int, hour: float) -> datetime:
    """Returns the time at an hour in Seoul, on a day counted from Monday."""
    return to_utc(MONDAY + timedelta(days=day, hours=hour), ZONE)


class Sample:
    """A private calendar in `folder`, with the bookings for `state` and a fixed clock."""

    def __init__(self, folder: Path, state: str):
        self.file = folder / "bookings.sqlite3"
        self.cache = folder / "bookings.json"
        self.slots = sample_slots(state) if state != "empty" else ()
        self._now = NOW
        if state != "empty":
            self._fill(state)
        self._now = NOW

    def clock(self) -> datetime:
        return self._now

    def open(self, url: str, person: str) -> BookingStore:
        return open_store(url, person, clock=self.clock)

    def show_in(self, model: BookingsModel) -> None:
        """Replaces the calendar and the clock of the model. Must be called before the page is shown."""
        model.clock = self.clock
        model._use = {}  # Removes the usage that the model determined from the real clock.
        model._take_use()
        model._open = lambda: (Calendar(f"sqlite:///{self.file}", ME, self.cache, open_it=self.open), ZONE)

    def _fill(self, state: str) -> None:
        self._now = at(-3, 0)
        store = self.open(f"sqlite:///{self.file}", ME)
        store.remember_slots(self.slots)
        store.set_rules(Rules(longest_h=24 * 14))
        if state in ("eight", "long"):
            self._week(store, state)
        elif state == "one":
            self._book(store, "resnet-sandblaster", ME, [self.slots[0].id], at(2, 8), at(3, 12))
            self._book(store, "night sweep", ME, [slot.id for slot in self.slots], at(3, 20), at(4, 8))
        else:
            self._many(store)
        store.close()

    def _week(self, store: BookingStore, state: str) -> None:
        long = dict(zip(LONG if state == "long" else KINDS, KINDS, strict=True))
        names = {f"{long[slot.host]}:{slot.name.rpartition(':')[2]}": slot.id for slot in self.slots}
        hosts = {slot.id: slot.host for slot in self.slots}
        rest = LONG_TITLE if state == "long" else ""
        uses: list[Use] = []
        for title, owner, gpus, begin, end, share in WEEK:
            ids = list(_ids(gpus, names))
            start, finish = at(*begin), at(*end)
            self._book(store, f"{title}{rest}", owner, ids, start, finish)
            if share is not None:
                uses += _uses(ids, hosts, owner, start, finish, share)
        gpu = names["gpu-c:3"]
        uses.append(Use(gpu, hosts[gpu], "lee", at(2, 9.5), NOW))
        store.record_use(uses)
        self._now = NOW
        running = store.bookings(NOW, NOW + timedelta(minutes=1))
        diffusion = next(one for one in running if one.title.startswith("diffusion 256"))
        idle_on = hosts[diffusion.gpus[0]]
        store.record_idle([IdleEvidence(diffusion.id, NOW - timedelta(minutes=21), NOW, idle_on)])

    def _many(self, store: BookingStore) -> None:
        owners = ("vision", "speech", "robots", "intern", "nlp", "audio", ME)
        for host in range(128):
            ids = [f"GPU-n{host:03}-{number}" for number in range(8)]
            for day in range(-1, 7):
                seed = (host * 31 + day * 17) % 97
                if seed % 3 == 0:
                    continue
                some = ids[: 8 if seed % 4 == 0 else 2 + seed % 5]
                start = at(day, seed % 12)
                title = f"sweep {host}-{day + 2}"
                self._book(
                    store, title, owners[seed % len(owners)], some, start, start + timedelta(hours=4 + seed % 18)
                )

    def _book(
        self, store: BookingStore, title: str, owner: str, gpus: Sequence[str], start: datetime, end: datetime
    ) -> None:
        run = "20261125-080000-a1b2" if title.startswith("resnet-sandblaster") else None
        from torchyard_core.booking.search.conflict import Clash

        try:
            store.book(Draft(title, tuple(gpus), start, end, ZONE, owner=owner, run_id=run))
        except Clash:
            if self.slots[0].host != "n000":
                raise


def _ids(gpus: str, names: dict[str, str]) -> Iterable[str]:
    for word in gpus.split():
        host, _, which = word.partition(":")
        first, _, last = which.partition("-")
        numbers = [which] if which == "cpu" else [str(one) for one in range(int(first), int(last or first) + 1)]
        yield from (names[f"{host}:{number}"] for number in numbers)


def _uses(
    ids: Sequence[str], hosts: dict[str, str], owner: str, start: datetime, end: datetime, share: tuple[float, float]
) -> list[Use]:
    begin, finish = start + (end - start) * share[0], min(start + (end - start) * share[1], NOW)
    return [Use(gpu, hosts[gpu], owner, begin, finish) for gpu in ids if finish > begin]
