"""The protocol between desktops, daemons, keepers and training roles.

This is the only package of the agent that other packages may import. It contains values and codecs. None of its modules
opens a file or a socket.
"""

PROTOCOL = 1
"""The version number of the protocol. It increases with each change that an older peer would misread."""
