"""Inspector group with the placement and the pins of the selected replicas."""

from __future__ import annotations

from PySide6.QtWidgets import QWidget

from torchyard_core.launch.rank_assignment import Plan
from torchyard_gui.bridge.planning_time import PlanningTime
from torchyard_gui.theme.icons import icon
from torchyard_gui.topology.booked_gpus import booked_sentence
from torchyard_gui.topology.editor import Editor
from torchyard_gui.topology.inspector.field_group import NAME_WIDTH
from torchyard_gui.topology.inspector.fields import TextField
from torchyard_gui.widgets.buttons import push_button
from torchyard_gui.widgets.form_row import FormRow
from torchyard_gui.widgets.layouts import FLUSH, hbox, vbox
from torchyard_gui.widgets.text_labels import SectionLabel, label


class PlaceGroup(QWidget):
    """Shows the places of the selected replicas and, for a single replica, the pin as text.

    Buttons pin the replicas to their current places or unpin them.
    """

    def __init__(self, editor: Editor, planning: PlanningTime) -> None:
        super().__init__()
        self._editor = editor
        self._planning = planning
        self._plan: Plan | None = None
        self.booked = label(role="small", ink="2", wrap=True)
        self._where = label(role="small", ink="2", wrap=True)
        self.pin = TextField(self.tr("planner chooses"))
        self.pin.setToolTip(self.tr("A host such as gpu-b, or its GPUs: gpu-b:2, gpu-b:0-3, gpu-b:0,2."))
        self.row = FormRow(self.tr("Pinned to"), self.pin, name_width=NAME_WIDTH)
        tip = self.tr("Pin the selected replicas to their current places.")
        self.pin_here = push_button(self.tr("Pin here"), lambda: editor.pin_all(self._here()), tip=tip)
        self.pin_here.setIcon(icon("pin"))
        tip = self.tr("Let the planner place the selected replicas.")
        self.unpin = push_button(self.tr("Unpin"), lambda: editor.unpin(editor.selection), tip=tip)
        buttons = hbox(self.pin_here, self.unpin, None, spacing=8)
        heading = SectionLabel(self.tr("Place"))
        vbox(heading, self._where, self.booked, self.row, buttons, parent=self, margins=FLUSH, spacing=8)
        self.pin.committed.connect(self._pin_typed)

    def show_selection(self, plan: Plan) -> None:
        """Shows where a plan places the selected replicas."""
        self._plan = plan
        chosen = self._editor.selection
        pins = self._editor.value.pins
        pinned = [name for name in chosen if name in pins]
        self.row.setVisible(len(chosen) == 1)
        self.pin.set_values([pins.get(name) for name in chosen[:1]])
        self.row.set_problem("")
        self._where.setText(self._words(len(chosen), len(pinned)))
        names = set(chosen)
        gpus = [gpu.uuid for planned in plan.replicas if planned.name in names for gpu in planned.gpus]
        self.booked.setText(booked_sentence(gpus, self._planning))
        self.booked.setVisible(bool(self.booked.text()))
        self.unpin.setEnabled(bool(pinned))
        self.pin_here.setEnabled(bool(self._here()))
        cluster = self._editor.cluster
        for button in (self.pin_here, self.unpin):
            button.setHidden(cluster is not None)
        if cluster is not None:
            self.row.hide()
            self._where.setText(self._on_cluster(cluster.name, len(chosen) - len(self._places())))

    def _on_cluster(self, cluster: str, lost: int) -> str:
        text = self.tr("On nodes of {cluster}, which Slurm chooses. Pins have no effect there.").format(cluster=cluster)
        return text + (" " + self.tr("{count} without a place.").format(count=lost) if lost else "")

    def _words(self, chosen: int, pinned: int) -> str:
        places = self._places()
        hosts = list(dict.fromkeys(place.partition(":")[0] for place in places.values()))
        lost = chosen - len(places)
        if chosen == 1:
            where = next(iter(places.values()), "")
            where = (
                self.tr("On {place}.").format(place=where.replace(":", ", GPU ")) if where else self.tr("Not placed.")
            )
            return where + (" " + self.tr("Pinned.") if pinned else " " + self.tr("Placed by the planner."))
        if not hosts:
            where = self.tr("Not placed.")
        elif len(hosts) <= 3:
            where = self.tr("On {hosts}.").format(hosts=", ".join(hosts))
        else:
            where = self.tr("On {count} hosts.").format(count=len(hosts))
        if lost and hosts:
            where += " " + self.tr("{count} without a place.").format(count=lost)
        return where + " " + self.tr("Pinned: {pinned} of {count}.").format(pinned=pinned, count=chosen)

    def _places(self) -> dict[str, str]:
        """Returns the places (host and GPUs) of those selected replicas that are placed."""
        chosen = set(self._editor.selection)
        if self._plan is None:
            return {}
        return {
            planned.name: planned.host + _gpus([gpu.index for gpu in planned.gpus])
            for planned in self._plan.replicas
            if planned.name in chosen and planned.host is not None
        }

    def _here(self) -> dict[str, str]:
        pins = self._editor.value.pins
        return {name: place for name, place in self._places().items() if pins.get(name) != place}

    def _pin_typed(self, target: object) -> None:
        for name in self._editor.selection[:1]:
            why = self._editor.pin_exactly(name, target) if isinstance(target, str) else self._editor.unpin([name])
            self.row.set_problem(why)


def _gpus(indices: list[int]) -> str:
    return ":" + ",".join(map(str, indices)) if indices else ""
