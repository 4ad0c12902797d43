"""A calendar of the team's GPUs that cannot double-book: model and rules are pure, `store` is the only database."""
