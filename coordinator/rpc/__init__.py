"""Leases over gRPC, with the extra `grpc`. The contracts are dgc.proto and renewals.proto."""
