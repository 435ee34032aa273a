"""The file of the newest writes: after whatever the disk did, the records found are those that were durable."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raft import tailfile
from raft.tailfile import PAGE, TailFile, read

NOW, BEFORE = b"now salt", b"old salt"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[TailFile]:
    made = TailFile.create(tmp_path / "tail")
    assert made is not None
    yield made
    made.close()


def fill(file: TailFile, salt: bytes, *contents: bytes) -> None:
    file.begin(salt)
    for content in contents:
        assert file.append(content)


def of_pages(count: int, fill_with: bytes) -> bytes:
    """The content of a record that takes ``count`` pages."""
    return fill_with * (count * PAGE - 100)


def test_records_come_back_in_order(file: TailFile) -> None:
    contents = [b"", b"one", bytes(PAGE), of_pages(3, b"x"), b"last"]
    fill(file, NOW, *contents)
    assert read(file.path, NOW) == contents


def test_records_of_another_salt_are_none(file: TailFile) -> None:
    fill(file, BEFORE, b"one", b"two", b"three")
    assert read(file.path, NOW) == []
    fill(file, NOW, b"four")
    assert read(file.path, NOW) == [b"four"]


def test_the_largest_record_fills_the_file_and_nothing_goes_beyond(file: TailFile) -> None:
    room = tailfile.SIZE - 16
    file.begin(NOW)
    assert not file.append(bytes(room + 1))
    assert read(file.path, NOW) == []
    assert file.append(bytes(room))
    assert not file.append(b"")
    assert read(file.path, NOW) == [bytes(room)]
    assert file.path.stat().st_size == tailfile.SIZE


def test_a_record_that_does_not_fit_leaves_room_for_one_that_does(file: TailFile) -> None:
    fill(file, NOW, b"first")
    assert not file.append(bytes(tailfile.SIZE - PAGE))
    assert file.append(b"second")
    assert read(file.path, NOW) == [b"first", b"second"]


@pytest.mark.parametrize("pages", [1, 2, 3])
def test_a_record_of_which_the_disk_has_only_some_pages_is_none(file: TailFile, pages: int) -> None:
    """Power is lost during a write: any of its pages may be new, over what an earlier round had left there."""
    fill(file, BEFORE, *[of_pages(1, b"o")] * 8)
    fill(file, NOW, b"durable", of_pages(2, b"d"))
    old = file.path.read_bytes()
    assert file.append(of_pages(pages, b"n"))
    new = file.path.read_bytes()
    begin = 3 * PAGE
    assert old[:begin] == new[:begin]
    assert old[begin + pages * PAGE :] == new[begin + pages * PAGE :]
    for written in itertools.product([False, True], repeat=pages):
        disk = bytearray(old)
        for page, there in enumerate(written):
            at = begin + page * PAGE
            if there:
                disk[at : at + PAGE] = new[at : at + PAGE]
        file.path.write_bytes(disk)
        found = read(file.path, NOW)
        assert found[:2] == [b"durable", of_pages(2, b"d")]
        assert found[2:] == ([of_pages(pages, b"n")] if all(written) else [])


@pytest.mark.parametrize("seed", range(10))
def test_any_flipped_bit_before_the_last_record_is_refused(file: TailFile, seed: int) -> None:
    draw = random.Random(seed)
    contents = [draw.randbytes(draw.choice([1, 300, PAGE, 2 * PAGE])) for _ in range(6)]
    fill(file, NOW, *contents)
    whole = file.path.read_bytes()
    positions = [at for at in range(0, len(whole), PAGE) if whole[at : at + 8] == NOW]
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
            read(file.path, NOW)


def test_a_file_cut_short_is_read_as_far_as_it_goes(file: TailFile) -> None:
    """Within its last record: more of it cannot be told from a file that never had it."""
    fill(file, NOW, b"one", of_pages(2, b"x"))
    for length in (PAGE, PAGE + 8, 2 * PAGE, 3 * PAGE - 200):
        os.truncate(file.path, length)
        assert read(file.path, NOW) == [b"one"]
    os.truncate(file.path, 10)
    assert read(file.path, NOW) == []


def test_a_content_that_looks_like_records_is_one_content(file: TailFile) -> None:
    fill(file, BEFORE, b"inner", b"another")
    forged = bytes(PAGE - 16) + file.path.read_bytes()[: 2 * PAGE]
    fill(file, NOW, forged)
    assert read(file.path, NOW) == [forged]


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tail beside it is missing"):
        read(tmp_path / "tail", NOW)


def test_a_new_file_takes_the_place_of_an_old_one(file: TailFile) -> None:
    fill(file, NOW, b"one")
    os.truncate(file.path, PAGE)
    again = TailFile.create(file.path)
    assert again is not None
    again.close()
    assert file.path.read_bytes() == bytes(tailfile.SIZE)


def test_a_write_that_the_system_cuts_short_is_completed(file: TailFile, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite: Callable[[int, bytes, int], int] = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:1000], offset))
    fill(file, NOW, of_pages(2, b"x"), b"two")
    assert read(file.path, NOW) == [of_pages(2, b"x"), b"two"]


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
