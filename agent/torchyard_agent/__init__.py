"""The agent that runs on every host: Python 3.9 or newer, standard library only.

A daemon per user and host answers desktops and takes measurements; a keeper per run and host is the parent of the run's
ranks. Both run from an archive that a desktop sends (see `torchyard_core.fleet.agent_deployment`).
"""

__version__ = "0.1.0"
