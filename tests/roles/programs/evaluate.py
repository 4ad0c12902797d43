"""Prints, as JSON, every variable that describes the group of ranks. Stands for an evaluator's script that does not use
torch.
"""

import json
import os

PREFIXES = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "TORCHYARD_")
NAMES = ("CLUSTER_SPEC", "TF_CONFIG", "CUDA_VISIBLE_DEVICES")

if __name__ == "__main__":
    seen = {name: value for name, value in os.environ.items() if name.startswith(PREFIXES) or name in NAMES}
    print(json.dumps(seen, sort_keys=True), flush=True)
