"""The file of the newest writes: after whatever the disk did, the records found are those that were durable."""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raft import tailfile
from raft.tailfile import PAGE, TailFile, read


@pytest.fixture
def file(tmp_path: Path) -> Iterator[TailFile]:
    made = TailFile.create(tmp_path / "tail")
    assert made is not None
    yield made
    made.close()


def fill(file: TailFile, *contents: bytes) -> bytes:
    """A round of records; returns their salt."""
    salt = file.announce()
    file.begin()
    for content in contents:
        assert file.append(content)
    return salt


def of_pages(count: int, fill_with: bytes) -> bytes:
    """The content of a record that takes ``count`` pages."""
    return fill_with * (count * PAGE - 100)


def test_records_come_back_in_order(file: TailFile) -> None:
    contents = [b"", b"one", bytes(PAGE), of_pages(3, b"x"), b"last"]
    assert read(file.path, fill(file, *contents)) == contents


def test_records_of_an_earlier_round_are_none(file: TailFile) -> None:
    before = fill(file, b"one", b"two", b"three")
    salt = file.announce()
    assert read(file.path, salt) == []
    assert read(file.path, before) == [b"one", b"two", b"three"]  # in force until the new one is
    file.begin()
    assert file.append(b"four")
    assert read(file.path, salt) == [b"four"]


def test_the_largest_record_fills_the_file_and_nothing_goes_beyond(file: TailFile) -> None:
    room = tailfile.SIZE - 2 * PAGE - 16
    salt = fill(file)
    assert not file.append(bytes(room + 1))
    assert read(file.path, salt) == []
    assert file.append(bytes(room))
    assert not file.append(b"")
    assert read(file.path, salt) == [bytes(room)]
    assert file.path.stat().st_size == tailfile.SIZE


def test_a_record_that_does_not_fit_leaves_room_for_one_that_does(file: TailFile) -> None:
    salt = fill(file, b"first")
    assert not file.append(bytes(tailfile.SIZE - 3 * PAGE))
    assert file.append(b"second")
    assert read(file.path, salt) == [b"first", b"second"]


@pytest.mark.parametrize("pages", [1, 2, 3])
def test_a_record_of_which_the_disk_has_only_some_pages_is_none(file: TailFile, pages: int) -> None:
    """Power is lost during a write: any of its pages may be new, over what an earlier round had left there."""
    fill(file, *[of_pages(1, b"o")] * 8)
    salt = fill(file, b"durable", of_pages(2, b"d"))
    old = file.path.read_bytes()
    assert file.append(of_pages(pages, b"n"))
    new = file.path.read_bytes()
    begin = 5 * PAGE
    assert old[:begin] == new[:begin]
    assert old[begin + pages * PAGE :] == new[begin + pages * PAGE :]
    for written in itertools.product([False, True], repeat=pages):
        disk = bytearray(old)
        for page, there in enumerate(written):
            at = begin + page * PAGE
            if there:
                disk[at : at + PAGE] = new[at : at + PAGE]
        file.path.write_bytes(disk)
        found = read(file.path, salt)
        assert found[:2] == [b"durable", of_pages(2, b"d")]
        assert found[2:] == ([of_pages(pages, b"n")] if all(written) else [])


@pytest.mark.parametrize("seed", range(10))
def test_any_flipped_bit_before_the_last_record_is_refused(file: TailFile, seed: int) -> None:
    draw = random.Random(seed)
    contents = [draw.randbytes(draw.choice([1, 300, PAGE, 2 * PAGE])) for _ in range(6)]
    salt = fill(file, *contents)
    whole = file.path.read_bytes()
    positions = [at for at in range(2 * PAGE, len(whole), PAGE) if whole[at : at + 8] == salt]
    assert len(positions) == 6
    for _ in range(20):
        record = draw.randrange(5)
        byte = positions[record] + draw.randrange(16 + len(contents[record]))
        damaged = bytearray(whole)
        damaged[byte] ^= 1 << draw.randrange(8)
        file.path.write_bytes(damaged)
        with pytest.raises(
            ValueError, match=f"tail: the record at byte {positions[record]} is damaged, and others"
        ):
            read(file.path, salt)


@pytest.mark.parametrize("length", [0, 10, PAGE, 4 * PAGE, tailfile.SIZE - 1])
def test_a_file_cut_short_is_refused(file: TailFile, length: int) -> None:
    salt = fill(file, b"one", b"two")
    os.truncate(file.path, length)
    with pytest.raises(ValueError, match=f"tail beside it, .*, was cut to {length} bytes"):
        read(file.path, salt)


@pytest.mark.parametrize("content", ["zeros", "noise", "another log's"])
def test_a_file_that_was_wiped_or_exchanged_is_refused(file: TailFile, tmp_path: Path, content: str) -> None:
    salt = fill(file, b"one", b"two")
    if content == "another log's":
        other = TailFile.create(tmp_path / "other")
        assert other is not None
        fill(other, b"three", b"four")
        other.close()
        shutil.copy(other.path, file.path)
    else:
        file.path.write_bytes(bytes(tailfile.SIZE) if content == "zeros" else os.urandom(tailfile.SIZE))
    with pytest.raises(ValueError, match="is that of another log or damaged"):
        read(file.path, salt)


def test_a_torn_announcement_leaves_the_salt_in_force(file: TailFile) -> None:
    salt = fill(file, b"one")
    old = file.path.read_bytes()
    file.announce()
    new = file.path.read_bytes()
    changed = [page for page in range(0, len(old), PAGE) if old[page : page + PAGE] != new[page : page + PAGE]]
    assert len(changed) == 1
    for kept in range(17):
        disk = bytearray(old)
        disk[changed[0] : changed[0] + kept] = new[changed[0] : changed[0] + kept]
        file.path.write_bytes(disk)
        assert read(file.path, salt) == [b"one"]


def test_a_record_counts_only_where_it_was_written(file: TailFile) -> None:
    salt = fill(file, b"one", b"two")
    disk = bytearray(file.path.read_bytes())
    disk[4 * PAGE : 5 * PAGE] = disk[2 * PAGE : 3 * PAGE]
    file.path.write_bytes(disk)
    assert read(file.path, salt) == [b"one", b"two"]


def test_what_looks_like_records_within_a_content_is_none(file: TailFile) -> None:
    """Not even with the salt in force and in the right place, which nobody can know beforehand."""
    salt = file.announce()
    file.begin()
    inner, at = b"inner", 3 * PAGE
    checksum = tailfile._checksum(salt, at, inner)
    forged = bytes(PAGE - 16) + tailfile._HEADER.pack(salt, len(inner), checksum) + inner + bytes(PAGE)
    assert file.append(forged)
    assert file.append(b"last")
    assert file.path.read_bytes()[at : at + 8] == salt
    assert read(file.path, salt) == [forged, b"last"]


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tail beside it is missing"):
        read(tmp_path / "tail", b"any salt")


def test_a_new_file_takes_the_place_of_an_old_one(file: TailFile) -> None:
    fill(file, b"one")
    os.truncate(file.path, PAGE)
    again = TailFile.create(file.path)
    assert again is not None
    again.close()
    assert file.path.read_bytes() == bytes(tailfile.SIZE)


def test_a_write_that_the_system_cuts_short_is_completed(file: TailFile, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite: Callable[[int, bytes, int], int] = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:1000], offset))
    assert read(file.path, fill(file, of_pages(2, b"x"), b"two")) == [of_pages(2, b"x"), b"two"]


def test_the_file_is_durable_of_its_full_length_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    fsync = os.fsync

    def sync(fd: int) -> None:
        fsync(fd)
        seen.append((os.fstat(fd).st_ino, os.fstat(fd).st_size))

    monkeypatch.setattr(os, "fsync", sync)
    made = TailFile.create(tmp_path / "tail")
    assert made is not None
    made.close()
    assert seen[0] == (made.path.stat().st_ino, tailfile.SIZE)
    assert [inode for inode, _ in seen[1:]] == [tmp_path.stat().st_ino]
