"""The dialog *New sweep*: a form that writes a search file for the open topology and starts the sweep."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QCloseEvent, QKeySequence, QShortcut
from PySide6.QtWidgets import QDialog, QFileDialog, QWidget

from torchyard_core.app.profile_script import workdir_of
from torchyard_core.atomic_write import write_atomically
from torchyard_core.errors import FileProblem, TorchyardError
from torchyard_core.problems import Problem
from torchyard_core.sweeps.search_draft import FieldName, SearchDraft, argument_for
from torchyard_core.sweeps.search_file import SearchFile, read_search, search_from_text
from torchyard_core.topology.file import TopologyFile
from torchyard_core.topology.model import Topology
from torchyard_core.yaml_io.file_reader import read_text
from torchyard_gui.sweeps.search_form.form import SearchForm
from torchyard_gui.sweeps.search_form.parameter_table import problem_sentence
from torchyard_gui.widgets import Divider, ElidedLabel, NoticeBar, SectionLabel, label, scroll_area
from torchyard_gui.widgets.buttons import push_button
from torchyard_gui.widgets.dialogs import ConfirmationDialog, ask_to_replace
from torchyard_gui.widgets.layouts import FLUSH, hbox, settle_layouts, splitter, vbox
from torchyard_gui.widgets.screen_reader import announce
from torchyard_gui.widgets.yaml_editor import YamlEditor

SIZE = QSize(1000, 640)
MARGIN = 20
FORM_WIDTH, PREVIEW_WIDTH = 622, 240
"""Minimum widths in pixels of the form and of the preview beside the form."""
FILE_NAME = "search.yaml"
SCROLL_MARGIN = 48
LONGEST = 24
"""Maximum length of the arguments or names that a button lists. If they are longer, it shows only their number."""


class SearchDialog(QDialog):
    """The dialog *New sweep*. It is not modal, so that the topology can be viewed and changed while it is open."""

    launch_wanted = Signal(object, object)
    """Emitted with the TopologyFile and the valid SearchFile. The receiver calls `launched` once the sweep runs."""
    arguments_wanted = Signal(object)
    """Emitted with a tuple of arguments to add to the topology. The receiver calls `topology_changed`."""
    discarded = Signal()
    """Emitted after `may_close` has returned False and the user has then saved or discarded the changes."""

    def __init__(
        self,
        topology: Callable[[], TopologyFile | None],
        parent: QWidget | None = None,
        cluster_for: Callable[[Topology], str] = lambda topology: "",
    ):
        """Creates the dialog.

        Args:
            topology: Returns the open topology, or None if its text is not YAML.
            cluster_for: Returns the cluster on which a topology runs, or "" for the hosts of the fleet file.
        """
        super().__init__(parent)
        self.setModal(False)
        self._topology = topology
        self._cluster_for = cluster_for
        self._path: Path | None = None
        self._base = ""
        """The text of the file that was opened or saved last. It is needed to keep the comments when the file is
        written.
        """
        self._first = SearchDraft()
        """The draft as opened or saved last, with which the form is compared to find unsaved changes."""
        self._topology_name = ""
        """The name of the topology for which the form was filled in, or "" if the form has not been filled in."""
        self._file: SearchFile = search_from_text("version: 1\n")
        self._problems: dict[FieldName, str] = {}
        self._shows_all = False
        """Whether problems of unedited rows are also shown, as in an opened file, or after a launch was refused."""

        self.heading = ElidedLabel(role="title", in_middle=True)
        self.about = label(role="small", ink="2", wrap=True)
        self.notice = NoticeBar(margin=MARGIN)
        self.form = SearchForm()
        self.fix_arguments, self.fix_parameters = (
            self.form.parameters.fix_arguments,
            self.form.parameters.fix_parameters,
        )
        self.fix_arguments.clicked.connect(self._fix_arguments)
        self.fix_parameters.clicked.connect(self._fix_parameters)
        self.preview = YamlEditor()
        self.preview.setReadOnly(True)
        self.preview.setTabChangesFocus(True)
        self.preview.setAccessibleName(self.tr("The search file that is written"))
        self.count = label(role="small", ink="fail")
        keys = self.tr("Ctrl+O"), self.tr("Ctrl+S"), self.tr("Ctrl+Enter")
        tips = self.tr("Open a search file"), self.tr("Write the search file"), self.tr("Start the sweep")
        tip, save_tip, launch_tip = (f"{text} ({key})" for text, key in zip(tips, keys, strict=True))
        self.open_button = push_button(self.tr("Open …"), self.ask_open, tip=tip)
        self.save_button = push_button(self.tr("Save as …"), self.ask_save, tip=save_tip)
        self.launch_button = push_button(self.tr("Launch"), self.launch, "primary", tip=launch_tip)
        self.close_button = push_button(self.tr("Close"), self.reject)
        buttons = (self.open_button, self.save_button, self.close_button, self.launch_button)
        for button in buttons:
            button.setAutoDefault(False)  # Enter in a field must not start a sweep.
        self._lay_out(buttons)
        self.form.changed.connect(self._edited)
        for shortcut, call in (
            (QKeySequence(QKeySequence.StandardKey.Open), self.ask_open),
            (QKeySequence(QKeySequence.StandardKey.Save), self.save),
            (QKeySequence("Ctrl+Return"), self.launch),
            (QKeySequence("Ctrl+Enter"), self.launch),
        ):
            QShortcut(shortcut, self, call)
        self.resize(SIZE)

    @property
    def is_changed(self) -> bool:
        """Whether the form has unsaved changes."""
        return self.form.draft != self._first

    def start(self) -> None:
        """Shows the form. If the form was filled in for the open topology, its contents are kept; otherwise, it shows a
        new search.
        """
        topology = self._parsed_topology()
        name = topology.name if topology is not None else ""
        if not self.isVisible() and (not self._topology_name or self._topology_name != name):
            self._begin(SearchDraft.new(topology))
        self.topology_changed()
        self.show()
        self.raise_()
        self.activateWindow()
        if not self.isAncestorOf(self.focusWidget() or self):
            self.form.name.setFocus(Qt.FocusReason.OtherFocusReason)

    def topology_changed(self) -> None:
        """Validates the form against the open topology again."""
        self._check()

    def launched(self) -> None:
        """Hides the form, because its sweep has started. The fields keep their contents for the next sweep."""
        self.notice.clear()
        self.hide()

    def may_close(self) -> bool:
        """Returns whether the window may close now. If the form has unsaved changes, returns False and asks the user.

        Once the user has saved or discarded the changes, `discarded` is emitted.
        """
        if not self.isVisible() or not self.is_changed:
            return True
        self._guard(self.discarded.emit)
        return False

    def ask_open(self) -> None:
        """Asks for a search file and opens it. If there are unsaved changes, the user is asked about them first."""
        self._guard(self._ask_open)

    def open_file(self, path: Path) -> None:
        """Opens a search file in the form. Shows an error if the file cannot be read or is invalid."""
        try:
            file = read_search(path)
        except FileProblem as problem:
            self.notice.show_error(problem)
            return
        if file.search is None:
            lines = [one.printed(path.name) for one in file.problems]
            self.notice.show_notice("fail", "\n".join(lines))
            return
        self._begin(SearchDraft.of(file.search), path, file.document.text)

    def save(self) -> None:
        """Writes the file that was opened or saved last. If there is none, asks the user for a file."""
        if self._path is None:
            self.ask_save()
        elif self._has_changed_on_disk(self._path):
            path = self._path
            ask_to_replace(path, lambda: self.save_to(path), self.ask_save, self)
        else:
            self.save_to(self._path)

    def ask_save(self, then: Callable[[], object] | None = None) -> None:
        """Asks the user for a file name, writes the search file, and then calls `then`."""
        dialog = self._file_dialog(self.tr("Save the search"))
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix("yaml")
        dialog.setOption(QFileDialog.Option.DontConfirmOverwrite)
        dialog.selectFile(self._path.name if self._path is not None else FILE_NAME)
        dialog.fileSelected.connect(lambda chosen: self._save_as(Path(chosen), then))
        dialog.open()

    def save_to(self, path: Path, then: Callable[[], object] | None = None) -> None:
        """Writes the search to a file, and then calls `then`. Shows an error if the file cannot be written."""
        text = self._file.document.text
        try:
            write_atomically(path, text)
        except TorchyardError as problem:
            self.notice.show_error(problem)
            return
        self._path, self._base, self._first = path, text, self.form.draft
        self._check()
        self.notice.show_notice("info", self.tr("Saved as {file}.").format(file=path))
        if then is not None:
            then()

    def launch(self) -> None:
        """Starts the sweep, or shows what must be corrected first."""
        self._shows_all = True
        self._check()
        if self._problems:
            first = min(self._problems, key=_position)
            self.show_field(first)
            count = len(self._problems)
            text = self.tr("1 problem prevents the launch.")
            if count > 1:
                text = self.tr("{count} problems prevent the launch.").format(count=count)
            announce(self, f"{text} {problem_sentence(self._problems[first])}", urgent=True)
            return
        source = self._topology()
        if reason := self._why_not(source):
            self.notice.show_notice("fail", reason)
            return
        assert source is not None
        self.notice.clear()
        self.launch_wanted.emit(source, self._file)

    def show_field(self, key: FieldName) -> None:
        """Moves the focus to a field, and scrolls until the field and its problem are visible."""
        settle_layouts()
        field = self.form.focus_field(key)
        self._area.ensureWidgetVisible(field, 0, SCROLL_MARGIN)

    def reject(self) -> None:
        """Closes the dialog on Esc or *Close*. If there are unsaved changes, asks the user first."""
        self._guard(self._discard)

    def closeEvent(self, event: QCloseEvent) -> None:
        if self.isVisible() and self.is_changed:
            event.ignore()
            self.reject()
        else:
            super().closeEvent(event)

    def _lay_out(self, buttons: tuple[QWidget, ...]) -> None:
        open_button, save_button, close_button, launch_button = buttons
        inside = QWidget()
        vbox(self.form, parent=inside, margins=(MARGIN, 12, MARGIN, 16), spacing=8)
        self._area = scroll_area(inside)
        left = QWidget(minimumWidth=FORM_WIDTH)
        vbox((self._area, 1), parent=left, margins=FLUSH, spacing=0)
        right = QWidget(minimumWidth=PREVIEW_WIDTH)
        title = SectionLabel(self.tr("Search file"))
        title.setContentsMargins(12, 12, 12, 6)
        vbox(title, (self.preview, 1), parent=right, margins=FLUSH, spacing=0)
        across = splitter(
            Qt.Orientation.Horizontal, left, right, grows=1, sizes=[FORM_WIDTH, SIZE.width() - FORM_WIDTH]
        )
        head = vbox(self.heading, self.about, margins=(MARGIN, 14, MARGIN, 10), spacing=2)
        margins = (MARGIN, 10, MARGIN, 14)
        foot = hbox(
            open_button, save_button, 8, (self.count, 1), close_button, launch_button, margins=margins, spacing=8
        )
        parts = (head, Divider(), self.notice, (across, 1), Divider(), foot)
        vbox(*parts, parent=self, margins=FLUSH, spacing=0)

    def _begin(self, draft: SearchDraft, path: Path | None = None, text: str = "") -> None:
        """Fills the form with a draft that counts as unchanged. `path` and `text` are those of the draft's file."""
        topology = self._parsed_topology()
        self._topology_name = topology.name if topology is not None else ""
        self._path, self._base, self._first = path, text, draft
        self._shows_all = path is not None
        self.notice.clear()
        self.form.set_draft(draft)
        self._area.verticalScrollBar().setValue(0)
        self._check()

    def _edited(self) -> None:
        self._check()

    def _check(self) -> None:
        """Updates the preview of the search file, and the problems of the form."""
        draft, topology = self.form.draft, self._parsed_topology()
        self._file = search_from_text(draft.text(self._base), self._path.name if self._path is not None else FILE_NAME)
        self._problems = draft.problems(self._file, topology)
        self.form.show_problems(self._problems, all_of_them=self._shows_all)
        self.preview.show_text(self._file.document.text)
        by_line: dict[int, Problem] = {}
        shown = {key: text for key, text in self._problems.items() if not self.form.parameters.hides(key)}
        for field, message in shown.items():
            line = self._file.document.line(draft.place_of(field)) or 1
            by_line.setdefault(line, Problem("error", "search", message, line))
        self.preview.show_problems(by_line)
        count = len(shown)
        one, many = self.tr("1 problem"), self.tr("{count} problems").format(count=count)
        self.count.setText("" if not count else one if count == 1 else many)
        self._show_fixes(draft, topology)
        self._show_heading(topology)

    def _show_fixes(self, draft: SearchDraft, topology: Topology | None) -> None:
        """Offers to add arguments for the parameters that the topology does not use, and to add the parameters that the
        topology uses but the form lacks.
        """
        unused = draft.unused(topology) if topology is not None else ()
        missing = draft.missing(topology) if topology is not None else ()
        words = " ".join(self._arguments(unused))
        text = self.tr("Add {arguments} to the topology").format(arguments=words)
        if len(words) > LONGEST:
            one, many = self.tr("Add an argument to the topology"), self.tr("Add {count} arguments to the topology")
            text = one if len(unused) == 1 else many.format(count=len(unused))
        self.fix_arguments.setText(text)
        self.fix_arguments.setToolTip(words)
        names = ", ".join(missing)
        text = self.tr("Add parameter {name}").format(name=names)
        if len(missing) > 1 or len(names) > LONGEST:
            one, many = self.tr("Add a parameter"), self.tr("Add {count} parameters").format(count=len(missing))
            text = one if len(missing) == 1 else many
        self.fix_parameters.setText(text)
        self.fix_parameters.setToolTip(names)
        self.fix_arguments.setVisible(bool(unused))
        self.fix_parameters.setVisible(bool(missing))

    def _arguments(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Returns an argument for each parameter. Options are spelt as in the script."""
        source, script = self._topology(), ""
        folder = workdir_of(source) if source is not None else None
        path = source.topology.program.script if source is not None and source.topology is not None else None
        if folder is not None and path and any("_" in name for name in names):
            with contextlib.suppress(FileProblem):  # If the script cannot be read, the launch reports this.
                script = read_text(folder / path)
        return tuple(argument_for(name, script) for name in names)

    def _show_heading(self, topology: Topology | None) -> None:
        name = topology.name if topology is not None else ""
        title = self._path.name if self._path is not None else self.tr("New sweep")
        self.setWindowTitle(f"{title}[*]")
        self.setWindowModified(self.is_changed)
        self.heading.setText(f"{title} •" if self.is_changed and self._path is not None else title)
        self.form.name.setPlaceholderText(name)
        if topology is None or not topology.pools:
            text = self.tr("No topology is open: a sweep runs the one of the Topology page with other arguments.")
        else:
            text = self.tr(
                "Runs {topology} once for each trial, with other arguments, to find the best hyperparameters."
            )
            if cluster := self._cluster_for(topology):
                jobs = self.tr("The trials are jobs of the Slurm cluster {cluster}.").format(cluster=cluster)
                text = f"{text} {jobs}"
        self.about.setText(text.format(topology=name))

    def _parsed_topology(self) -> Topology | None:
        """Returns the open topology, or None if its text is invalid."""
        source = self._topology()
        return source.topology if source is not None else None

    def _why_not(self, source: TopologyFile | None) -> str:
        """Returns why the topology cannot be launched from this dialog, or "" if it can."""
        topology = source.topology if source is not None else None
        if source is None or topology is None:
            return self.tr("The text of the topology has errors. Correct it on the Topology page first.")
        if not topology.pools:
            return self.tr("Open a topology on the Topology page first.")
        if not source.source and topology.program.workdir is not None:
            return self.tr("Save the topology first: its working folder is relative to its file.")
        return ""

    def _fix_arguments(self) -> None:
        topology = self._parsed_topology()
        if topology is not None:
            self.arguments_wanted.emit(self._arguments(self.form.draft.unused(topology)))
            self.topology_changed()
            settle_layouts()

    def _fix_parameters(self) -> None:
        topology = self._parsed_topology()
        if topology is not None:
            draft = self.form.draft
            self.form.set_draft(draft.with_parameters(*draft.missing(topology)))
            self._edited()

    def _ask_open(self) -> None:
        dialog = self._file_dialog(self.tr("Open a search file"))
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.fileSelected.connect(lambda chosen: self.open_file(Path(chosen)))
        dialog.open()

    def _save_as(self, path: Path, then: Callable[[], object] | None) -> None:
        """Saves to `path`. If the file exists, asks the user before replacing it."""
        if path == self._path or not path.exists():
            self.save_to(path, then)
        else:
            ask_to_replace(path, lambda: self.save_to(path, then), lambda: self.ask_save(then), self)

    def _has_changed_on_disk(self, path: Path) -> bool:
        """Returns whether another program has changed the file since this dialog read or wrote it."""
        try:
            return read_text(path) != self._base
        except FileProblem:
            return False  # The file is missing or unreadable. If it also cannot be written, saving reports the error.

    def _file_dialog(self, title: str) -> QFileDialog:
        source = self._topology()
        folder = self._path.parent if self._path is not None else source.folder if source is not None else None
        filters = self.tr("YAML (*.yaml *.yml)")
        dialog = QFileDialog(self, title, str(folder if folder is not None else Path.home()), filters)
        dialog.finished.connect(dialog.deleteLater)
        return dialog

    def _discard(self) -> None:
        """Closes the form and discards its contents. The form is filled in anew when it is opened again."""
        self._topology_name = ""
        super().reject()

    def _guard(self, then: Callable[[], object]) -> None:
        """Calls `then` at once if there are no unsaved changes, otherwise when the user has saved or discarded them."""
        if not self.is_changed:
            then()
            return
        name = self._path.name if self._path is not None else self.tr("this search")
        box = ConfirmationDialog(
            self.tr("Save the changes to {file}?").format(file=name),
            self.tr("If you do not save them, they are lost."),
            self.tr("Discard"),
            self.tr("Cancel"),
            self,
            alternative=self.tr("Save"),
        )
        box.setObjectName("unsaved-search")
        box.alternative_chosen.connect(lambda: self._save_then(then))
        box.accepted.connect(lambda: self._discard_then(then))
        box.finished.connect(box.deleteLater)
        box.open()

    def _save_then(self, then: Callable[[], object]) -> None:
        if self._path is None or self._has_changed_on_disk(self._path):
            self.ask_save(then)
        else:
            self.save_to(self._path, then)

    def _discard_then(self, then: Callable[[], object]) -> None:
        self._first = self.form.draft
        then()


def _position(key: FieldName) -> tuple[int, int]:
    """Returns a sort key for the position of a field in the form."""
    blocks = ("name", "metric", "parameters", "sampler", "trials", "parallel", "pruner")
    block = blocks.index(str(key[0])) if key[0] in blocks else len(blocks)
    return block, int(key[1]) if len(key) == 3 else -1
