"""The protocol between desktops, daemons, keepers and training roles.

It is the only part of the agent that other packages import. Values and codecs only: no module opens a file or a socket.
"""

PROTOCOL = 1
"""Raised when a message changes so that an older peer would misread it."""
