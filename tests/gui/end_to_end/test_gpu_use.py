"""Tests that all pages agree on which GPUs of real hosts are in use, according to the hosts' telemetry."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from tests.agent.fake_nvml import FakeGpu, write_gpus
from tests.core.cli.command_runner import torchyard
from tests.gui.end_to_end.conftest import OpenWindow
from tests.lab import Desktop, Lab
from torchyard_gui.bookings.page import BookingsPage

pytestmark = pytest.mark.lab


def test_a_gpu_in_use_without_a_booking_is_in_use_on_each_page_until_its_process_ends(
    window_of: OpenWindow, gpu_lab: Lab, make_desktop: Callable[..., Desktop]
) -> None:
    desktop = make_desktop(gpu_lab, python=None)
    torchyard(desktop, "deploy", "gpu-a", "gpu-b")
    host = gpu_lab.hosts[0]
    values = host.home / "nvml" / "values.txt"
    names = [f"GPU-{host.name}-{number}" for number in range(2)]

    def use(*processes: int) -> None:
        first = FakeGpu(names[0], utilisation=90, compute=[(pid, 512) for pid in processes])
        write_gpus(values, [first, FakeGpu(names[1], memory_used_mb=0, utilisation=0)])

    user = window_of(desktop)
    user.hosts_were_asked()
    user.window.show_page("bookings")
    page = cast("BookingsPage", user.window.page("bookings"))
    free = page.bar.free
    user.wait_until(lambda: "4 of 4" in free.text() and not page.model.unwatched_slots)
    page.acts.find.trigger()
    finder = page.finder
    finder.count.setValue(2)
    finder.search()
    user.wait_until(lambda: len(finder.cards) > 1 and finder.cards[0].fit.host == "gpu-a")
    process = int(host.exec(["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"], check=True).stdout)
    use(process)
    user.wait_until(lambda: "3 of 4" in free.text())
    assert list(page.surface.picture.used_now) == [names[0]]
    user.wait_until(lambda: finder.cards and finder.cards[0].fit.host == "gpu-b")
    status = user.fleet.status("gpu-a")
    assert status is not None
    assert status.gpus_in_use == 1
    assert [facts.busy_gpus for facts in user.fleet.facts()] == [{names[0]}, set()]
    host.exec(["kill", str(process)], check=True)
    use()
    user.wait_until(lambda: "4 of 4" in free.text() and not page.surface.picture.used_now)
    user.wait_until(lambda: finder.cards and finder.cards[0].fit.host == "gpu-a")
