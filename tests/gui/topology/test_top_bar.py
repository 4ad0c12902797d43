"""Tests that the bar gets shorter forms in narrow windows, so that the name of the file stays readable."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.gui.geometry.faults import faults_of
from tests.gui.topology.page_driver import Driver
from torchyard_core.booking.planned_time import PlannedTime
from torchyard_gui.topology.top_bar import NAME


def plan_for_another_day(driver: Driver) -> None:
    planning = driver.page.planning
    planning.choose(PlannedTime(planning.now + timedelta(days=3), timedelta(hours=24)))
    assert driver.page.bar.launch.accessibleName() == "Book and launch …"


@pytest.mark.parametrize("width", [960, 1040, 1100, 1216, 1376])
def test_the_name_of_the_file_is_whole_beside_a_planned_time(digits: Driver, width: int) -> None:
    bar = digits.page.bar
    digits.page.editor.set_name("digits-2")  # A mark of unsaved changes takes space, too.
    plan_for_another_day(digits)
    digits.window.resize(width, 700)
    digits.wait_until(lambda: bar.width() == width and bar.file.shown_text() == "digits.yaml")
    digits.wait_until(lambda: not [fault for fault in faults_of(digits.window) if "TopBar" in fault.widget])


def test_the_shortest_form_keeps_the_names_of_its_buttons(digits: Driver) -> None:
    bar = digits.page.bar
    plan_for_another_day(digits)
    digits.window.resize(960, 700)
    digits.wait_until(lambda: bar.launch.text() == "Book …")
    by_host = bar.arrangement.button("host")
    assert (by_host.text(), by_host.accessibleName()) == ("Host", "By host")
    assert bar.launch.accessibleName() == "Book and launch …"
    digits.page.planning.choose(PlannedTime())
    digits.wait_until(lambda: by_host.text() == "By host")
    assert bar.launch.text() == "Launch …"


def test_a_long_name_of_a_file_gets_the_shortest_form(digits: Driver) -> None:
    bar = digits.page.bar
    bar.file.setText(
        "한국어-음성인식-대규모-사전학습-conformer-xl-bs4096-lr3e-4-a-second-attempt-with-warmup-seed17.yaml"
    )
    digits.window.resize(960, 700)
    digits.wait_until(lambda: bar.arrangement.button("group").text() == "Group")
    assert bar.launch.text() == "Launch …"
    digits.window.resize(1376, 700)
    digits.wait_until(lambda: bar.gpus.isVisible() and bar.gpus.shown_text() == bar.gpus.text())
    assert bar.file.width() >= NAME
