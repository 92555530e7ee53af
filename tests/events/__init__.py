"""The node's log lines."""
