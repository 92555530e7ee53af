"""Configuration files: what loads, what is refused, and what the refusal says."""
