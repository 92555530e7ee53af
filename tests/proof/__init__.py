"""`make proof`: runs the simulation, the planted bugs, the failpoints and real clusters, and writes docs/PROOF.md."""
