"""The agent that runs on every host: Python 3.9 or newer, standard library only.

A daemon per user and host answers the desktop and measures; a keeper per run and host is the parent
of the replicas there. Both come from one archive that the desktop sends (see `torchyard_core.fleet.agent_deployment`).
"""

__version__ = "0.1.0"
