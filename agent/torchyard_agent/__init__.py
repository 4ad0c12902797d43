"""The agent that runs on every host: Python 3.9 or newer, standard library only.

Each user has one daemon on a host, which answers desktops and takes measurements. Each run has one keeper on a host,
which is the parent process of the run's ranks. Both run from an archive that a desktop sends (see
`torchyard_core.fleet.agent_deployment`).
"""

__version__ = "0.1.0"
