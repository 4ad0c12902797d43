"""What the desktop, the daemons, the keepers and the training roles agree on.

The one part of the agent that others import. Pure values and codecs: nothing here opens a file or a socket.
"""

PROTOCOL = 1
"""Raised when a message changes so that an older peer would misread it."""
