"""Checkers: is what clients saw what one correct etcd could have shown? Pure functions over recorded histories."""
