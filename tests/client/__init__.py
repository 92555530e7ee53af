"""The SDK against real nodes."""
