"""Inspector groups for the settings of the program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PySide6.QtWidgets import QWidget

from torchyard_core.topology.model import EndsWith, GpuIds, Launcher, Program, TfMasterName
from torchyard_gui.topology.editor import Editor
from torchyard_gui.topology.inspector.field_group import Group, stack
from torchyard_gui.topology.inspector.fields import (
    AmountField,
    ChoiceField,
    LinesField,
    PairsField,
    PathField,
    TextField,
    WholeField,
    WordsField,
)
from torchyard_gui.widgets.layouts import FLUSH, vbox

OF_TORCH = ("script", "module")
OF_COMMAND = ("command", "tf_master_name")


class ProgramGroup(QWidget):
    """Four groups of fields: the program, its files and setup, checkpoints and failures, and the end of the run."""

    def __init__(self, editor: Editor) -> None:
        super().__init__()
        self._editor = editor
        self.program = Group(self.tr("Program"), self._change)
        self.around = Group(self.tr("Files and setup"), self._change)
        self.failures = Group(self.tr("Checkpoints and failures"), self._change)
        self.end = Group(self.tr("End of the run"), self._change)
        self._fill_program()
        self._fill_around()
        self._fill_failures()
        self._fill_end()
        layout = vbox(parent=self, margins=FLUSH, spacing=12)
        stack(self.groups, layout)

    @property
    def groups(self) -> tuple[Group, ...]:
        return (self.program, self.around, self.failures, self.end)

    def _fill_program(self) -> None:
        add, tr = self.program.add, self.tr
        launcher = ChoiceField([(Launcher.TORCH, tr("torch")), (Launcher.COMMAND, tr("any command"))])
        tip = tr("torch starts one Python process per GPU, as torchrun does; any command, one process per replica.")
        add("launcher", tr("Launcher"), launcher, tip)
        script = PathField("train.py", self._working_folder)
        add("script", tr("Script"), script, tr("The Python file, relative to the working folder."))
        add("module", tr("Module"), TextField(tr("none")), tr("A Python module instead of a script."))
        command = WordsField(tr("program and arguments"))
        add("command", tr("Command"), command, tr("The program and its arguments."))
        add("args", tr("Arguments"), WordsField(tr("none")), tr("Arguments of every replica."))
        env = PairsField(tr("NAME=value"))
        add("env", tr("Environment"), env, tr("Variables of every replica, one per line."))
        tip = tr("Names of variables whose values come from this computer's environment, one per line.")
        add("secrets", tr("Secrets"), LinesField(tr("none")), tip)

    def _fill_around(self) -> None:
        add, tr = self.around.add, self.tr
        workdir = PathField(tr("nothing is sent"), self._file_folder, folders=True)
        tip = tr("The folder that is sent to every host, relative to this file.")
        add("workdir", tr("Working folder"), workdir, tip)
        tip = tr("Patterns of files that are not sent, in addition to .gitignore; one per line.")
        add("exclude", tr("Exclude"), LinesField(tr("none")), tip)
        setup = LinesField(tr("none"))
        add("setup", tr("Setup"), setup, tr("Shell commands to run before each process."))
        add("python", tr("Python"), TextField(tr("the host's")), tr("Python interpreter on the hosts."))

    def _fill_failures(self) -> None:
        add, tr = self.failures.add, self.tr
        tip = tr("Shared folder for checkpoints. If empty, each host keeps its own.")
        add("checkpoint_dir", tr("Checkpoints in"), TextField(tr("no shared folder")), tip)
        add("checkpoint_every_s", tr("Checkpoint every (s)"), AmountField(600.0), tr("Seconds between checkpoints."))
        tip = tr("Maximum number of restarts of replicas that fail together, each from the last checkpoint.")
        add("max_restarts", tr("Restarts"), WholeField(2), tip)
        spares = ChoiceField([(True, tr("one per rank")), (False, tr("none"))])
        tip = tr("Interpreters that wait with torch imported, for faster restarts. Each takes memory.")
        add("warm_spares", tr("Spares"), spares, tip)
        tip = tr("Seconds to wait for a lost host.")
        add("host_wait_s", tr("Wait for host (s)"), AmountField(600.0), tip)

    def _fill_end(self) -> None:
        add, tr = self.end.add, self.tr
        ends = ChoiceField(
            [
                (None, tr("automatic")),
                (EndsWith.TRAINERS, tr("the trainers")),
                (EndsWith.CHIEF, tr("the chief")),
                (EndsWith.ALL, tr("all")),
            ]
        )
        add("ends_with", tr("Ends with"), ends, tr("Replicas whose end ends the run. The others are stopped then."))
        grace = tr("Seconds between SIGTERM and SIGKILL when a replica is stopped.")
        add("stop_grace_s", tr("Stop within (s)"), AmountField(30.0), grace)
        tip = tr("Seconds in which the other replicas can exit after one has failed.")
        add("failure_grace_s", tr("After failure (s)"), AmountField(2.0), tip)
        tip = tr("A program that the first host runs when the run ends or needs attention.")
        add("notify", tr("Notify"), TextField(tr("none")), tip)
        gpu_ids = ChoiceField([(GpuIds.UUID, tr("by UUID")), (GpuIds.INDEX, tr("by number"))])
        add("gpu_ids", tr("GPU names"), gpu_ids, tr("Form of GPU names in CUDA_VISIBLE_DEVICES."))
        master = ChoiceField([(TfMasterName.CHIEF, "chief"), (TfMasterName.MASTER, "master")])
        add("tf_master_name", tr("Chief in TF_CONFIG"), master, tr("Name of the chief in TF_CONFIG."))

    def _file_folder(self) -> Path | None:
        """Returns the folder of the topology file, to which the working folder is relative, or None if there is no
        file.
        """
        return self._editor.document.folder

    def _working_folder(self) -> Path | None:
        folder = self._editor.document.folder
        return folder / self._editor.value.program.workdir if folder and self._editor.value.program.workdir else folder

    def show_program(self, program: Program) -> None:
        """Shows the keys that the program's launcher uses, and all other keys that have a value."""
        hidden = OF_COMMAND if program.launcher is Launcher.TORCH else OF_TORCH
        for group in self.groups:
            for key, row in group.rows.items():
                row.setVisible(key not in hidden or _is_set(program, key))
            group.show_blocks([program])

    def _change(self, key: str, value: Any, label: str) -> str:
        return self._editor.set_program(key, value, label)


def _is_set(program: Program, key: str) -> bool:
    return bool(getattr(program, key) != Program.model_fields[key].get_default(call_default_factory=True))
