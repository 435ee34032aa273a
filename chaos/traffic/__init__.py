"""Clients that load a real store and record what they were told, for chaos.check."""
