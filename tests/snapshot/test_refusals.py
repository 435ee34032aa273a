"""A file that is cut short, damaged or foreign is refused in one line, before anything is written."""

from __future__ import annotations

import hashlib
import io
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from kvorum.snapshot import _table
from store.backend import connect
from store.bbolt.writer import BoltWriter
from store.config import MemberConfig
from store.mvcc.position import MAX_SUB, SUB_BITS, position
from store.snapshots.export import export
from store.snapshots.layout import MAIN_MAX, SnapshotError, positions, revision_keys
from store.snapshots.restore import UNFINISHED, restore
from store.state import load
from store.wire import encode_pair, unframe

PEERS = ("http://127.0.0.1:2380",)


def snapshot(directory: Path, keys: int = 300) -> bytes:
    """A sound snapshot file."""
    state = directory / "state.db"
    db = connect(state)
    rows = [
        (position(i + 2), 0, unframe(encode_pair(b"k%d" % i, b"v" * i, i + 2, i + 2, 1, 0))) for i in range(keys)
    ]
    db.executemany("INSERT INTO kv VALUES (?, ?, ?)", rows)
    db.execute("INSERT INTO bucket VALUES ('meta', ?, ?)", (b"consistent_index", (9).to_bytes(8, "big")))
    db.close()
    file = io.BytesIO()
    export(state, file)
    return signed(file.getvalue())


def signed(data: bytes) -> bytes:
    return data + hashlib.sha256(data).digest()


def target(directory: Path, name: str = "default") -> MemberConfig:
    return MemberConfig(
        name, directory / "restored", PEERS, PEERS, PEERS, PEERS, initial_cluster={name: PEERS}
    )  # fmt: skip


def foreign_bbolt(_: bytes) -> bytes:
    file = io.BytesIO()
    writer = BoltWriter(file)
    writer.bucket(b"somebody's", [([b"a"], [b"b"])])
    writer.finish()
    return signed(file.getvalue())


def with_bad_revision(_: bytes) -> bytes:
    file = io.BytesIO()
    writer = BoltWriter(file)
    writer.bucket(b"key", [([b"no revision here!"], [b""])])
    writer.bucket(b"meta", [])
    writer.finish()
    return signed(file.getvalue())


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut to a page": lambda data: data[:8192],
    "cut by a byte": lambda data: data[:-1],
    "without checksum": lambda data: data[:-32],
    "a bit flipped": lambda data: data[:20_000] + bytes([data[20_000] ^ 1]) + data[20_001:],
    "a bit of the checksum flipped": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "a text": lambda data: b"this is no snapshot\n" * 1000,
    "a signed text": lambda data: signed(b"x" * 8192),
    "somebody else's bbolt": foreign_bbolt,
    "a signed file with damaged pages": lambda data: signed(data[:30_000] + bytes(5000) + data[35_000:-32]),
    "a key that is no revision": with_bad_revision,
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_or_foreign_file_leaves_nothing_behind(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "snapshot.db"
    path.write_bytes(DAMAGES[damage](snapshot(tmp_path)))
    with pytest.raises(SnapshotError) as caught:
        await restore(path, target(tmp_path))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "restored").exists()


async def test_any_change_to_a_file_without_checksum_is_refused_or_harmless(tmp_path: Path) -> None:
    data = snapshot(tmp_path)[:-32]
    rng = random.Random(11)
    path = tmp_path / "snapshot.db"
    for number in range(40):
        broken = bytearray(data)
        broken[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(broken)
        config = target(tmp_path / str(number))
        try:
            await restore(path, config, skip_hash_check=True)
        except SnapshotError:
            assert not config.data_dir.exists()
        else:
            load(config.member_dir / "state.db")


async def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.db"
    path.write_bytes(snapshot(tmp_path))
    config = target(tmp_path)
    config.data_dir.mkdir()
    (config.data_dir / "mine").write_text("x")
    with pytest.raises(SnapshotError, match="not empty"):
        await restore(path, config)
    assert [entry.name for entry in config.data_dir.iterdir()] == ["mine"]


async def test_a_restore_that_was_interrupted_can_be_repeated(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.db"
    path.write_bytes(snapshot(tmp_path))
    config = target(tmp_path)
    (config.data_dir / UNFINISHED).mkdir(parents=True)
    (config.data_dir / UNFINISHED / "state.db").write_text("half")
    done = await restore(path, config)
    assert done.revision == 301
    assert sorted(entry.name for entry in config.data_dir.iterdir()) == ["member"]
    state = load(config.member_dir / "state.db")
    assert (state.revision, state.applied_index, len(state.index.live)) == (301, 1, 300)


async def test_a_bump_raises_the_revision_and_compacts_everything_before(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.db"
    path.write_bytes(snapshot(tmp_path))
    config = target(tmp_path)
    assert (await restore(path, config, bump_revision=1000)).revision == 1301
    state = load(config.member_dir / "state.db")
    assert (state.revision, state.compact_revision, len(state.index.live)) == (1301, 1301, 300)
    with pytest.raises(SnapshotError, match="too large"):
        await restore(path, target(tmp_path / "more"), bump_revision=MAIN_MAX)
    assert not (tmp_path / "more" / "restored").exists()


async def test_members_are_new_and_the_same_for_every_restored_member(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.db"
    path.write_bytes(snapshot(tmp_path))
    cluster = {name: (f"http://127.0.0.1:{port}",) for name, port in (("a", 1), ("b", 2), ("c", 3))}
    found = []
    for name, urls in cluster.items():
        config = MemberConfig(
            name, tmp_path / name, PEERS, PEERS, PEERS, urls, initial_cluster=cluster, token="new"
        )
        done = await restore(path, config)
        with sqlite3.connect(config.member_dir / "state.db") as db:
            rows = db.execute("SELECT * FROM bucket ORDER BY name, key").fetchall()
        db.close()
        found.append((done.identity.cluster_id, rows))
    assert found[0] == found[1] == found[2]


def test_positions_are_those_of_the_keys() -> None:
    rng = random.Random(4)
    places = sorted(position(rng.randrange(MAIN_MAX), rng.randrange(MAX_SUB)) for _ in range(500))
    keys = revision_keys(places)
    assert keys == [
        (place >> SUB_BITS).to_bytes(8, "big") + b"_" + (place & MAX_SUB).to_bytes(8, "big") for place in places
    ]
    assert positions(keys) == (places, [0] * 500)
    key = (5).to_bytes(8, "big") + b"_" + (6).to_bytes(8, "big")
    assert positions([key, key + b"t"]) == ([5 << SUB_BITS | 6] * 2, [0, 1])
    for wrong in (
        key[:-1],
        key + b"x",
        key + b"tt",
        key[:8] + b"-" + key[9:],
        bytes(9) + (MAX_SUB + 1).to_bytes(8, "big"),
        b"\xff" + key[1:],
    ):
        with pytest.raises(SnapshotError):
            positions([key, wrong])


def test_the_status_table_puts_a_head_as_etcdutl_does_when_it_cannot_be_in_the_middle() -> None:
    """A hash of seven digits, as one in sixteen has: recorded from etcdutl 3.5.1."""
    assert _table(("71cf5b8", "37", "383", "1.2 MB")).splitlines() == [
        "+---------+----------+------------+------------+",
        "|  HASH   | REVISION | TOTAL KEYS | TOTAL SIZE |",
        "+---------+----------+------------+------------+",
        "| 71cf5b8 |       37 |        383 |     1.2 MB |",
        "+---------+----------+------------+------------+",
    ]
