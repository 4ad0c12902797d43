"""SSH by paramiko: the only room that imports it.

A host is reached along its `Route` (what the fleet file and ~/.ssh/config say), through bastions that all hosts behind
them share, with so many logins at once as its sshd takes. Host keys are checked strictly.
"""

from torchyard_core.fleet.ssh.dialer import SshDialer

__all__ = ["SshDialer"]
