"""The etcd v3 services, as grpcio-style async servicers over a Replica and the Machine."""
