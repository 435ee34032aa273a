"""etcd3 (python-etcd3: threads, grpcio, protobuf before 4): HOST PORT [CA CERT KEY]."""

from __future__ import annotations

import sys

import etcd3


def main(host: str, port: int, tls: list[str]) -> None:
    ca, cert, key = tls or (None, None, None)
    with etcd3.client(host, port, ca_cert=ca, cert_cert=cert, cert_key=key, timeout=10) as client:
        keys(client)
        changes(client)
        leases(client)
        with client.lock("etcd3/lock", ttl=10) as lock:
            assert lock.is_acquired()
        assert client.status().version
        assert [member.name for member in client.members] == ["m1"]
        with open("snapshot.db", "wb") as file:
            client.snapshot(file)
            assert file.tell() > 10_000


def keys(client: etcd3.Etcd3Client) -> None:
    client.put("etcd3/a", "1")
    assert client.get("etcd3/a")[0] == b"1"
    assert client.put_if_not_exists("etcd3/b", "2")
    assert not client.put_if_not_exists("etcd3/b", "3")
    found = [meta.key for _, meta in client.get_prefix("etcd3/", sort_order="descend", sort_target="key")]
    assert found == [b"etcd3/b", b"etcd3/a"]
    done, answers = client.transaction(
        compare=[client.transactions.value("etcd3/a") == "1", client.transactions.version("etcd3/b") > 0],
        success=[client.transactions.put("etcd3/c", "4"), client.transactions.get("etcd3/a")],
        failure=[client.transactions.delete("etcd3/a")],
    )
    assert done
    assert answers[1][0][0] == b"1"
    assert client.delete("etcd3/c")
    assert client.delete_prefix("etcd3/").deleted == 2
    client.put("etcd3/a", "1")
    revision = client.get_response("etcd3/a").header.revision
    client.compact(revision, physical=True)
    events, cancel = client.watch("etcd3/a", start_revision=1)
    refusal = None
    try:
        next(events)
    except etcd3.exceptions.RevisionCompactedError as error:
        refusal = error
    assert refusal is not None
    assert refusal.compacted_revision == revision
    cancel()


def changes(client: etcd3.Etcd3Client) -> None:
    events, cancel = client.watch_prefix("etcd3/w", prev_kv=True)
    client.put("etcd3/w1", "1")
    client.put("etcd3/w1", "2")
    client.delete("etcd3/w1")
    seen = [next(events) for _ in range(3)]
    cancel()
    assert [type(event).__name__ for event in seen] == ["PutEvent", "PutEvent", "DeleteEvent"]
    assert seen[2].prev_value == b"2"


def leases(client: etcd3.Etcd3Client) -> None:
    lease = client.lease(60)
    client.put("etcd3/leased", "x", lease)
    assert lease.refresh()[0].TTL == 60
    assert list(lease.keys) == [b"etcd3/leased"]
    lease.revoke()
    assert client.get("etcd3/leased")[0] is None


main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
