"""The team's rules, one module each; `team_rules` lists them."""
