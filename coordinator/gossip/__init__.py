"""Copies held by peers that gossip: records, tombstones and who keeps them, without the coordinator.

`replica` is the protocol, pure: messages in, messages out, no clock, no chance, no input or output. `node` runs it over
HTTP with `seal` (who may speak), `store` (what survives a restart) and `settings` (what a node is told). DESIGN §10 and
docs/TOMBSTONES.md say why the rules are as they are.
"""
