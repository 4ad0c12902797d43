"""Parameter servers: each holds a shard of the parameters with its optimizer's state, and steps it for the workers."""
