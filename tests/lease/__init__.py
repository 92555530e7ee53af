"""Each rule of the leader lease: shown without it, held with it."""
