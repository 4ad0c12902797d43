"""Keeps a lab running until Ctrl-C is pressed: `python -m tests.lab --hosts 3 --fleet /tmp/home/fleet.yaml`."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.lab.lab import Lab
from tests.lab.needs import LabBroken, LabUnavailable


def main() -> int:
    """Creates hosts, prints their fleet file, waits for a signal, and removes the hosts."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    parser.add_argument("--hosts", type=int, default=3, metavar="N", help="how many (default 3)")
    parser.add_argument("--fleet", type=Path, metavar="FILE", help="write the fleet file here, known_hosts beside it")
    parser.add_argument("--shared-home", action="store_true", help="one HOME for all, as over NFS")
    options = parser.parse_args()
    # Like Ctrl-C, SIGTERM stops the lab and cleans up. Both are set, because shells make background jobs ignore SIGINT.
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, signal.default_int_handler)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="torchyard-lab-") as directory,
            Lab(options.hosts, directory=Path(directory), shared_home=options.shared_home) as lab,
        ):
            hold(lab, options.fleet)
    except KeyboardInterrupt:
        print("The lab is gone.", file=sys.stderr)
    except (LabUnavailable, LabBroken) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def hold(lab: Lab, fleet: Path | None) -> None:
    """Prints the fleet file, writes it to `fleet` if given, and waits for a signal."""
    if fleet is not None:
        fleet.parent.mkdir(parents=True, exist_ok=True)
        fleet.write_text(lab.fleet_yaml())
        fleet.with_name("known_hosts").write_text(lab.known_hosts)
    print(lab.fleet_yaml(), flush=True)
    first = lab.hosts[0]
    print(f"Log in: ssh -i {lab.identity_file} {first.user}@{first.address}", file=sys.stderr)
    print("Ctrl-C takes the hosts down.", file=sys.stderr, flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
