"""The newest checkpoint of a run on its hosts, from which a restart would resume."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torchyard_core.launch.agent_interface import AgentLink
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_core.launch.runs.output_download import list_files

_COMPLETE = re.compile(r"outputs/checkpoints/step-(\d{12})/checkpoint\.json")
"""The path of a checkpoint's description. A folder is named `step-NUMBER` only after all its files are complete."""


@dataclass(frozen=True)
class SavedStep:
    """A complete checkpoint in a run's folder."""

    step: int
    host: str


def newest_checkpoint(run: KnownRun, links: Mapping[str, AgentLink]) -> SavedStep | None:
    """Returns the newest checkpoint in the run's folders, or None if there is none. Asks the hosts that answer.

    Raises TorchyardError if no host can list its files. Checkpoints in a shared folder are not found.
    """
    found, problems = list_files(run.run_id, "outputs/checkpoints/step-*/checkpoint.json", run.hosts, links)
    if problems and not found:
        raise next(iter(problems.values()))
    saved = [
        SavedStep(int(match[1]), host)
        for host, files in found.items()
        for file in files
        if (match := _COMPLETE.fullmatch(str(file["path"])))
    ]
    return max(saved, key=lambda one: one.step, default=None)
