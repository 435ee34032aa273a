"""grpcio's synchronous client over both servers: what test_conformance.py asks with the asyncio one."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from tests.listener.bench import Bench
from tests.listener.echo import SERVICE

TIMEOUT_S = 20
PATH = f"/{SERVICE}"


def blocking(test: Callable[[Bench, Any], None]) -> Callable[[Bench], Awaitable[None]]:
    """Run a test of a blocking channel in a thread, while its server runs on the loop."""

    @functools.wraps(test, assigned=("__name__", "__doc__", "__module__"))
    async def run(bench: Bench) -> None:
        def in_thread() -> None:
            with bench.connect_blocking() as client:
                test(bench, client)

        await asyncio.to_thread(in_thread)

    del run.__wrapped__  # pytest would take its parameters for fixtures
    return run


@blocking
def test_each_kind_of_call(bench: Bench, client: Any) -> None:
    assert client.unary_unary(f"{PATH}/Unary")(b"hello", timeout=TIMEOUT_S) == b"hello"
    assert client.unary_unary(f"{PATH}/Unary")(b"", timeout=TIMEOUT_S) == b""
    assert len(list(client.unary_stream(f"{PATH}/ServerStream")(b"10 5", timeout=TIMEOUT_S))) == 10
    assert client.stream_unary(f"{PATH}/ClientStream")(iter([b"ab", b"c"]), timeout=TIMEOUT_S) == b"2 3"
    three = [b"0", b"1", b"2"]
    assert list(client.stream_stream(f"{PATH}/Bidi")(iter(three), timeout=TIMEOUT_S)) == three


@blocking
def test_metadata_in_both_directions(bench: Bench, client: Any) -> None:
    sent = (("text", "value"), ("raw-bin", b"\x00\x01\xff"))
    _, call = client.unary_unary(f"{PATH}/Unary").with_call(b"metadata", metadata=sent, timeout=TIMEOUT_S)
    assert set(sent) <= set(bench.echo.metadata)
    initial, trailing = dict(call.initial_metadata()), dict(call.trailing_metadata())
    assert (initial["initial"], initial["initial-bin"]) == ("one", b"\x01\x02")
    assert (trailing["trailing"], trailing["trailing-bin"]) == ("two", b"\xfe")


@blocking
def test_every_status(bench: Bench, client: Any) -> None:
    for code in grpc.StatusCode:
        if code is grpc.StatusCode.OK:
            continue
        with pytest.raises(grpc.RpcError) as caught:
            client.unary_unary(f"{PATH}/Unary")(b"abort %d 100%% of \xc3\xa4" % code.value[0], timeout=TIMEOUT_S)
        assert (caught.value.code(), caught.value.details()) == (code, "100% of ä")
        assert ("why-bin", b"\x00\xff") in list[object](caught.value.trailing_metadata() or ())


@blocking
def test_a_deadline(bench: Bench, client: Any) -> None:
    began = time.monotonic()
    with pytest.raises(grpc.RpcError) as caught:
        client.unary_unary(f"{PATH}/Unary")(b"wait", timeout=0.2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - began < 3


async def test_a_cancelled_call_cancels_its_handler(bench: Bench) -> None:
    with bench.connect_blocking() as client:
        waiting = client.unary_unary(f"{PATH}/Unary").future(b"wait")
        await asyncio.wait_for(bench.echo.started.wait(), 5)
        waiting.cancel()
        await asyncio.wait_for(bench.echo.cancelled.wait(), 5)


@blocking
def test_the_server_ends_a_stream_while_the_client_sends(bench: Bench, client: Any) -> None:
    def endless() -> Iterator[bytes]:
        yield b"first"
        yield b"abort 9 enough"
        while True:
            yield b"more"

    call = client.stream_stream(f"{PATH}/Bidi")(endless(), timeout=TIMEOUT_S)
    assert next(call) == b"first"
    with pytest.raises(grpc.RpcError):
        next(call)
    assert (call.code(), call.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "enough")


@blocking
def test_answers_go_on_after_the_client_half_closed(bench: Bench, client: Any) -> None:
    call = client.stream_stream(f"{PATH}/Bidi")(iter([b"after 3"]), timeout=TIMEOUT_S)
    assert list(call) == [b"after 3", b"more 0", b"more 1", b"more 2"]


@blocking
def test_a_thousand_calls_at_once_on_a_connection(bench: Bench, client: Any) -> None:
    meet = client.unary_unary(f"{PATH}/Unary")
    calls = [meet.future(b"meet 1000", timeout=TIMEOUT_S) for _ in range(1000)]
    assert {call.result() for call in calls} == {b"meet 1000"}


@blocking
def test_16_mb_streamed_both_ways(bench: Bench, client: Any) -> None:
    piece = bytes(range(256)) * 1024
    assert list(client.stream_stream(f"{PATH}/Bidi")(iter([piece] * 64), timeout=TIMEOUT_S)) == [piece] * 64


async def test_200_connections(bench: Bench) -> None:
    clients = [bench.connect_blocking() for _ in range(200)]
    try:
        calls = [client.unary_unary(f"{PATH}/Unary").future(b"meet 200", timeout=TIMEOUT_S) for client in clients]
        done = await asyncio.to_thread(futures.wait, [_settled(call) for call in calls], TIMEOUT_S)
        assert len(done.done) == 200
        assert {call.result() for call in calls} == {b"meet 200"}
    finally:
        for client in clients:
            client.close()


def _settled(call: Any) -> futures.Future[None]:
    """grpcio's futures are not those of concurrent.futures."""
    settled: futures.Future[None] = futures.Future()
    call.add_done_callback(lambda _: settled.set_result(None))
    return settled
