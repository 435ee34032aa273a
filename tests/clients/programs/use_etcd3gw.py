"""etcd3gw (requests, over the JSON gateway): HOST PORT [CA CERT KEY]."""

from __future__ import annotations

import sys

import etcd3gw
from etcd3gw.exceptions import Etcd3Exception


def main(host: str, port: int, tls: list[str]) -> None:
    ca, cert, key = tls or (None, None, None)
    protocol = "https" if tls else "http"
    for api_path in ("/v3/", None):  # the second asks for /version and finds out
        client = etcd3gw.client(
            host, port, ca_cert=ca, cert_cert=cert, cert_key=key, timeout=10, protocol=protocol, api_path=api_path
        )
        keys(client)
        changes(client)
        leases(client)
        with client.lock("etcd3gw", ttl=10) as lock:
            assert lock.is_acquired()
        assert client.status()["leader"]
        assert [member["name"] for member in client.members()] == ["m1"]


def keys(client: etcd3gw.Etcd3Client) -> None:
    assert client.create("etcd3gw/a", "1")
    assert not client.create("etcd3gw/a", "2")
    assert client.get("etcd3gw/a") == [b"1"]
    assert client.put("etcd3gw/b", "2")
    assert [value for value, _ in client.get_prefix("etcd3gw/", sort_order="descend")] == [b"2", b"1"]
    assert client.replace("etcd3gw/a", "1", "3")
    assert client.delete("etcd3gw/b")
    assert client.delete_prefix("etcd3gw/")
    assert client.get("etcd3gw/a") == []
    client.put("etcd3gw/a", "1")
    revision = client.get("etcd3gw/a", metadata=True)[0][1]["mod_revision"]
    client.post(client.get_url("/kv/compaction"), json={"revision": revision, "physical": True})
    refusal = None
    try:
        client.post(client.get_url("/kv/compaction"), json={"revision": revision})
    except Etcd3Exception as error:
        refusal = error
    assert refusal is not None
    assert "compacted" in f"{refusal} {refusal.detail_text}"
    client.delete("etcd3gw/a")


def changes(client: etcd3gw.Etcd3Client) -> None:
    client.put("etcd3gw/w", "0")
    first = int(client.get("etcd3gw/w", metadata=True)[0][1]["mod_revision"]) + 1
    events, cancel = client.watch_prefix("etcd3gw/w", start_revision=first)
    client.put("etcd3gw/w", "1")
    client.delete("etcd3gw/w")
    put, delete = next(events), next(events)
    cancel()
    assert put["kv"]["value"] == b"1"
    assert delete["type"] == "DELETE"


def leases(client: etcd3gw.Etcd3Client) -> None:
    lease = client.lease(ttl=60)
    client.put("etcd3gw/leased", "x", lease)
    assert lease.refresh() == 60
    assert 0 < lease.ttl() <= 60
    assert lease.keys() == [b"etcd3gw/leased"]
    assert lease.revoke()
    assert client.get("etcd3gw/leased") == []


main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
