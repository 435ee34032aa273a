"""The kvorum command as its user meets it: exit codes, one clear line, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvorum import cli, flags, layout, loop, processes, status, up
from kvorum.layout import UserError, load
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
        (["up", "--base-port", "65535"], "--base-port 65535 is too high: 3 members use two ports each"),
        (["up", "--members", "7", "--base-port", "65523"], "up to 65536"),
        (["up", "--base-port", "8000"], "port 8001 is for m1"),
        (["bench", "failover", "--base-port", "65530"], "65530 is too high"),
        (["bench", "failover", "--rounds", "0"], "'0' is not a positive number"),
        (["bench", "raft", "--seconds", "-1"], "'-1' is not a positive number of seconds"),
        (["bench", "raft", "--seconds", "nan"], "'nan' is not a positive number of seconds"),
        (["bench", "raft", "--in-flight", "0"], "'0' is not a positive number"),
        (["bench", "raft", "--value-bytes", "-1"], "'-1' is not a number of bytes"),
        (["bench", "rpc", "--seconds", "inf"], "'inf' is not a positive number of seconds"),
        (["bench", "rpc", "--in-flight", "-3"], "'-3' is not a positive number"),
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
        (["--listen-peer-urls", "http://[::1"], "is not http://HOST:PORT"),
        (["--listen-metrics-urls", "http://[::1"], "is not http://HOST:PORT"),
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


def cluster_file(**changes: object) -> str:
    """A cluster.json of one member, with some of the member's fields changed."""
    member: dict[str, object] = {
        "name": "m1", "client_url": "http://127.0.0.1:2379", "peer_url": "http://127.0.0.1:2380",
        "data_dir": "/nowhere", "pid": 0, "started": 0,
    }  # fmt: skip
    api = {"url": "http://127.0.0.1:8001", "pid": 0, "started": 0}
    return json.dumps({"format": 1, "token": "t", "members": [member | changes], "api": api})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (cluster_file(pid=99999999999999999999), "pid of members[0] is not the number of a process"),
        (cluster_file(pid=-1), "pid of members[0] is not the number of a process"),
        (cluster_file(pid=True), "pid of members[0] is not the number of a process"),
        (cluster_file(started="then"), "started of members[0] is not a time"),
        (cluster_file(client_url="foo"), "client_url of members[0] is 'foo', not http://HOST:PORT"),
        (cluster_file(client_url="http://127.0.0.1:abc"), "is 'http://127.0.0.1:abc', not http://HOST:PORT"),
        (cluster_file(peer_url="http://127.0.0.1:99999"), "peer_url of members[0]"),
        (cluster_file(name=7), "name of members[0] is not a text"),
        ("[]", "the document is not an object"),
        ('{"format":1}', "the document has no 'members'"),
        ('{"format":1,"members":{"m1":1}}', "members is not a list of objects"),
        ('{"format":1,"members":[1]}', "members is not a list of objects"),
        ("[" * 100_000, "it is nested too deeply"),
        ("{", "it is not JSON"),
    ],
)
def test_what_is_wrong_with_a_cluster_file_is_said_in_its_own_terms(
    tmp_path: Path, content: str, reason: str
) -> None:
    (tmp_path / "cluster.json").write_text(content)
    with pytest.raises(UserError) as caught:
        load(tmp_path)
    assert "cluster.json is damaged (" in str(caught.value)
    assert reason in str(caught.value)


def test_an_intact_cluster_file_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(cluster_file())
    assert load(tmp_path).member("m1").client_url == "http://127.0.0.1:2379"


@pytest.mark.parametrize(
    ("directory", "problem"),
    [
        ("FILE", "is not a folder"),
        ("FILE/below", "FILE"),
        ("/proc/kvorum-test", "/proc/kvorum-test"),
        ("LOOP", "LOOP"),
    ],
)
def test_a_data_directory_that_cannot_be_is_one_line_that_names_it(
    tmp_path: Path, directory: str, problem: str
) -> None:
    (tmp_path / "FILE").write_text("text")
    (tmp_path / "LOOP").symlink_to(tmp_path / "LOOP")
    base = free_base(7)
    line = one_line(
        kvorum(
            "up", "--data-dir", str(tmp_path / directory), "--base-port", str(base), "--api-port", str(base + 6),
            "--detach",
        ),
        1,
    )  # fmt: skip
    assert problem in line
    assert (tmp_path / "FILE").read_text() == "text"
    for command in (["status"], ["down"], ["kill-member", "m1"]):
        one_line(kvorum(*command, "--data-dir", str(tmp_path / directory)), 1)


def test_a_launcher_that_has_gone_does_not_end_the_member(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read, write = os.pipe()
    os.close(read)
    monkeypatch.setenv(loop.READY_FD_VARIABLE, str(write))
    with caplog.at_level("INFO"):
        loop.say_ready()
    assert [record.levelname for record in caplog.records] == ["INFO"]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(write)
    for nonsense in (str(write), "9" * 30):  # closed already; no descriptor at all
        monkeypatch.setenv(loop.READY_FD_VARIABLE, nonsense)
        loop.say_ready()


async def test_ctrl_c_ends_a_measurement_wherever_it_is_and_lets_it_tidy_up() -> None:
    stop, tidied = asyncio.Event(), asyncio.Event()

    async def measure() -> int:
        stop.set()
        try:
            await asyncio.Event().wait()
        finally:
            tidied.set()
        return 0

    async def quick() -> int:
        return 3

    async with asyncio.timeout(10):
        assert await loop.unless_stopped(stop, measure()) == loop.INTERRUPTED
        assert await loop.unless_stopped(asyncio.Event(), quick()) == 3
    assert tidied.is_set()


async def test_two_commands_that_start_members_at_once_lose_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = up.plan(cli.build_parser("up").parse_args(["up", "--data-dir", str(tmp_path / "c")]))
    cluster.directory.mkdir()
    cluster.save()
    monkeypatch.setattr(
        processes, "member_command", lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"]
    )
    # Each caller has read the file before the others have written theirs.
    started = await asyncio.gather(*(processes.start_member(cluster, member) for member in cluster.members))
    try:
        noted = {member.process.pid for member in load(cluster.directory).members}
        assert noted == {child.process.pid for _, child in started}
        with pytest.raises(UserError, match="m1 is running already"):  # whatever the caller believes
            await processes.start_member(cluster, cluster.members[0])
    finally:
        await processes.stop_all([child.process for _, child in started])
        for _, child in started:
            child.reap()
            os.close(child._read)


async def test_the_lock_of_a_cluster_is_waited_for_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    async def second() -> None:
        async with layout.locked(tmp_path):
            order.append("second")

    async with layout.locked(tmp_path):
        waiting = asyncio.ensure_future(second())
        await asyncio.sleep(0)
        order.append("first")
        monkeypatch.setattr(layout, "LOCK_TIMEOUT_S", 0.0)
        with pytest.raises(UserError, match="another kvorum command is changing the cluster"):
            await second()
    await waiting
    assert order == ["first", "second"]


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
        member = next(m for m in own_cluster.layout.members if m.name == name)
        began = time.monotonic()
        os.kill(member.process.pid, signal.SIGTERM)
        while member.process.alive():
            assert time.monotonic() - began < 2.0
            time.sleep(0.01)  # a process that is not our child tells nobody of its end


def test_sigterm_before_a_cluster_is_ready_is_said_and_leaves_no_process(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c")
    command = [
        sys.executable, "-m", "kvorum", "up", "--data-dir", str(cluster.directory),
        "--base-port", str(cluster.base_port), "--api-port", str(cluster.api_port),
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        wait_until((cluster.directory / "m1.log").exists, 20, "the first member's log")
        launcher.terminate()
        out, err = launcher.communicate(timeout=20)
    assert (launcher.returncode, out, err) == (1, "", "kvorum: stopped before it was ready\n")
    assert cluster.layout.running() == []


def test_a_reader_that_leaves_does_not_end_a_cluster(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c", members=1)
    read, write = os.pipe()
    os.close(read)
    command = [
        sys.executable, "-m", "kvorum", "up", "--data-dir", str(cluster.directory), "--members", "1", "--detach",
        "--base-port", str(cluster.base_port), "--api-port", str(cluster.api_port),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=40)
        assert (done.returncode, done.stderr) == (0, "")
        assert len(cluster.layout.running()) == 2
        command[3:] = ["status", "--data-dir", str(cluster.directory)]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=40)
        assert (done.returncode, done.stderr) == (1, "")
    finally:
        os.close(write)
        assert cluster.down().code == 0


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


async def test_a_member_without_an_answer_is_told_in_two_words_and_in_full_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pid = os.getpid()  # a process that lives, and serves nothing on that port
    (tmp_path / "cluster.json").write_text(cluster_file(pid=pid, client_url=f"http://127.0.0.1:{free_base(1)}"))
    arguments = ["status", "--data-dir", str(tmp_path)]
    parser = cli.build_parser("status")
    assert await status.status(parser.parse_args(arguments), asyncio.Event()) == 0
    table = capsys.readouterr().out
    assert "no answer" in table
    assert max(map(len, table.splitlines())) < 110
    assert await status.status(parser.parse_args([*arguments, "--json"]), asyncio.Event()) == 0
    row = json.loads(capsys.readouterr().out)["members"][0]
    assert row["state"] == "no answer"
    assert row["error"]


def test_pause_and_resume(own_cluster: LocalCluster) -> None:
    leader = own_cluster.leader()
    own_cluster.command("pause-member", leader)
    assert [row["name"] for row in own_cluster.status() if row["state"] == "paused"] == [leader]
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


def test_packages_of_the_users_own_with_our_names_are_left_alone(tmp_path: Path) -> None:
    """A Django project has its ``store`` app; the commands are run from its folder."""
    project = tmp_path / "project"
    for name in ("store", "raft", "chaos", "kvorum", "watchcache", "apiserver_adapter"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text("raise SystemExit('the wrong package was imported')\n")
    cluster = LocalCluster(tmp_path / "c", members=1)

    def kvorum(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "kvorum", *arguments]  # as the installed script would
        return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=40)

    directory = ("--data-dir", str(cluster.directory))
    try:
        done = kvorum(
            "up", *directory, "--members", "1", "--detach",
            "--base-port", str(cluster.base_port), "--api-port", str(cluster.api_port),
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), cluster.logs()
        endpoint = cluster.layout.members[0].client_url
        done = kvorum("snapshot", "save", str(tmp_path / "file.db"), "--endpoints", endpoint)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert len(cluster.layout.running()) == 2
    finally:
        assert kvorum("down", *directory).returncode == 0
    done = kvorum("sim", "--seeds", "1..1")
    assert done.returncode == 0, done.stderr
