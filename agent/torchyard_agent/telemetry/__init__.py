"""Measurements of a host: the machine, its GPUs, and the processes of its replicas.

Samples are read from files of the kernel (/proc, /sys) and from NVML. Sampling starts no process, and the modules here
import few others.
"""
