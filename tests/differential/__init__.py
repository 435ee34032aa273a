"""The same random operations against Kvorum and a real etcd, side by side: every answer must be the same."""
