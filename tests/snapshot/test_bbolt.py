"""bbolt files: what is written is read back; what is damaged is refused; etcd's own tools accept them."""

from __future__ import annotations

import io
import itertools
import random
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.bbolt.format import BRANCH, META_BYTES, NO_FREELIST, PAGE_HEADER, BoltError, Meta
from store.bbolt.reader import BoltFile
from store.bbolt.writer import CHILDREN_MIN, Batch, BoltWriter

Contents = dict[bytes, dict[bytes, bytes]]

KEYS = st.binary(min_size=1, max_size=40) | st.binary(min_size=1, max_size=1500)
VALUES = st.binary(max_size=60) | st.binary(min_size=0, max_size=9000)
CONTENTS = st.dictionaries(
    st.binary(min_size=1, max_size=20), st.dictionaries(KEYS, VALUES, max_size=60), max_size=6
)


def batches(items: Iterable[tuple[bytes, bytes]], size: int = 7) -> Iterator[Batch]:
    waiting = iter(items)
    while part := list(islice(waiting, size)):
        yield [key for key, _ in part], [value for _, value in part]


def write(path: Path, contents: Contents, page_size: int = 4096, batch: int = 100) -> bytes:
    with path.open("w+b") as file:
        writer = BoltWriter(file, page_size)
        for name in sorted(contents):
            writer.bucket(name, batches(sorted(contents[name].items()), batch))
        size = writer.finish()
    data = path.read_bytes()
    assert len(data) == size
    return data


def read(path: Path) -> Contents:
    with BoltFile(path) as bolt:
        return {name: dict(bolt.items(name)) for name in bolt.buckets}


def many(count: int, seed: int = 1, value_bytes: int = 100) -> dict[bytes, bytes]:
    rng = random.Random(seed)
    return {b"key-%08d" % i: rng.randbytes(rng.randrange(value_bytes)) for i in range(count)}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents=CONTENTS, page_size=st.sampled_from([512, 1024, 4096, 16384, 65536]), batch=st.integers(1, 70))
def test_what_is_written_is_read_back(tmp_path: Path, contents: Contents, page_size: int, batch: int) -> None:
    write(tmp_path / "db", contents, page_size, batch)
    assert read(tmp_path / "db") == contents


def test_a_tree_of_several_levels_is_read_back(tmp_path: Path) -> None:
    contents = {b"a": many(20_000), b"b": {}, b"c": many(3)}
    write(tmp_path / "db", contents, 512)
    assert read(tmp_path / "db") == contents


@pytest.mark.parametrize("page_size", [512, 4096])
def test_no_branch_has_a_lone_child(tmp_path: Path, page_size: int) -> None:
    """bbolt asserts two children when it removes one: etcd would crash at its next compaction."""
    for count in [*range(1, 60), 400, 401, 5000, 5001, 5002, 5003]:
        for key_bytes in (20, 700):
            items = {b"%0*d" % (key_bytes, i): b"v" * 90 for i in range(count if key_bytes == 20 else count % 300)}
            data = write(tmp_path / "db", {b"a": items}, page_size)
            at = 2 * page_size
            while at < len(data):
                _, flags, children, overflow = PAGE_HEADER.unpack_from(data, at)
                assert flags != BRANCH or children >= CHILDREN_MIN
                at += (1 + overflow) * page_size


def test_input_out_of_order_is_refused() -> None:
    wrong = ([(b"b", b""), (b"a", b"")], [(b"a", b""), (b"a", b"")], [(b"", b"")])
    for items, size in itertools.product(wrong, (1, 2)):
        with pytest.raises(ValueError):
            BoltWriter(io.BytesIO()).bucket(b"x", batches(items, size))
    writer = BoltWriter(io.BytesIO())
    writer.bucket(b"b", [])
    with pytest.raises(ValueError):
        writer.bucket(b"a", [])


def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    import tracemalloc

    with (tmp_path / "db").open("w+b") as file:
        writer = BoltWriter(file)
        tracemalloc.start()
        try:
            writer.bucket(b"a", batches((b"%09d" % i, bytes(2000)) for i in range(10_000)))
            writer.finish()
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()


def test_either_meta_page_alone_is_enough(tmp_path: Path) -> None:
    contents = {b"a": many(50)}
    for page_size in (1024, 4096):
        data = write(tmp_path / "db", contents, page_size)
        for damaged in (0, page_size):
            (tmp_path / "half").write_bytes(data[: damaged + 20] + bytes(40) + data[damaged + 60 :])
            assert read(tmp_path / "half") == contents


def test_the_meta_with_the_larger_transaction_wins(tmp_path: Path) -> None:
    data = bytearray(write(tmp_path / "db", {b"a": many(50)}))
    meta = Meta.decode(bytes(data[16:META_BYTES]))
    assert isinstance(meta, Meta)
    newer = Meta(meta.page_size, 999, NO_FREELIST, meta.high_water, meta.transaction + 5)
    data[4096 + 16 : 4096 + META_BYTES] = newer.encode()
    (tmp_path / "db").write_bytes(data)
    with pytest.raises(BoltError, match="999"):
        BoltFile(tmp_path / "db")


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    data = write(tmp_path / "db", {b"a": many(500), b"b": many(10)})
    rng = random.Random(2)
    for size in [0, 10, 4095, 4096, 8192, len(data) - 1, *(rng.randrange(len(data)) for _ in range(30))]:
        (tmp_path / "cut").write_bytes(data[:size])
        with pytest.raises(BoltError):
            read(tmp_path / "cut")


@pytest.mark.parametrize("page_size", [512, 4096])
def test_damage_is_an_error_or_harmless_and_never_anything_else(tmp_path: Path, page_size: int) -> None:
    """No hang, no crash, no memory error: whatever bytes change, reading ends or raises BoltError."""
    data = write(tmp_path / "db", {b"a": many(300), b"b": many(5)}, page_size)
    rng = random.Random(3)
    refused = 0
    for _ in range(400):
        broken = bytearray(data)
        page = rng.randrange(len(data) // page_size) * page_size
        for _ in range(rng.choice((1, 1, 4))):
            at = page + rng.randrange(rng.choice((24, 120, page_size)))
            broken[at] ^= 1 << rng.randrange(8)
        (tmp_path / "broken").write_bytes(broken)
        try:
            read(tmp_path / "broken")
        except BoltError:
            refused += 1
    assert refused > 100


def test_a_cycle_is_refused(tmp_path: Path) -> None:
    data = bytearray(write(tmp_path / "db", {b"a": many(2000)}))
    meta = Meta.decode(bytes(data[16:META_BYTES]))
    assert isinstance(meta, Meta)
    for page in range(2, meta.high_water):
        start = page * 4096
        if PAGE_HEADER.unpack_from(data, start)[1] == BRANCH:
            data[start + 24 : start + 32] = page.to_bytes(8, "little")
    (tmp_path / "db").write_bytes(data)
    with pytest.raises(BoltError, match="used twice"):
        read(tmp_path / "db")
