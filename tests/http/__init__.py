"""The REST interface in front of a scripted host: validation, error mapping, headers. Not how a cluster behaves."""
