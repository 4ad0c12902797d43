"""The palette, whose roles, presets, machine types and hosts are applied by drag, click or keyboard."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from PySide6.QtCore import QEvent, QPoint, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QFrame, QScrollArea, QWidget

from torchyard_core.launch.rank_assignment import Plan
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.machine_types import cloudml_machines
from torchyard_core.topology.model import MAX_REPLICAS, Role
from torchyard_core.topology.strategies.presets import GROUPS, presets_of
from torchyard_gui.bridge.host_states import HostState, state_name
from torchyard_gui.canvas.gestures.palette_drop import HOST_MIME, MACHINE_MIME, PRESET_MIME, ROLE_MIME
from torchyard_gui.theme.icons import icon, role_icon, state_icon
from torchyard_gui.theme.theme import theme
from torchyard_gui.topology.labels import (
    machine_sentence,
    preset_sentence,
    preset_title,
    role_name,
    role_plural,
    role_sentence,
)
from torchyard_gui.topology.palette_list import KEY, NONE, PaletteList, PaletteSection
from torchyard_gui.widgets.buttons import push_button
from torchyard_gui.widgets.containers import scroll_area
from torchyard_gui.widgets.dialogs import Popup
from torchyard_gui.widgets.input_fields import NumberField, SearchField
from torchyard_gui.widgets.layouts import FLUSH, hbox, vbox
from torchyard_gui.widgets.text_labels import label

_AMOUNT = re.compile(r"\s*([0-9]{1,5})?\s*(.*)", re.DOTALL)


class Palette(QFrame):
    """Panel that lists roles with the number of replicas, presets, machine types, and hosts with the number of free
    GPUs.
    """

    role_chosen = Signal(str, int)
    """Emitted with a role and the number of replicas to add."""
    host_chosen = Signal(str)
    preset_chosen = Signal(str)
    """Emitted with the key of a preset."""
    machine_chosen = Signal(str)
    """Emitted with a machine type."""
    drag_begun = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("panel", "left")
        self.setAccessibleName(self.tr("Palette"))
        self.setFixedWidth(theme().metrics.palette)
        self.search = SearchField(self.tr("Add …"))
        tip = self.tr("Type a role, preset, host or machine type and press Enter; “4 worker” adds four. (A)")
        self.search.setToolTip(tip)
        fleet = self.tr(
            "CloudML's machine types, for the pools of the selected replicas or of those they are dropped on"
        )
        frameworks = self.tr("Clusters as in other frameworks")
        tiers = self.tr("CloudML's clusters, with the sizes of their machines")
        section = PaletteSection
        self._roles = section(self.tr("Roles"), self._make_roles)
        strategies = self.tr("A strategy with the replicas that it needs")
        self._presets = section(self.tr("Presets"), partial(self._make_presets, GROUPS[0]), strategies)
        self._frameworks = section(
            self.tr("Frameworks"), partial(self._make_presets, "frameworks"), frameworks, folds=True
        )
        self._tiers = section(self.tr("Scale tiers"), partial(self._make_presets, "scale tiers"), tiers, folds=True)
        self._machines = section(self.tr("Machine types"), self._make_machines, fleet, folds=True)
        self._hosts = section(self.tr("Hosts"), self._make_hosts)
        self.sections = (self._roles, self._presets, self._frameworks, self._tiers, self._machines, self._hosts)
        self._states: Mapping[str, HostState] = {}
        self.nothing = label(role="small", ink="2", wrap=True)
        self.nothing.hide()
        self.popup = CountPopup(self)
        vbox(self.search, self.nothing, self._scrolled(), parent=self, margins=(12, 12, 8, 12), spacing=8)
        self.search.textChanged.connect(self._filter)
        self.search.installEventFilter(self)
        self.popup.agreed.connect(self.role_chosen)
        theme().changed.connect(self._paint_icons)

    def _scrolled(self) -> QScrollArea:
        inner = QWidget()
        vbox(*self.sections, None, parent=inner, margins=FLUSH, spacing=8)
        return scroll_area(inner)

    # The lists of foldable sections are created on first use.

    @property
    def roles(self) -> PaletteList:
        return self._roles.rows

    @property
    def presets(self) -> PaletteList:
        return self._presets.rows

    @property
    def frameworks(self) -> PaletteList:
        return self._frameworks.rows

    @property
    def tiers(self) -> PaletteList:
        return self._tiers.rows

    @property
    def machines(self) -> PaletteList:
        return self._machines.rows

    @property
    def hosts(self) -> PaletteList:
        return self._hosts.rows

    def _listed(self, mime: str, name: str) -> PaletteList:
        made = PaletteList(mime, name)
        made.drag_begun.connect(self.drag_begun)
        return made

    def _make_roles(self, name: str) -> PaletteList:
        made = self._listed(ROLE_MIME, name)
        made.chosen.connect(lambda role, many: self.choose_role(role, many))
        return made

    def _make_hosts(self, name: str) -> PaletteList:
        made = self._listed(HOST_MIME, name)
        made.chosen.connect(lambda host, _: self.host_chosen.emit(host))
        return made

    def _make_presets(self, group: str, name: str) -> PaletteList:
        rows = [(one.key, preset_title(one), preset_sentence(one)) for one in presets_of(group)]
        return self._preset_rows(name, rows)

    def _preset_rows(self, name: str, rows: Sequence[tuple[str, str, str]]) -> PaletteList:
        """Creates a list of presets, given as (key, title, sentence)."""
        made = self._listed(PRESET_MIME, name)
        made.chosen.connect(lambda key, _: self.preset_chosen.emit(key))
        how = self.tr("Click, press Enter or drag it to add what the topology lacks.")
        made.put([(key, title, "") for key, title, _ in rows], [f"{sentence}\n{how}" for _, _, sentence in rows])
        _draw_icon(made, "topology")
        return made

    def _make_machines(self, name: str) -> PaletteList:
        made = self._listed(MACHINE_MIME, name)
        made.chosen.connect(lambda machine, _: self.machine_chosen.emit(machine))
        how = self.tr("Click or press Enter to use it for the selected pools, or drag it onto a replica or host.")
        machines = cloudml_machines()
        made.put(
            [(one.name, one.name, "") for one in machines], [f"{machine_sentence(one)}\n{how}" for one in machines]
        )
        _draw_icon(made, "cpu")
        return made

    def show_plan(self, plan: Plan, hosts: Sequence[HostFacts], states: Mapping[str, HostState]) -> None:
        """Shows how many replicas each role has, how many GPUs are free, and the states of the hosts."""
        self._states = dict(states)
        counts = {role: sum(p.replicas for p in plan.topology.pools if p.role is role) for role in Role}
        how = self.tr("Click or press Enter to add one, with Shift to add several, or drag it.")
        self.roles.put(
            [(role.value, role_name(role), str(counts[role]) if counts[role] else NONE) for role in Role],
            [f"{role_sentence(role)}\n{how}" for role in Role],
        )
        used = {host.name: 0 for host in hosts}
        for planned in plan.replicas:
            if planned.host in used:
                used[planned.host] += len(planned.gpus)
        self.hosts.put(
            [(host.name, host.name, self._free(host, used[host.name])) for host in hosts],
            [self._host_tip(host, used[host.name]) for host in hosts],
        )
        self._paint_icons()
        self._filter(self.search.text())

    def go_to(self, host: str) -> bool:
        """Focuses the row of a host; "" focuses the first role. Returns whether the row exists."""
        self.search.clear()
        rows = self.hosts if host else self.roles
        item = rows.row_of(host) if host else rows.item(0)
        if item is None:
            return False
        rows.setCurrentItem(item)
        rows.setFocus(Qt.FocusReason.OtherFocusReason)
        return True

    def _host_tip(self, host: HostFacts, used: int) -> str:
        """Returns the tool tip of a host's row: the host's state, its users, and what a click or drag does."""
        tip = f"{host.name}: {state_name(self._states.get(host.name, HostState.UNKNOWN))}, {self._free(host, used)}"
        busy = [gpu.uuid for gpu in host.gpus if gpu.uuid in host.busy_gpus]
        booked = [uuid for uuid in busy if uuid in host.gpu_bookings and not host.gpu_users.get(uuid)]
        users = dict.fromkeys(host.gpu_users.get(uuid) or self.tr("others") for uuid in busy if uuid not in booked)
        if users:
            tip += ", " + self.tr("used by {users}").format(users=", ".join(users))
        if booked:
            who = dict.fromkeys(host.gpu_bookings[uuid] for uuid in booked)
            tip += ", " + self.tr("booked by {who}").format(who=", ".join(who))
        return f"{tip}\n" + self.tr("Click, press Enter or drag it to show it on the canvas.")

    def _free(self, host: HostFacts, used: int) -> str:
        if not host.checked:
            return self.tr("unknown")
        if not host.gpus:
            return self.tr("CPU only")
        if not host.use_known:
            return self.tr("? of {count} free").format(count=len(host.gpus))
        if all(gpu.uuid in host.gpu_bookings for gpu in host.gpus):
            return self.tr("{count} booked").format(count=len(host.gpus))
        busy = sum(gpu.uuid in host.busy_gpus for gpu in host.gpus)
        return self.tr("{free} of {count} free").format(free=len(host.gpus) - busy - used, count=len(host.gpus))

    def _paint_icons(self) -> None:
        for row in range(self.roles.count()):
            self.roles.item(row).setIcon(role_icon(str(self.roles.item(row).data(KEY))))
        for section in (self._presets, self._frameworks, self._tiers, self._machines):
            if section.has_rows:
                _draw_icon(section.rows, "cpu" if section is self._machines else "topology")
        for row in range(self.hosts.count()):
            item = self.hosts.item(row)
            item.setIcon(state_icon(self._states.get(str(item.data(KEY)), HostState.UNKNOWN).mark))

    def choose_role(self, role: str, many: bool, among: PaletteList | None = None) -> None:
        """Requests a replica of a role. With `many`, a popup asks for the number of replicas, except for a chief."""
        rows = among or self.roles
        if many and role != Role.CHIEF:
            item = rows.row_of(role)
            if item is not None:
                corner = rows.visualItemRect(item).topRight()
                self.popup.ask(role, role_plural(Role(role)), rows.mapToGlobal(corner))
            return
        self.role_chosen.emit(role, 1)

    def _parse_search(self) -> tuple[int, str]:
        match = _AMOUNT.fullmatch(self.search.text())
        assert match is not None
        return int(match[1] or 1), match[2].strip()

    def _filter(self, _text: str) -> dict[PaletteSection, str]:
        """Filters all sections. Returns the key of the first match in each section, or "" if there is none."""
        _, letters = self._parse_search()
        found = {section: section.keep(letters) for section in self.sections}
        self.nothing.setVisible(not any(found.values()))
        self.nothing.setText(self.tr("No match for “{letters}”.").format(letters=letters))
        return found

    def eventFilter(self, watched: object, event: QEvent) -> bool:
        if isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress:
            if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
                self._quick_add(bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier))
                return True
            if event.key() == Qt.Key.Key_Down:
                if shown := [section.rows for section in self.sections if section.rows.isVisible()]:
                    shown[0].setFocus(Qt.FocusReason.TabFocusReason)
                return True
        return False

    def _quick_add(self, many: bool) -> None:
        count, letters = self._parse_search()
        if not letters:
            return
        found = self._filter("")
        role, host, machine = found[self._roles], found[self._hosts], found[self._machines]
        preset = found[self._presets] or found[self._frameworks] or found[self._tiers]
        if role and count == 1:
            self.choose_role(role, many)
        elif role:
            self.role_chosen.emit(role, count)
        elif preset:
            self.preset_chosen.emit(preset)
        elif host:
            self.host_chosen.emit(host)
        elif machine:
            self.machine_chosen.emit(machine)
        else:
            return
        self.search.selectAll()


def _draw_icon(rows: PaletteList, name: str) -> None:
    for row in range(rows.count()):
        rows.item(row).setIcon(icon(name))


USUAL = 4


class CountPopup(Popup):
    """Popup that asks for a number. `agreed` is emitted with the key that was passed to `ask`, and the number."""

    agreed = Signal(str, int)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._key = ""
        self.number = NumberField()
        self.number.setRange(1, MAX_REPLICAS)
        self.number.setAccessibleName(self.tr("How many"))
        self.number.setMinimumWidth(72)
        self._noun = label()
        self.add = push_button(self.tr("Add"), self.agree, "primary")
        hbox(self.number, self._noun, self.add, parent=self, margins=(10, 8, 10, 8), spacing=8)

    def ask(self, key: str, noun: str, place: QPoint) -> None:
        """Opens the popup at a screen position. The popup shows `noun` beside the number."""
        self._key = key
        self._noun.setText(noun)
        self.number.setValue(USUAL)
        self.open_at(place, self.number)

    def agree(self) -> None:
        self.number.interpretText()
        self.hide()
        self.agreed.emit(self._key, self.number.value())
