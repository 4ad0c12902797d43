"""Measurements of a host: the machine, its GPUs, and the processes of the replicas on it.

Only files of /proc and NVML are read. Sampling starts no process, and the modules import little.
"""
