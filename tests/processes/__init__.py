"""The cluster in real processes: real sockets, real fsync, real signals."""
