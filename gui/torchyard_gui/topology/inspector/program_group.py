"""Groups of the inspector with the settings of the program."""

from __future__ import annotations

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
    TextField,
    WholeField,
    WordsField,
)
from torchyard_gui.widgets.layouts import FLUSH, vbox

OF_TORCH = ("script", "module")
OF_COMMAND = ("command", "tf_master_name")


class ProgramGroup(QWidget):
    """Four groups: the program, its environment, failures, and the end of the run."""

    def __init__(self, editor: Editor) -> None:
        super().__init__()
        self._editor = editor
        self.program = Group(self.tr("Program"), self._change)
        self.around = Group(self.tr("Sent and set up"), self._change)
        self.failures = Group(self.tr("Checkpoints and failures"), self._change)
        self.end = Group(self.tr("The end"), self._change)
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
        tip = tr("torch: a Python program, one process a GPU, as torchrun starts it. Else any program, one a replica.")
        add("launcher", tr("Launcher"), launcher, tip)
        add("script", tr("Script"), TextField("train.py"), tr("The Python file, relative to the working folder."))
        add("module", tr("Module"), TextField(tr("none")), tr("A Python module, instead of a script."))
        command = WordsField(tr("program and arguments"))
        add("command", tr("Command"), command, tr("The program and its arguments."))
        add("args", tr("Arguments"), WordsField(tr("none")), tr("Arguments of every replica."))
        env = PairsField(tr("NAME=value"))
        add("env", tr("Environment"), env, tr("Variables of every replica, one a line."))
        tip = tr("Names of variables whose values come from this computer's environment; one a line.")
        add("secrets", tr("Secrets"), LinesField(tr("none")), tip)

    def _fill_around(self) -> None:
        add, tr = self.around.add, self.tr
        workdir = TextField(tr("nothing is sent"))
        add("workdir", tr("Working folder"), workdir, tr("Sent to every host; relative to this file."))
        tip = tr("Patterns of what is not sent, beside .gitignore's; one a line.")
        add("exclude", tr("Exclude"), LinesField(tr("none")), tip)
        setup = LinesField(tr("none"))
        add("setup", tr("Setup"), setup, tr("Shell lines that run before each process."))
        add("python", tr("Python"), TextField(tr("the host's")), tr("The programs' interpreter."))

    def _fill_failures(self) -> None:
        add, tr = self.failures.add, self.tr
        tip = tr("A folder that all hosts share, for checkpoints. Empty: each host keeps its own.")
        add("checkpoint_dir", tr("Checkpoints in"), TextField(tr("no shared folder")), tip)
        add("checkpoint_every_s", tr("Checkpoint every (s)"), AmountField(600.0), tr("Seconds between checkpoints."))
        tip = tr("How often replicas that fail together may be started again, from their last checkpoint.")
        add("max_restarts", tr("Restarts"), WholeField(2), tip)
        spares = ChoiceField([(True, tr("one a rank")), (False, tr("none"))])
        tip = tr("Interpreters that wait with torch imported, so that a restart is quick; each takes memory.")
        add("warm_spares", tr("Spares"), spares, tip)
        tip = tr("Seconds that a host which is lost is waited for.")
        add("host_wait_s", tr("Wait for host, s"), AmountField(600.0), tip)

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
        add("ends_with", tr("Ends with"), ends, tr("Whose end is the run's; what is left then is stopped."))
        grace = tr("Seconds between asking a replica to end and ending it.")
        add("stop_grace_s", tr("Stop within, s"), AmountField(30.0), grace)
        tip = tr("Seconds that the others have to leave once one has failed.")
        add("failure_grace_s", tr("After failure, s"), AmountField(2.0), tip)
        tip = tr("A program that the first host runs when the run ends or needs attention.")
        add("notify", tr("Notify"), TextField(tr("none")), tip)
        gpu_ids = ChoiceField([(GpuIds.UUID, tr("by UUID")), (GpuIds.INDEX, tr("by number"))])
        add("gpu_ids", tr("GPUs named"), gpu_ids, tr("How CUDA_VISIBLE_DEVICES names GPUs."))
        master = ChoiceField([(TfMasterName.CHIEF, "chief"), (TfMasterName.MASTER, "master")])
        add("tf_master_name", tr("Chief in TF_CONFIG"), master, tr("What TF_CONFIG calls the chief."))

    def show_program(self, program: Program) -> None:
        """Shows the keys that the program's launcher uses, and other keys that are set."""
        hidden = OF_COMMAND if program.launcher is Launcher.TORCH else OF_TORCH
        for group in self.groups:
            for key, row in group.rows.items():
                row.setVisible(key not in hidden or _is_set(program, key))
            group.show_blocks([program])

    def _change(self, key: str, value: Any, label: str) -> str:
        return self._editor.set_program(key, value, label)


def _is_set(program: Program, key: str) -> bool:
    return bool(getattr(program, key) != Program.model_fields[key].get_default(call_default_factory=True))
