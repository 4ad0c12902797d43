"""The reducer TORCHYARD_REPLICA of TORCHYARD_PEERS."""

import torchyard_roles as ty

if __name__ == "__main__":
    ty.join()  # it does not return from here
