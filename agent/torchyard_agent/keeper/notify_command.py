"""The user's command `program.notify`.

The primary's host executes this command when the run ends, starts waiting for hosts, or must end soon.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess

from torchyard_agent import umask
from torchyard_agent.keeper.processes import process_control
from torchyard_agent.keeper.processes.rank_process import RunPlace

LIMIT_S = 60.0
"""Timeout in seconds for the command at the run's end, because the keeper exits only after the command."""
POLL_S = 0.05

log = logging.getLogger(__name__)


def start(command: str, place: RunPlace, state: str, reason: str) -> subprocess.Popen[bytes] | None:
    """Starts `command` in the run's working folder, with the run's state and cause in its environment.

    The output goes to `notify.log` in the run's folder. If the command cannot be started, the error is logged and None
    is returned.
    """
    # The cause is passed as bytes, because it may contain output that is not valid text in this locale.
    cause = reason.encode("utf-8", "backslashreplace").replace(b"\0", b"")
    environment: dict[str, str | bytes] = {
        **os.environ,
        "TORCHYARD_RUN_ID": place.run_id,
        "TORCHYARD_STATE": state,
        "TORCHYARD_CAUSE": cause,
        "TORCHYARD_RUN_DIR": os.path.join(place.folder, "outputs"),
    }
    try:
        with open(os.path.join(place.folder, "notify.log"), "ab") as output:
            return subprocess.Popen(
                ["/bin/sh", "-c", command],
                cwd=place.work,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                umask=umask.of_login(),
            )
    except (OSError, ValueError) as error:
        log.warning("notify %r could not be started: %s", command, error)
        return None


async def finish(process: subprocess.Popen[bytes]) -> None:
    """Waits for the user's notification command to exit, and kills it after LIMIT_S."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LIMIT_S
    # The process is polled and not awaited, because another part of the keeper reaps all children.
    while process.poll() is None:
        if loop.time() > deadline:
            log.warning("the notify command took longer than %.0f s and was killed", LIMIT_S)
            process_control.send_group(process.pid, signal.SIGKILL)
            return
        await asyncio.sleep(POLL_S)
