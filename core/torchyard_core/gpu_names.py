"""Short names of GPU models, such as "H100" for "NVIDIA H100 80GB HBM3"."""

from __future__ import annotations

import re

VENDORS = ("nvidia", "geforce", "tesla", "quadro", "amd", "instinct", "graphics", "gpu")
"""Words that short names omit, because the rest of a name identifies the model."""
FORMS = ("HBM", "PCI", "SXM")
"""Prefixes of words that name a GPU's memory or form factor. Short names omit these words as well."""
SLURM_TYPE = re.compile(r"[a-z]{1,2}[0-9]{2,4}[a-z]?")
"""Pattern of GPU types as most administrators write them in Slurm's configuration, such as `h100`."""


def short_model(name: str) -> str:
    """Returns the short name of a GPU model, such as "H100" for "NVIDIA H100 80GB HBM3" or for Slurm's type "h100"."""
    if SLURM_TYPE.fullmatch(name):
        return name.upper()
    words = [word for word in name.split() if word.lower() not in VENDORS]
    plain = [word for word in words if not word.upper().endswith("GB") and word[:3].upper() not in FORMS]
    kept = plain or words
    return " ".join(word.split("-")[0] if word[:1].isalpha() and "-" in word else word for word in kept) or name


def model_with_memory(name: str, memory_mb: float) -> str:
    """Returns the short name of a GPU model with its memory in whole GB, such as "H100 80 GB".

    Vendors state the memory in GiB, and the GPU reserves a part of it. Rounding to whole GiB gives the vendor's number.
    Memory of 0 means unknown, and is omitted.
    """
    gigabytes = round(memory_mb / 1024)
    return f"{short_model(name)} {gigabytes} GB".strip() if gigabytes else short_model(name)
