"""A replicated log for bytes: in order, durable on a majority, agreed by Raft.

Nothing in this package knows what the bytes mean. `cluster.ports` states what it asks of the world
and what it gives; `docs/ARCHITECTURE.md` walks one write through its files.
"""
