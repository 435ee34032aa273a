"""The recorded cases of the reference data: what etcdctl printed against etcd 3.5.1, here against Kvorum."""
