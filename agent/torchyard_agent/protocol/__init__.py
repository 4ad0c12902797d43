"""The protocol between desktops, daemons, keepers and training roles.

This is the only package of the agent that other packages import. It contains values and codecs; none of its modules
opens a file or a socket.
"""

PROTOCOL = 1
"""The protocol number. It increases with each change of a message that an older peer would misread."""
