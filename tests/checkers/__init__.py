"""One file per invariant of the cluster. Each checker sees the run as it happens and raises `Violation`."""
