"""``kvorum bench``: what the parts cost, and how the whole compares with a real etcd on the same machine."""
