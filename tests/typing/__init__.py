"""What type checkers of those who use the SDK see of it."""
