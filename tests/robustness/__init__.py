"""Real processes behind a frame proxy on every link, real faults, and histories that are checked. `make robustness`."""
