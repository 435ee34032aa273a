"""The kvorum command as its user meets it: exit codes, one clear line, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvorum import cli, flags
from tests.cluster.harness import Finished, LocalCluster, kvorum, wait_until
from tests.ports import free_base

pytestmark = pytest.mark.process

COMMANDS = (
    "up", "down", "status", "member", "apiserver", "bench", "snapshot",
    "stop-member", "start-member", "kill-member", "pause-member", "resume-member",
)  # fmt: skip


def one_line(done: Finished, code: int) -> str:
    """The error of a command that failed as it should: one line, no traceback."""
    assert done.code == code, done.err
    lines = done.err.strip().splitlines()
    assert len(lines) == 1, done.err
    assert lines[0].startswith("kvorum: ")
    return lines[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    done = kvorum(command, "--help")
    assert done.code == 0
    assert "example:" in done.out


def test_the_parser_knows_the_commands_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.build_parser().parse_args(["--help"])
    shown = capsys.readouterr().out
    assert all(command in shown for command in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["up", "--member", "3"], "--member"),
        (["up", "--members", "2"], "1, 3, 5 or 7"),
        (["up", "--base-port", "70000"], "not a port"),
        (["fly"], "fly"),
        (["member", "--no-such-flag", "1"], "unknown flag --no-such-flag"),
        (["member", "--election-timeout", "soon"], "--election-timeout: 'soon' is not a whole number"),
        (["member", "--name"], "--name needs a value"),
        (["member", "--pre-vote=maybe"], "true or false"),
        (["member", "name"], "'name' is not a flag"),
        (["member", "--listen-client-urls", "http://127.0.0.1:1"], "--advertise-client-urls is required"),
        (["member", "--initial-cluster-state", "old"], "not new or existing"),
        (["member", "--initial-cluster", "x"], "NAME=PEER-URL"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list[str], problem: str) -> None:
    assert problem in one_line(kvorum(*arguments), 2)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--election-timeout", "100"], "--election-timeout: 100 ms must be at least 5 times"),
        (["--listen-peer-urls", "127.0.0.1:1"], "is not http://HOST:PORT"),
        (["--initial-cluster", "other=http://127.0.0.1:2380"], "but not --name default"),
        (["--initial-cluster", "default=http://127.0.0.1:9"], "--initial-advertise-peer-urls says"),
        (["--max-txn-ops", "0"], "not a positive number"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    tmp_path: Path, arguments: list[str], problem: str
) -> None:
    assert problem in one_line(kvorum("member", "--data-dir", str(tmp_path / "d"), *arguments), 2)


def test_etcd_variables_work_and_a_flag_wins_over_its_variable() -> None:
    parsed = flags.parse(["--name", "flag"], {"ETCD_NAME": "variable", "ETCD_SNAPSHOT_COUNT": "7"})
    assert (parsed["name"], parsed["snapshot-count"]) == ("flag", 7)


def test_go_style_flags_are_understood() -> None:
    parsed = flags.parse(
        ["-name=n", "--pre-vote=false", "--initial-election-tick-advance", "-heartbeat-interval", "50"], {}
    )
    assert (parsed["name"], parsed["pre-vote"], parsed["heartbeat-interval"]) == ("n", False, 50)
    assert parsed["initial-election-tick-advance"] is True


def test_accepted_flags_without_effect_are_named_in_the_log_and_help() -> None:
    parsed = flags.parse(["--max-wals", "3", "--enable-pprof", "--name", "n"], {})
    assert list(parsed.ignored) == ["max-wals", "enable-pprof"]
    assert all(f"--{name} " in flags.help_text() for name in flags.IGNORED)
    assert all(f"--{flag.name} " in flags.help_text() for flag in flags.FLAGS)


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("10s", 10), ("1m30s", 90), ("1.5h", 5400), ("250ms", 0.25), ("2us", 2e-6)]
)
def test_go_durations(text: str, seconds: float) -> None:
    assert flags.parse(["--watch-progress-notify-interval", text], {})[
        "watch-progress-notify-interval"
    ] == pytest.approx(seconds)


def test_commands_on_a_folder_without_a_cluster_say_what_to_do(tmp_path: Path) -> None:
    for command in (["status"], ["down"], ["kill-member", "m1"]):
        assert "start one with 'kvorum up" in one_line(kvorum(*command, "--data-dir", str(tmp_path)), 1)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 1}', '{"format": 9}', '{"format":1,"members":[1]}']
)
def test_a_damaged_cluster_file_is_one_clear_error_and_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(content)
    for command in (["status"], ["down"], ["up"], ["start-member", "m1"]):
        line = one_line(kvorum(*command, "--data-dir", str(tmp_path)), 1)
        assert "cluster.json is damaged" in line
        assert "--fresh" in line
    assert path.read_text() == content


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    base = free_base(7)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", base + 2))
        taken.listen()
        done = kvorum(
            "up",
            "--data-dir",
            str(tmp_path / "c"),
            "--base-port",
            str(base),
            "--api-port",
            str(base + 6),
            "--detach",
        )
    line = one_line(done, 1)
    assert f"port {base + 2} (for m2 clients) cannot be used: address already in use" in line


def member_arguments(name: str, directory: Path, base: int) -> list[str]:
    urls = {f"n{number}": f"http://127.0.0.1:{base + 2 * number - 1}" for number in (1, 2)}
    client = f"http://127.0.0.1:{base + 2 * (int(name[1:]) - 1)}"
    return [
        sys.executable, "-m", "kvorum", "member", "--name", name, "--data-dir", str(directory),
        "--listen-client-urls", client, "--advertise-client-urls", client,
        "--listen-peer-urls", urls[name], "--initial-advertise-peer-urls", urls[name],
        "--initial-cluster", ",".join(f"{key}={url}" for key, url in urls.items()),
    ]  # fmt: skip


def last_line(command: list[str], log: Path) -> tuple[int, str]:
    with log.open("w") as out:
        code = subprocess.run(command, stderr=out, timeout=20).returncode
    return code, log.read_text().strip().splitlines()[-1]


def test_the_data_directory_of_another_member_is_refused(tmp_path: Path) -> None:
    base, log = free_base(4), tmp_path / "log"
    command = member_arguments("n1", tmp_path / "d", base)
    with log.open("w") as out, subprocess.Popen(command, stderr=out) as first:
        wait_until((tmp_path / "d/member/raft.db").exists, 10, "the member's files")
        # while it runs, the directory is locked
        code, line = last_line(command, tmp_path / "log2")
        assert code == 1
        assert "is in use by another member process" in line
        first.terminate()
    code, line = last_line(member_arguments("n2", tmp_path / "d", base), log)
    assert code == 1
    assert "belongs to member 'n1'" in line
    assert "--data-dir" in line


@pytest.mark.parametrize("name", ["raft.db", "state.db"])
def test_a_corrupted_database_is_refused_and_named(tmp_path: Path, name: str) -> None:
    base, log = free_base(4), tmp_path / "log"
    command = member_arguments("n1", tmp_path / "d", base)
    path = tmp_path / "d/member" / name
    with log.open("w") as out, subprocess.Popen(command, stderr=out) as first:
        wait_until((tmp_path / "d/member/raft.db").exists, 10, "the member's files")
        first.terminate()
    path.write_bytes(b"garbage" * 2000)
    code, line = last_line(command, log)
    assert code == 1
    assert str(path) in line
    assert "remove it from the cluster" in line
    path.unlink()
    if name == "state.db":
        code, line = last_line(command, log)
        assert code == 1
        assert "missing" in line


def test_ctrl_c_leaves_no_process_and_the_next_start_finds_the_data(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c")
    command = [
        sys.executable, "-m", "kvorum", "up", "--data-dir", str(cluster.directory),
        "--base-port", str(cluster.base_port), "--api-port", str(cluster.api_port),
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as up:
        assert up.stdout is not None
        first = up.stdout.readline()
        assert first.startswith("ready in "), cluster.logs()
        assert cluster.etcdctl("put", "k", "v").code == 0
        processes = cluster.layout.processes()
        assert len(cluster.layout.running()) == 4
        began = time.monotonic()
        os.killpg(up.pid, signal.SIGINT)
        assert up.wait(10) == 0
    assert time.monotonic() - began < 4
    assert not any(process.alive() for process in processes)
    assert cluster.up().code == 0
    try:
        assert cluster.etcdctl("get", "k", "--print-value-only").out == "v\n"
    finally:
        assert cluster.down().code == 0


def test_a_member_stops_within_two_seconds_of_sigterm(own_cluster: LocalCluster) -> None:
    leader = own_cluster.leader()
    for name in (leader, *(m.name for m in own_cluster.layout.members if m.name != leader)):
        began = time.monotonic()
        own_cluster.command("stop-member", name)
        assert time.monotonic() - began < 2.0 + 0.5  # the command itself starts in half a second


def test_a_second_up_on_a_running_cluster_is_refused(shared_cluster: LocalCluster) -> None:
    assert "is running already" in one_line(shared_cluster.up(), 1)
    assert "stop it with 'kvorum down'" in one_line(shared_cluster.up("--fresh"), 1)
    assert len(shared_cluster.layout.running()) == 4


def test_faults_on_members_that_are_not_there_or_not_running(shared_cluster: LocalCluster) -> None:
    directory = str(shared_cluster.directory)
    line = one_line(kvorum("kill-member", "m9", "--data-dir", directory), 1)
    assert "no member named 'm9'" in line
    assert "m1, m2, m3" in line
    assert "is running already" in one_line(kvorum("start-member", "m1", "--data-dir", directory), 1)


def test_status_shows_every_member(shared_cluster: LocalCluster) -> None:
    shared_cluster.leader()
    table = shared_cluster.command("status").out
    assert all(name in table for name in ("m1", "m2", "m3", "leader", "follower"))
    document = json.loads(shared_cluster.command("status", "--json").out)
    assert {row["state"] for row in document["members"]} == {"running"}
    assert document["api"]["state"] == "running"


def test_pause_and_resume(own_cluster: LocalCluster) -> None:
    leader = own_cluster.leader()
    own_cluster.command("pause-member", leader)
    wait_until(
        lambda: any(row["role"] == "leader" and row["name"] != leader for row in own_cluster.status()),
        10,
        "another leader",
    )
    own_cluster.command("resume-member", leader)
    wait_until(
        lambda: [row["role"] for row in own_cluster.status()].count("follower") == 2,
        10,
        "the old leader to follow",
    )


def test_fresh_forgets_the_data_and_other_folders_are_never_emptied(tmp_path: Path) -> None:
    keep = tmp_path / "home" / "letter.txt"
    keep.parent.mkdir()
    keep.write_text("dear")
    for extra in ([], ["--fresh"]):
        done = kvorum("up", "--data-dir", str(keep.parent), "--detach", *extra)
        assert "choose another --data-dir" in one_line(done, 1)
    assert keep.read_text() == "dear"
