"""Watching: who is interested in which keys, delivery of live changes, catching up from history (contract §6)."""
