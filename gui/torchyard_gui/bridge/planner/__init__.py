"""What the planner and the advisor know: facts and use of hosts, the data of exchanges, and profiles of scripts."""
