"""The gossip node: its protocol under every schedule, its bytes, its seal, its file, and real processes."""
