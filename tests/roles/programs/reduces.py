"""A reducer at TORCHYARD_REPLICA's place in TORCHYARD_PEERS, until it is killed."""

import os
import sys

from torchyard_roles.environment import read
from torchyard_roles.exchange.reducer import Reducer
from torchyard_roles.exchange.wire import listen

if __name__ == "__main__":
    environment = read(os.environ)
    place = environment.peers.reducer[environment.index]
    reducer = Reducer(listen(place.address, place.port), environment.key, place.name)
    print("listening", file=sys.stderr, flush=True)
    reducer.serve_forever()
