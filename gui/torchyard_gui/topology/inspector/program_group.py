"""Settings of the program in the inspector."""

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
        add = self.program.add
        launcher = ChoiceField([(Launcher.TORCH, self.tr("torch")), (Launcher.COMMAND, self.tr("any command"))])
        add(
            "launcher",
            self.tr("Launcher"),
            launcher,
            self.tr(
                "torch: a Python program, one process a GPU, as torchrun starts it. Else any program, one a replica."
            ),
        )
        add(
            "script",
            self.tr("Script"),
            TextField("train.py"),
            self.tr("The Python file, relative to the working folder."),
        )
        add("module", self.tr("Module"), TextField(self.tr("none")), self.tr("A Python module, instead of a script."))
        command = WordsField(self.tr("program and arguments"))
        add("command", self.tr("Command"), command, self.tr("The program and its arguments."))
        add("args", self.tr("Arguments"), WordsField(self.tr("none")), self.tr("Arguments of every replica."))
        env = PairsField(self.tr("NAME=value"))
        add("env", self.tr("Environment"), env, self.tr("Variables of every replica, one a line."))
        add(
            "secrets",
            self.tr("Secrets"),
            LinesField(self.tr("none")),
            self.tr("Names of variables whose values come from this computer's environment; one a line."),
        )

    def _fill_around(self) -> None:
        add = self.around.add
        workdir = TextField(self.tr("nothing is sent"))
        add("workdir", self.tr("Working folder"), workdir, self.tr("Sent to every host; relative to this file."))
        add(
            "exclude",
            self.tr("Not sent"),
            LinesField(self.tr("none")),
            self.tr("Patterns of what is not sent, beside .gitignore's; one a line."),
        )
        setup = LinesField(self.tr("none"))
        add("setup", self.tr("Setup"), setup, self.tr("Shell lines that run before each process."))
        add("python", self.tr("Python"), TextField(self.tr("the host's")), self.tr("The programs' interpreter."))

    def _fill_failures(self) -> None:
        add = self.failures.add
        add(
            "checkpoint_dir",
            self.tr("Checkpoints in"),
            TextField(self.tr("no shared folder")),
            self.tr("A folder that all hosts share, for checkpoints. Empty: each host keeps its own."),
        )
        add(
            "checkpoint_every_s",
            self.tr("Every, s"),
            AmountField(600.0),
            self.tr("Seconds between two checkpoints."),
        )
        add(
            "max_restarts",
            self.tr("Restarts"),
            WholeField(2),
            self.tr("How often replicas that fail together may be started again, from their last checkpoint."),
        )
        spares = ChoiceField([(True, self.tr("one a rank")), (False, self.tr("none"))])
        add(
            "warm_spares",
            self.tr("Spares"),
            spares,
            self.tr("Interpreters that wait with torch imported, so that a restart is quick; each takes memory."),
        )
        add(
            "host_wait_s",
            self.tr("Wait for host, s"),
            AmountField(600.0),
            self.tr("Seconds that a host which is lost is waited for."),
        )

    def _fill_end(self) -> None:
        add = self.end.add
        ends = ChoiceField(
            [
                (None, self.tr("automatic")),
                (EndsWith.TRAINERS, self.tr("the trainers")),
                (EndsWith.CHIEF, self.tr("the chief")),
                (EndsWith.ALL, self.tr("all")),
            ]
        )
        add("ends_with", self.tr("Ends with"), ends, self.tr("Whose end is the run's; what is left then is stopped."))
        grace = self.tr("Seconds between asking a replica to end and ending it.")
        add("stop_grace_s", self.tr("Stop within, s"), AmountField(30.0), grace)
        add(
            "failure_grace_s",
            self.tr("After failure, s"),
            AmountField(2.0),
            self.tr("Seconds that the others have to leave once one has failed."),
        )
        add(
            "notify",
            self.tr("Notify"),
            TextField(self.tr("nobody")),
            self.tr("A program that the first host runs when the run ends or needs somebody."),
        )
        gpu_ids = ChoiceField([(GpuIds.UUID, self.tr("by UUID")), (GpuIds.INDEX, self.tr("by number"))])
        add("gpu_ids", self.tr("GPUs named"), gpu_ids, self.tr("How CUDA_VISIBLE_DEVICES names GPUs."))
        master = ChoiceField([(TfMasterName.CHIEF, "chief"), (TfMasterName.MASTER, "master")])
        add("tf_master_name", self.tr("Chief in TF_CONFIG"), master, self.tr("What TF_CONFIG calls the chief."))

    def show_program(self, program: Program) -> None:
        """Shows a program: the keys of its launcher, and keys of the other one that are set."""
        hidden = OF_COMMAND if program.launcher is Launcher.TORCH else OF_TORCH
        for group in self.groups:
            for key, row in group.rows.items():
                row.setVisible(key not in hidden or _is_set(program, key))
            group.show_blocks([program])

    def _change(self, key: str, value: Any, label: str) -> str:
        return self._editor.set_program(key, value, label)


def _is_set(program: Program, key: str) -> bool:
    return bool(getattr(program, key) != Program.model_fields[key].get_default(call_default_factory=True))
