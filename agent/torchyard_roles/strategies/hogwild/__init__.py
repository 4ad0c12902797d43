"""The strategy Hogwild: worker groups that train independently and exchange deltas of their parameters."""
