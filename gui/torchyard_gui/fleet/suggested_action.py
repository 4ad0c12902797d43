"""The action that a button on the card of a host or cluster offers, such as trusting a key or installing the agent."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QCoreApplication

from torchyard_core.errors import KeyChanged, KeyUnknown
from torchyard_core.fleet.host_check import READY
from torchyard_core.next_steps import SetHostField
from torchyard_gui.bridge.host_states import HostState
from torchyard_gui.bridge.host_status import UNKNOWN, CheckedEntry, HostStatus

translate = QCoreApplication.translate


@dataclass(frozen=True)
class SuggestedAction:
    """The action suggested for a host or cluster, and the text of the action's button."""

    action: str
    """The action of the button: `check`, `deploy`, `trust`, `edit` or `cancel`."""
    text: str


def suggested_action(status: CheckedEntry) -> SuggestedAction | None:
    """Returns the action for the button on the card of a host or cluster, or None if there is none.

    For a cluster without an agent, the action is `check`, which also installs the agent on the login node.
    """
    if status.doing is not None:
        return SuggestedAction("cancel", translate("Fleet", "Cancel"))
    if status.lost is None and isinstance(status.error, (KeyUnknown, KeyChanged)):
        return SuggestedAction("trust", translate("Fleet", "Trust …"))
    if status.state == "agent missing" and not isinstance(status, HostStatus):
        install = translate("Fleet", "Install") if status.has_no_agent else translate("Fleet", "Check again")
        return SuggestedAction("check", install)
    if status.state == "agent missing":
        return SuggestedAction(
            "deploy", translate("Fleet", "Deploy") if status.has_no_agent else translate("Fleet", "Deploy again")
        )
    if status.state == UNKNOWN and status.check is None:
        return SuggestedAction("check", translate("Fleet", "Check"))
    if status.lost is None and _has_wrong_address(status):
        return SuggestedAction("edit", translate("Fleet", "Edit …"))
    return None if status.state == READY else SuggestedAction("check", translate("Fleet", "Check again"))


def _has_wrong_address(status: CheckedEntry) -> bool:
    """Returns whether the host is unreachable because its address or jump host in the fleet file is wrong."""
    steps = status.error.next if status.error is not None else ()
    wrong = (SetHostField(status.name, field) for field in ("address", "proxy_jump"))
    return status.condition is HostState.UNREACHABLE and any(step in steps for step in wrong)
