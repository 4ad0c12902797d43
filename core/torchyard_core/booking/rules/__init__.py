"""The team's rules, which `team_rules` lists, and their application to bookings and searches."""
