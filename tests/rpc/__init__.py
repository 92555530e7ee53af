"""gRPC, as a client with code generated from the shipped .proto files sees it."""
