"""Snapshots of working folders, which launches send to the hosts."""
