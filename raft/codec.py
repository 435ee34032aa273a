"""Messages between members as msgpack, and nothing else: what does not have exactly the right shape is refused.

A frame is one msgpack array of messages, each the array of Message's fields in order. ``responses`` never
leaves a node, so it is not on the wire. Entries travel by column, since what is the same for all of them (the
term, the type, the distance of their indexes) then costs nothing per entry; the log on disk uses the same form.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any, Final

import msgpack

from raft.core import confchange
from raft.core.errors import MalformedMessage
from raft.core.rawnode import LOCAL_TYPES
from raft.core.types import ConfState, Entry, EntryType, Message, MessageType, Snapshot
from raft.errors import CodecError

_FIELDS: Final = 13
_LIMIT: Final = 1 << 63
_ENTRY_TYPES: Final = tuple(EntryType)
_MESSAGE_TYPES: Final = tuple(MessageType)
_LOCAL: Final = LOCAL_TYPES | {MessageType.FORGET_LEADER}
_pack: Final = msgpack.Packer(autoreset=True).pack


def encode_frame(messages: Sequence[Message]) -> bytes:
    """One frame of messages for one peer."""
    return bytes(_pack([(*message[:6], _columns(message.entries), *message[7:_FIELDS]) for message in messages]))


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """Entries as the log stores them."""
    return bytes(_pack(_columns(entries)))


def decode_entries(data: bytes) -> tuple[Entry, ...]:
    """What ``encode_entries`` made. Raises CodecError."""
    try:
        columns = msgpack.unpackb(data, use_list=False)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise CodecError(f"not msgpack: {error}") from error
    return _entries(columns)


Columns = tuple[int, int | tuple[int, ...], tuple[int, ...] | None, tuple[bytes, ...]] | None
"""First index (0: all of them are 0, as in proposals), the term or terms, types unless all are normal, data."""


def _columns(entries: Sequence[Entry]) -> Columns:
    if not entries:
        return None
    terms, _, types, datas = zip(*entries, strict=True)
    same_term = terms[0] if terms.count(terms[0]) == len(terms) else terms
    return entries[0].index, same_term, types if any(types) else None, datas


def _entries(columns: Any) -> tuple[Entry, ...]:
    if columns is None:
        return ()
    if type(columns) is not tuple or len(columns) != 4:
        raise CodecError("entries are an array of 4 columns")
    first, terms, types, datas = columns
    if type(datas) is not tuple or not datas or set(map(type, datas)) != {bytes}:
        raise CodecError("the data of entries is binary")
    count = len(datas)
    if type(first) is not int or not 0 <= first < _LIMIT - count:
        raise CodecError("the first index of entries is not an unsigned 63-bit integer")
    indexes = range(first, first + count) if first else repeat(0, count)
    if type(terms) is tuple:
        if len(terms) != count or not all(type(term) is int and 0 <= term < _LIMIT for term in terms):
            raise CodecError("the terms of entries are not unsigned 63-bit integers, one each")
    elif type(terms) is int and 0 <= terms < _LIMIT:
        terms = repeat(terms, count)
    else:
        raise CodecError("the term of entries is not an unsigned 63-bit integer")
    if types is None:
        return tuple(map(Entry, terms, indexes, repeat(EntryType.NORMAL, count), datas))
    if type(types) is not tuple or len(types) != count:
        raise CodecError("the types of entries are not one each")
    return tuple(map(_typed_entry, terms, indexes, types, datas))


def _typed_entry(term: int, index: int, kind: Any, data: bytes) -> Entry:
    if type(kind) is not int or not 0 <= kind < len(_ENTRY_TYPES):
        raise CodecError("an entry's type is out of range")
    entry = Entry(term, index, _ENTRY_TYPES[kind], data)
    if kind:
        try:
            confchange.decode(entry)
        except MalformedMessage as error:
            raise CodecError(str(error)) from None
    return entry


def decode_frame(frame: bytes) -> list[Message]:
    """The messages of a frame. Raises CodecError, naming what is wrong, for anything that is not one."""
    try:
        rows = msgpack.unpackb(frame, use_list=False)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise CodecError(f"not a msgpack frame: {error}") from error
    if type(rows) is not tuple:
        raise CodecError("a frame is an array of messages")
    return [_message(row) for row in rows]


def _message(row: Any) -> Message:
    if type(row) is not tuple or len(row) != _FIELDS:
        raise CodecError(f"a message is an array of {_FIELDS} fields")
    kind, to, from_, term, log_term, index, entries, commit, vote, snapshot, reject, hint, context = row
    for value in (kind, to, from_, vote):
        if type(value) is not int or not 0 <= value < 1 << 64:
            raise CodecError("a type or an id is not an unsigned 64-bit integer")
    for value in (term, log_term, index, commit, hint):
        if type(value) is not int or not 0 <= value < 1 << 63:
            raise CodecError("a term or an index is not an unsigned 63-bit integer")
    if kind >= len(_MESSAGE_TYPES) or _MESSAGE_TYPES[kind] in _LOCAL:
        raise CodecError(f"message type {kind} does not travel between members")
    if type(reject) is not bool or type(context) is not bytes:
        raise CodecError("reject is a boolean, context binary")
    return Message(
        _MESSAGE_TYPES[kind],
        to,
        from_,
        term,
        log_term,
        index,
        _entries(entries),
        commit,
        vote,
        None if snapshot is None else _snapshot(snapshot),
        reject,
        hint,
        context,
    )


def _snapshot(row: Any) -> Snapshot:
    if type(row) is not tuple or len(row) != 4:
        raise CodecError("a snapshot is an array of 4 fields")
    index, term, conf_state, data = row
    if type(index) is not int or type(term) is not int or type(data) is not bytes:
        raise CodecError("a snapshot is index, term, configuration and binary data")
    if not (0 <= index < 1 << 63 and 0 <= term < 1 << 63):
        raise CodecError("a snapshot's index or term is out of range")
    return Snapshot(index, term, _conf_state(conf_state), data)


def _conf_state(row: Any) -> ConfState:
    if type(row) is not tuple or len(row) != 5 or type(row[4]) is not bool:
        raise CodecError("a configuration is four lists of ids and a boolean")
    for ids in row[:4]:
        if type(ids) is not tuple or any(type(node) is not int or not 0 < node < 1 << 64 for node in ids):
            raise CodecError("a configuration lists ids")
    conf_state = ConfState(*row)
    voters, learners = set(conf_state.voters), set(conf_state.learners)
    if learners & (voters | set(conf_state.voters_outgoing)) or len(voters) != len(conf_state.voters):
        raise CodecError("a configuration names a member twice")
    return conf_state
