"""Hogwild: worker groups that exchange deltas with each other."""
