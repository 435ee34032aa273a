"""Snapshot files in etcd's own format: made from a running member, looked at, restored into a new one."""
