"""Real containers of the shipped docker-compose.yml under kill, cut, pause and restart. `python -m tests.chaos`."""
