"""The strategy Hogwild: worker groups train independently and exchange the changes (deltas) of their parameters."""
