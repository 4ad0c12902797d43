"""The team's rules, one module for each. `team_rules` lists them."""
