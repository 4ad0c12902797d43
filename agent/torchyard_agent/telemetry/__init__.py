"""Measurements of a host: the machine, its GPUs, and the processes of the replicas there.

Only files of /proc and NVML are read; sampling starts no process, and the modules import little.
"""
