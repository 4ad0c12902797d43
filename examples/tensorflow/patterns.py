"""Generated data: ten patterns of 64 points each, with noise."""

import numpy as np

CLASSES = 10
POINTS = 64
NOISE = 2.0


def samples(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns points as float32 of shape (number, 64), and the number of each row's pattern (0 to 9).

    The ten patterns are always the same; `seed` is the seed of the noise.
    """
    patterns = np.random.default_rng(0).normal(size=(CLASSES, POINTS))
    chance = np.random.default_rng(seed)
    labels = chance.integers(CLASSES, size=number)
    points = patterns[labels] + chance.normal(scale=NOISE, size=(number, POINTS))
    return points.astype(np.float32), labels
