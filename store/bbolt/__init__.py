"""bbolt files, the container of etcd's snapshots: a validating reader and a bulk writer (contract §14)."""
