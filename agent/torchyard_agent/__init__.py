"""The agent that runs on every host: Python 3.9 or newer, standard library only.

On a host, each user has one daemon, which handles the requests of desktops and samples the hardware. Each run has one
keeper there, which is the parent process of the run's ranks. Daemons and keepers run from an archive that a desktop
sends (see `torchyard_core.fleet.agent_deployment`).
"""

__version__ = "0.1.0"
