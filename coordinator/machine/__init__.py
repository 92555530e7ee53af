"""The replicated state and its rules: pure, deterministic, no input or output, no clock."""
