"""Tests that text on chips and headers is shortened instead of cut off."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtGui import QImage, QPainter

from tests.gui.canvas import samples
from torchyard_gui.canvas import labels, paint_cache
from torchyard_gui.canvas.live_state import ReplicaLiveState
from torchyard_gui.canvas.racks import rack_painting
from torchyard_gui.canvas.racks.chip_painting import TEXT_END, TEXT_X, fitting
from torchyard_gui.canvas.racks.layout import PAD
from torchyard_gui.canvas.racks.rack_content import gpu_summary, racks_of
from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.theme.tokens import METRICS as M

ROOM = M.slot_width - TEXT_X - TEXT_END
STATES = ["pending", "waiting", "starting", "running", "restarting", "stopping", "succeeded", "failed", "stopped"]


@pytest.mark.parametrize("state", STATES)
def test_the_word_for_each_state_fits_on_a_chip_and_keeps_off_its_edge(qapp: object, state: str) -> None:
    word = labels.short_state_word(state)
    assert fitting(word, ReplicaLiveState(state), ROOM, 0) == word
    assert TEXT_END >= 4


def test_unknown_and_exhausted_values_fit_too(qapp: object) -> None:
    for look, word in ((ReplicaLiveState("unknown"), "unknown"), (ReplicaLiveState("lost"), "lost")):
        assert fitting(labels.last_heard(look), look, ROOM, 0) == word
    full = ReplicaLiveState("failed", tint="fail", cause="out of memory")
    assert fitting(full.cause, full, ROOM, 600) == "OOM"
    assert fitting(full.cause, full, 3 * ROOM, 600) == "out of memory"


def test_since_when_a_replica_is_unknown_is_never_cut(qapp: object) -> None:
    look = ReplicaLiveState("running", stale_since="14:21")
    assert fitting(labels.last_heard(look), look, ROOM, 0) == "14:21"
    assert fitting(labels.last_heard(look), look, 2 * ROOM, 0) == "last 14:21"


def test_a_long_kind_of_gpu_and_the_use_are_whole_in_the_header(qapp: object) -> None:
    drawn, hosts = samples.drawn_example()
    racks = {rack.key: rack for rack in racks_of(drawn, hosts)}
    a6000 = replace(racks["gpu-c"], gpus=gpu_summary(samples.host("x", 4, ("NVIDIA RTX A6000", 49140)).gpus))
    use = labels.use_of(a6000, None, None)
    short = rack_painting._fitting(a6000, use, a6000.layout.width - 2 * PAD - 18)
    assert use == short == "3 of 4 used"
    left = (
        PAD + 18 + paint_cache.width_of("gpu-c", "strong") + 9 + paint_cache.width_of(labels.gpu_kinds(a6000), "small")
    )
    assert left < a6000.layout.width - PAD - paint_cache.width_of(short, "small")


@pytest.mark.parametrize("live", [False, True])
def test_who_uses_a_host_now_is_no_part_of_a_run_s_picture(qapp: object, live: bool) -> None:
    drawn, hosts = samples.drawn_example()
    unknown = [replace(host, use_known=False) for host in hosts]
    pictures = []
    for known in (hosts, unknown):
        scene = TopologyScene()
        scene.show_plan(drawn, known, also=["gpu-d"])
        scene.show_states({} if live else None)
        picture = QImage(900, 700, QImage.Format.Format_ARGB32)
        picture.fill(0)
        painter = QPainter(picture)
        scene.render(painter)
        painter.end()
        pictures.append(picture)
    assert (pictures[0] == pictures[1]) is live
