"""SSH connections, made with paramiko or with the system's ssh (`openssh`). Only this package imports paramiko.

A `Route` describes the logins that lead to a host, according to the fleet file and ~/.ssh/config. With paramiko, hosts
share the logins on their bastions. The number of concurrent logins per sshd is limited, and unknown host keys are
rejected.
"""

from torchyard_core.fleet.ssh.dialer import SshDialer

__all__ = ["SshDialer"]
