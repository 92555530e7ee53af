"""The cluster layer by its promises: engine pins, membership, hand-over, proposals, clock."""
