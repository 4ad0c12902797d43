"""SSH connections through paramiko, which only this package imports, or the system's ssh (`openssh`).

A `Route` describes the logins on the way to a host, from the fleet file and ~/.ssh/config. Through paramiko, hosts
share the logins on their bastions. The number of concurrent logins per sshd is limited, and unknown host keys are
rejected.
"""

from torchyard_core.fleet.ssh.dialer import SshDialer

__all__ = ["SshDialer"]
