"""A small state machine to exercise the cluster with: registers with compare-and-set."""
