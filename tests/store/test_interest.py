"""Interest finds exactly the watchers whose range holds a key, whatever the shape of the range."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from store.watch.interest import Interest, prefix_end

_keys = st.binary(max_size=3).map(lambda b: bytes(x % 4 + 0xFC for x in b))
_ranges = st.one_of(
    st.tuples(_keys.filter(bool), st.just(b"")),
    _keys.filter(bool).map(lambda k: (k, prefix_end(k))),
    st.tuples(_keys.filter(bool), _keys.filter(bool)).filter(lambda r: r[0] < r[1]),
    st.tuples(_keys.filter(bool), st.just(b"\x00")),
)


def _holds(key: bytes, start: bytes, end: bytes) -> bool:
    return key == start if not end else start <= key and (end == b"\x00" or key < end)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(_ranges, max_size=12), st.lists(_keys.filter(bool), max_size=8), st.data())
def test_matching_is_what_a_scan_of_all_ranges_finds(
    ranges: list[tuple[bytes, bytes]], keys: list[bytes], data: st.DataObject
) -> None:
    interest: Interest[int] = Interest()
    for watcher, (start, end) in enumerate(ranges):
        interest.add(start, end, watcher)
    removed = data.draw(st.sets(st.sampled_from(range(len(ranges))))) if ranges else set()
    for watcher in removed:
        interest.remove(*ranges[watcher], watcher)
    left = {w: r for w, r in enumerate(ranges) if w not in removed}
    assert sorted(interest.all()) == sorted(left)
    assert len(interest) == len(left)
    for key in keys:
        assert sorted(interest.matching(key)) == sorted(w for w, r in left.items() if _holds(key, *r))


def test_the_end_of_a_prefix_skips_trailing_ff() -> None:
    assert prefix_end(b"a/") == b"a0"
    assert prefix_end(b"a\xff\xff") == b"b"
    assert prefix_end(b"\xff") == b"\x00"
    assert prefix_end(b"") == b"\x00"
