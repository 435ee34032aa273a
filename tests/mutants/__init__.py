"""Deliberate one-line faults, and the proof that the tests find each of them."""
