"""Deterministic simulation: whole members and their clients in one thread, under virtual time, from one seed."""
