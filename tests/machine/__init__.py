"""The replicated state and its rules."""
