"""SSH connections through paramiko, which only this package imports, or the system's ssh (`openssh`).

A `Route` describes the logins on the way to a host, from the fleet file and ~/.ssh/config. Hosts share the logins on
their bastions, the number of concurrent logins per sshd is limited, and host keys are checked strictly.
"""

from torchyard_core.fleet.ssh.dialer import SshDialer

__all__ = ["SshDialer"]
