"""The team's rules, with one module per rule. `team_rules` lists all rules."""
