"""What the agent measures on a host: the machine, its GPUs, and the processes of the replicas there.

Reads named files of /proc and NVML only, imports little, and starts no process while sampling.
"""
