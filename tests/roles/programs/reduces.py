"""A reducer at TORCHYARD_REPLICA's place in TORCHYARD_PEERS, as a script of every role has it."""

import torchyard_roles as ty

if __name__ == "__main__":
    ty.join()  # it does not return from here
