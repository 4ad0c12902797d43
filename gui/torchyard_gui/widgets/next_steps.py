"""Shows messages of torchyard_core in the window, as sentences and with buttons for next steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict

from PySide6.QtCore import QCoreApplication
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QWidget

from torchyard_core import next_steps as steps
from torchyard_core.errors import TorchyardError
from torchyard_core.next_steps import Advice, NextStep, parts_of
from torchyard_gui.widgets.layouts import clear_layout

TEXTS: dict[type[NextStep], tuple[str, str]] = {
    steps.DeployAgent: ("Deploy to {host}", "Press “Deploy” on the Fleet page."),
    steps.TrustKey: ("Trust {host} …", "Press “Trust …” on the Fleet page."),
    steps.CheckHosts: ("Check the hosts", "The Fleet page checks what each host has."),
    steps.AddHost: ("Add a host …", "Add a host on the Fleet page."),
    steps.RemoveHost: ("Remove {host} …", "Remove {host} on the Fleet page."),
    steps.SetHostField: ("Edit {host} …", "Edit {host} on the Fleet page: “{field}”."),
    steps.ShowHosts: ("Show the hosts", "See the Fleet page."),
    steps.LaunchTopology: ("Go to the topology", "Launch its topology on the Topology page."),
    steps.SendSecrets: ("Go to the topology", "Launch its topology on the Topology page."),
    steps.LaunchAt: ("Plan for {start}", "Plan for {start} on the Topology page."),
    steps.LaunchWithBooking: (
        "Choose when …",
        "The booking ends with the run. For another length, press “When” first.",
    ),
    steps.AnswerYes: ("", "Launch again to answer yes."),
    steps.ValidateTopology: ("Show all problems", "Problems on the Topology page lists them all."),
    steps.ValidateSweep: ("", "The command line checks search files."),
    steps.ProfileScript: ("Profile the script", "Press “Profile” in Advice on the Topology page."),
    steps.ImportDocument: ("Import …", "Import it on the Topology page."),
    steps.SetField: ("Show the field", "The field is on the Topology page."),
    steps.ListRuns: ("Show the runs", "The Runs page shows all runs."),
    steps.StopRun: ("Stop the run …", "Stop it on the Runs page."),
    steps.ShowSweep: ("Show the sweep", "The Sweeps page shows its trials."),
    steps.StopSweep: ("", "Stop it on the Sweeps page, if it is not wanted any more."),
    steps.ResumeSweep: ("Show the sweep", "Resume it on the Sweeps page."),
    steps.WriteTrial: ("Show the sweep", "Open the trial's topology on the Sweeps page."),
    steps.ShowLogs: ("Show the logs", "The Runs page shows their output."),
    steps.BookGpus: ("Book GPUs …", "Or book them first on the Bookings page."),
    steps.BookNodes: ("", "The command line books nodes of a cluster."),
    steps.ChangeBooking: ("Show the booking", "Change the booking on the Bookings page."),
    steps.ListBookings: ("Show the bookings", "See the Bookings page."),
    steps.ShowRules: ("Show the rules", "Show the rules on the Bookings page."),
    steps.JoinWaitlist: ("Show the waitlist", "Join the waitlist on the Bookings page."),
    steps.SetUpTeam: ("Team calendar …", "An admin uses “Team calendar …” on the Bookings page for this."),
}
"""For each type of step: the label of its button (empty if there is none), and the sentence that replaces the button
where none can be shown.
"""


def quoted(text: str) -> str:
    """Replaces pairs of backticks with quotation marks."""
    first, *rest = text.split("`")
    for number in range(0, len(rest) - 1, 2):
        first += f"“{rest[number]}”{rest[number + 1]}"
    return first if len(rest) % 2 == 0 else f"{first}`{rest[-1]}"


def button_text(step: NextStep) -> str:
    """Returns the text of the button for a step, or "" if the window cannot perform the step."""
    if isinstance(step, steps.CheckHosts) and len(step.hosts) == 1:
        return QCoreApplication.translate("NextSteps", "Check {host}").format(host=step.hosts[0])
    text, _ = TEXTS.get(type(step), ("", ""))
    return QCoreApplication.translate("NextSteps", text).format(**asdict(step)) if text else ""


Here = Mapping[type[NextStep], str]
"""Sentences, by type of step, that replace those of `TEXTS` in a text next to the button that performs the step. Such a
sentence need not name the page of the button.
"""


def step_text(step: NextStep) -> str:
    """Returns a step as a sentence. The sentence contains a command line only if the step is not in `TEXTS`."""
    _, text = TEXTS.get(type(step), ("", ""))
    return QCoreApplication.translate("NextSteps", text).format(**asdict(step)) if text else quoted(step.sentence())


def advice_text(advice: Advice, *, has_buttons: bool = False, here: Here | None = None) -> str:
    """Returns advice as text. If `has_buttons` is set, steps that have a button beside the text are left out."""
    return " ".join(
        quoted(part) if isinstance(part, str) else (here or {}).get(type(part)) or step_text(part)
        for part in parts_of(advice)
        if isinstance(part, str) or not (has_buttons and button_text(part))
    )


_BEGINNINGS = {"a", "compare", "line", "no", "only", "port", "something", "the", "there", "this"}
"""First words of messages that are capitalized. Other first words may be names, and stay as they are."""


def as_sentence(
    message: str,
    advice: Advice = "",
    *,
    host: str = "",
    has_buttons: bool = False,
    here: Here | None = None,
) -> str:
    """Returns a message of torchyard_core as sentences, with its advice. A host name at the beginning is not
    capitalized.
    """
    message = quoted(message)
    if not message.endswith((".", "!", "?", ":", "\n")):
        message += "."
    first = message.split(" ")[0]
    if first in _BEGINNINGS and first != host:
        message = message[0].upper() + message[1:]
    return f"{message} {advice_text(advice, has_buttons=has_buttons, here=here)}".strip()


def error_text(error: TorchyardError, *, has_buttons: bool = False, here: Here | None = None) -> str:
    """Returns an error with its advice as sentences."""
    return as_sentence(error.message, error.advice, has_buttons=has_buttons, here=here)


def step_button(step: NextStep) -> QPushButton:
    button = QPushButton(button_text(step))
    button.clicked.connect(lambda: take_step(button, step))
    return button


def take_step(widget: QWidget, step: NextStep) -> None:
    """Asks the window that contains the widget to perform a step."""
    around: QWidget | None = widget
    while around is not None:
        if (wanted := getattr(around, "step_wanted", None)) is not None:
            wanted.emit(step)
            return
        around = around.parentWidget()


def with_buttons(wanted: Iterable[NextStep]) -> list[NextStep]:
    """Returns the steps that the window can perform, without duplicates. All checks of hosts are merged into a single
    step.
    """
    shown = [step for step in dict.fromkeys(wanted) if button_text(step)]
    checks = [step for step in shown if isinstance(step, steps.CheckHosts)]
    if len(checks) < 2:
        return shown
    named = dict.fromkeys(host for check in checks for host in check.hosts)
    every = steps.CheckHosts(tuple(named) if all(check.hosts for check in checks) else ())
    shown[shown.index(checks[0])] = every
    return [step for step in shown if step is every or not isinstance(step, steps.CheckHosts)]


class StepButtons(QWidget):
    """A row of buttons for next steps, which is hidden while there are no buttons."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._steps: list[NextStep] = []
        self._row = QHBoxLayout(self)
        self._row.setContentsMargins(0, 2, 0, 2)
        self._row.addStretch()
        self.hide()

    def show_steps(self, wanted: Iterable[NextStep]) -> None:
        """Sets the steps. If the steps have not changed, the buttons are kept, and so is the focus."""
        shown = with_buttons(wanted)
        if shown == self._steps:
            return
        self._steps = shown
        clear_layout(self._row)
        for number, step in enumerate(shown):
            self._row.insertWidget(number, step_button(step))
        self.setVisible(bool(shown))
