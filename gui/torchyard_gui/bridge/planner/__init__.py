"""Inputs of the planner and the advisor: host facts and use, exchange sizes and bandwidths, and script profiles."""
