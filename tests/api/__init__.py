"""The HTTP contract on a real three-node cluster of processes."""
