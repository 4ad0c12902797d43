"""Agreement between the processes of a run: join store, collectives, stops, the checkpoint group."""
