"""The command `python -m torchyard_agent …`, run from an unpacked archive:

daemon AGENT_DIR SHA256         the daemon, as systemd starts it after a reboot
keeper AGENT_DIR NODE RUN_ID    a run's keeper, for debugging
slurm-batch JOB_FOLDER [GROUP]  the batch program of a run's job, or of a worker group's job, on a Slurm cluster
slurm-trial JOB_FOLDER NUMBER   the batch program of the job of one of a sweep's trials
slurm-node AGENT_DIR RUN_ID     the run's keeper on a node, as a task of the job
slurm-bridge RUN_FOLDER         the connection of a session on the login node to the keeper of this node
"""

from __future__ import annotations

import os
import sys


def main(arguments: list[str]) -> int:
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if len(arguments) == 3 and arguments[0] == "daemon":
        from torchyard_agent.ssh_bridge import run_daemon

        return run_daemon(*arguments[1:])
    if len(arguments) == 4 and arguments[0] == "keeper":
        from torchyard_agent.keeper.main import main as run_keeper

        return run_keeper(arguments[1], arguments[2], arguments[3])
    if len(arguments) == 2 and arguments[0] == "slurm-batch":
        from torchyard_agent.slurm.batch_program import main as run_batch

        return run_batch(arguments[1])
    if len(arguments) == 3 and arguments[0] == "slurm-batch":
        from torchyard_agent.slurm.worker_group_batch import main as run_group_batch

        return run_group_batch(*arguments[1:])
    if len(arguments) == 3 and arguments[0] == "slurm-trial":
        from torchyard_agent.slurm.trial_batch import main as run_trial

        return run_trial(arguments[1], int(arguments[2]))
    if len(arguments) == 3 and arguments[0] == "slurm-node":
        from torchyard_agent.slurm.node_task import main as run_node_task

        return run_node_task(*arguments[1:])
    if len(arguments) == 2 and arguments[0] == "slurm-bridge":
        from torchyard_agent.slurm.bridge import main as run_bridge

        return run_bridge(arguments[1])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
