"""Clusters for the drills."""

from tests.cluster.conftest import own_cluster

__all__ = ["own_cluster"]
