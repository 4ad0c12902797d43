"""Paints the columns of a cluster's card: the nodes with their states and GPUs, the partition, and Slurm's version."""

from __future__ import annotations

from PySide6.QtCore import QRect
from PySide6.QtGui import QPainter

from torchyard_gui.bridge.clusters.cluster_statuses import ClusterStatus
from torchyard_gui.fleet.cluster_labels import (
    account_text,
    agent_version,
    gpus_text,
    limit_text,
    nodes_as_of,
    partition_text,
    slurm_text,
    states_text,
    translate,
)
from torchyard_gui.widgets.elided_text import draw_elided

LINE = 19


def paint_nodes(painter: QPainter, rect: QRect, status: ClusterStatus) -> None:
    """Paints the number of a cluster's nodes, their states and their GPUs."""
    nodes = nodes_as_of(status)
    if not nodes:
        draw_elided(painter, _line(rect, 0), translate("Fleet", "nodes unknown"), "body", "text3")
        return
    draw_elided(painter, _line(rect, 0), nodes, "body", "text2")
    draw_elided(painter, _line(rect, 1), states_text(status), "small", "text3")
    draw_elided(painter, _line(rect, 2), gpus_text(status), "small", "text3")


def paint_jobs(painter: QPainter, rect: QRect, status: ClusterStatus) -> None:
    """Paints the partition, account, QOS and time limit of a cluster's jobs."""
    draw_elided(painter, _line(rect, 0), partition_text(status), "body", "text2")
    lines = [line for line in (account_text(status), limit_text(status)) if line]
    for number, line in enumerate(lines, 1):
        draw_elided(painter, _line(rect, number), line, "small", "text3")


def paint_slurm(painter: QPainter, rect: QRect, status: ClusterStatus) -> None:
    """Paints the versions of Slurm and of the agent."""
    draw_elided(painter, _line(rect, 0), slurm_text(status), "body", "text2")
    if version := agent_version(status):
        agent = translate("Fleet", "agent {version}").format(version=version)
        draw_elided(painter, _line(rect, 1), agent, "small", "text3")


def _line(rect: QRect, number: int) -> QRect:
    return QRect(rect.x(), rect.y() + number * LINE, rect.width(), LINE)
