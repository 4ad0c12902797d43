"""Actions that edit the topology: undo, redo, the clipboard, and other edits of the selection."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

from PySide6.QtCore import QObject
from PySide6.QtGui import QAction, QGuiApplication, QKeySequence

from torchyard_core.topology.model import Role
from torchyard_core.topology.strategies.presets import Preset, all_presets
from torchyard_gui.topology.editor import Editor
from torchyard_gui.topology.labels import preset_sentence, preset_title, role_name, role_sentence
from torchyard_gui.widgets.page_actions import SUBMENU, action


class EditActions(QObject):
    """The edit actions, which are enabled according to the selection. If an edit is refused, `say` is called with the
    reason.
    """

    def __init__(
        self,
        editor: Editor,
        say: Callable[[str], None],
        search: Callable[[], object],
        choose_preset: Callable[[str], None],
        owner: QObject,
    ) -> None:
        super().__init__(owner)
        self._editor = editor
        self._say = say
        self._choose_preset = choose_preset
        keys = QKeySequence.StandardKey
        make = partial(action, self, "edit")
        # The actions are not made by createUndoAction, because PySide deletes such an action together with the first
        # menu or button that shows it.
        stack = editor.stack
        self.undo = make(self.tr("Undo"), editor.undo, keys.Undo, "undo")
        self.redo = make(self.tr("Redo"), editor.redo, keys.Redo, "redo")
        for one, can_changed, text_changed in (
            (self.undo, stack.canUndoChanged, stack.undoTextChanged),
            (self.redo, stack.canRedoChanged, stack.redoTextChanged),
        ):
            # Without an explicit tool tip, Qt would show the action's text, which contains the name of the edit.
            one.setToolTip("")
            one.setEnabled(False)
            can_changed.connect(one.setEnabled)
            text_changed.connect(partial(_name_edit, one, one.text()))
        # Duplicate key sequences are left out, because Qt treats equal shortcuts as ambiguous.
        platforms = QKeySequence(keys.Redo)
        others = [key for key in map(QKeySequence, ("Ctrl+Y", "Ctrl+Shift+Z")) if key != platforms]
        self.redo.setShortcuts([platforms, *others])
        self.cut = make(self.tr("Cu&t"), self._cut, keys.Cut, "cut")
        self.copy = make(self.tr("&Copy"), self._copy, keys.Copy, "copy")
        self.paste = make(self.tr("&Paste"), self._paste, keys.Paste, "paste")
        tip = self.tr("Add copies of the selected replicas")
        self.duplicate = make(self.tr("D&uplicate"), self._duplicate, "Ctrl+D", "duplicate", tip)
        self.delete = make(
            self.tr("&Delete"), self._delete, keys.Delete, "trash", self.tr("Delete the selected replicas")
        )
        tip = self.tr("Let the planner place the selected replicas")
        self.unpin = make(self.tr("U&npin"), self._unpin, "Ctrl+U", "pin", tip)
        self.select_all = make(self.tr("Select &all"), self._editor.select_all, keys.SelectAll)
        self.select_none = make(self.tr("Select nothing"), lambda: self._editor.select(()), "Ctrl+Shift+A")
        self.add = make(
            self.tr("Add …"), search, "A", "plus", self.tr("Add a role, preset or host by typing part of its name")
        )
        self.add_roles = [self._adds(role) for role in Role]
        editor.selection_changed.connect(self.refresh)
        editor.changed.connect(self.refresh)
        self.refresh()

    def actions(self) -> list[QAction]:
        return [
            self.undo, self.redo, self.cut, self.copy, self.paste, self.duplicate, self.delete, self.unpin,
            self.select_all, self.select_none, self.add, *self.add_roles,
        ]  # fmt: skip

    @cached_property
    def add_presets(self) -> list[QAction]:
        """The actions that add presets.

        They are created on first use, because creating them reads all preset files.
        """
        made = [self._adds_preset(preset) for preset in all_presets()]
        for one in made:
            one.setEnabled(self._editor.holds_topology)
        return made

    def of_selection(self) -> list[QAction]:
        """Returns the actions of the canvas's context menu for selected replicas."""
        return [self.cut, self.copy, self.paste, self.duplicate, self.delete, self.unpin]

    def refresh(self) -> None:
        chosen = self._editor.selection
        editable = self._editor.holds_topology
        for one in (self.cut, self.duplicate, self.delete):
            one.setEnabled(bool(chosen) and editable)
        self.copy.setEnabled(bool(chosen))
        self.paste.setEnabled(editable)
        self.unpin.setEnabled(any(name in self._editor.value.pins for name in chosen))
        self.select_all.setEnabled(bool(self._editor.value.pools))
        self.select_none.setEnabled(bool(chosen))
        for one in (self.add, *self.add_roles, *self.__dict__.get("add_presets", ())):
            one.setEnabled(editable)

    def _adds(self, role: Role) -> QAction:
        text = self.tr("Add {role}").format(role=role_name(role).lower())
        made = action(self, "edit", text, lambda: self._do(self._editor.add(role)), None, "", role_sentence(role))
        made.setProperty(SUBMENU, self.tr("Add a role"))
        return made

    def _adds_preset(self, preset: Preset) -> QAction:
        text = self.tr("Preset {strategy}").format(strategy=preset_title(preset))
        made = action(self, "edit", text, lambda: self._choose_preset(preset.key))
        made.setToolTip(preset_sentence(preset))
        made.setProperty(SUBMENU, self.tr("Presets"))
        return made

    def _do(self, why_not: str) -> None:
        if why_not:
            self._say(why_not)

    def _cut(self) -> None:
        self._copy()
        self._do(self._editor.cut())

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self._editor.copied())

    def _paste(self) -> None:
        self._do(self._editor.paste(QGuiApplication.clipboard().text()))

    def _duplicate(self) -> None:
        self._do(self._editor.duplicate())

    def _delete(self) -> None:
        self._do(self._editor.remove(self._editor.selection))

    def _unpin(self) -> None:
        self._do(self._editor.unpin(self._editor.selection))


def _name_edit(action: QAction, verb: str, edit: str) -> None:
    """Adds the name of the edit to the text of the action, such as "Undo Delete"."""
    action.setText(f"{verb} {edit}".strip())
