"""Runs on a Slurm cluster: the session on the login node, the batch program, and the keepers' tasks on the nodes.

No process of Torchyard stays on the login node or on a node without a job. `session` serves a desktop while its SSH
connection lasts. `batch` is the batch program of a run's job: it starts one `node_task` per node, each of which is a
keeper. `bridge` connects a session to the primary.
"""
