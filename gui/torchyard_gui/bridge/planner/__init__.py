"""Inputs of the planner and the advisor: facts and use of hosts, the data of exchanges, and profiles of scripts."""
