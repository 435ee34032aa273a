"""etcd's flags: all are known, those that do nothing say why, and none that somebody relies on is ignored."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

from kvorum.etcdflags import EXPERIMENTAL, IGNORED, REFUSED, plain_name
from kvorum.flags import FLAGS, help_text, parse
from kvorum.layout import UsageError
from kvorum.member import make_config
from kvorum.member import run as run_member
from tests.snapshot.etcd import program

CONTRACT: Final = Path(__file__).parents[3] / "shared" / "contracts" / "etcd_contract.md"
DOCUMENTATION: Final = Path(__file__).parents[2] / "docs" / "flags.md"
NO_MEMBER_FLAGS: Final = {"help", "version", "config-file"}
KNOWN: Final = {flag.name for flag in FLAGS} | set(IGNORED) | set(REFUSED)


def known(name: str) -> bool:
    return name in KNOWN or plain_name(name) in KNOWN


def test_every_flag_of_etcds_own_help_is_known() -> None:
    done = subprocess.run([program("etcd"), "--help"], capture_output=True, text=True, check=False, timeout=30)
    names = set(re.findall(r"^\s+--([a-z0-9-]+)", done.stdout + done.stderr, re.MULTILINE))
    assert len(names) > 80
    assert [name for name in sorted(names - NO_MEMBER_FLAGS) if not known(name)] == []


def test_every_flag_of_the_contract_is_known() -> None:
    if not CONTRACT.exists():
        pytest.skip("the contracts are not beside this checkout")
    text = CONTRACT.read_text()
    listed = text[text.index("Accept at least: ") :].partition("\n\n")[0].partition("\nand the 3.5 forms")[0]
    names = set(re.findall(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)+", listed)) - NO_MEMBER_FLAGS
    assert len(names) > 90
    # "distributed-tracing-*" and "discovery-*" stand for several.
    assert [name for name in sorted(names) if not known(name)] == ["distributed-tracing"]


def test_help_names_every_flag_and_why_one_does_nothing() -> None:
    text = help_text()
    assert all(f"--{name} " in text for name in KNOWN)
    assert all(reason in text for reason in IGNORED.values())
    assert all(refused.reason in text for refused in REFUSED.values())
    assert all(f"--experimental-{name}\n" in text for name in EXPERIMENTAL)


def test_the_documentation_names_every_flag_and_why_one_does_nothing() -> None:
    text = DOCUMENTATION.read_text()
    assert all(f"| `--{flag.name}` | {flag.help.replace('|', '/')} |" in text for flag in FLAGS)
    assert all(f"| `--{name}` | {reason} |" in text for name, reason in IGNORED.items())
    assert all(f"| {refused.reason} |" in text and f"| `--{name}` |" in text for name, refused in REFUSED.items())
    assert all(f"`{name}`" in text.partition("## Experimental")[2] for name in EXPERIMENTAL)


def test_no_name_is_in_two_tables_and_every_experimental_one_has_a_meaning() -> None:
    assert len(KNOWN) == len(FLAGS) + len(IGNORED) + len(REFUSED)
    assert EXPERIMENTAL <= KNOWN


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--auto-tls",), "--auto-tls true cannot be had: make a certificate"),
        (("--peer-crl-file", "x"), "a revoked certificate would be accepted"),
        (("--peer-cert-allowed-cn=etcd",), "names in client certificates are not checked"),
        (("--tls-min-version", "TLS1.3"), "both accepted"),
        (("--discovery", "http://x"), "--initial-cluster"),
        (("--experimental-name", "x"), "unknown flag --experimental-name"),
        (("--experimental-fly",), "unknown flag --experimental-fly"),
    ],
)
def test_a_flag_that_somebody_relies_on_is_refused_and_not_ignored(flags: tuple[str, ...], problem: str) -> None:
    with pytest.raises(UsageError, match=re.escape(problem)):
        parse(flags, {})
    if flags[0] == "--peer-crl-file":
        with pytest.raises(UsageError, match=re.escape(problem)):
            parse((), {"ETCD_PEER_CRL_FILE": "x"})


def test_defaults_that_scripts_spell_out_are_accepted() -> None:
    parse(("--auto-tls=false", "--proxy", "off", "--tls-min-version", "TLS1.2", "--client-crl-file="), {})


def test_experimental_spellings_have_the_same_effect() -> None:
    parsed = parse(("--experimental-watch-progress-notify-interval=5s", "--experimental-max-learners", "3"), {})
    config = make_config(parsed)
    assert (config.progress_notify_s, config.max_learners) == (5.0, 3)
    parsed = parse((), {"ETCD_EXPERIMENTAL_WATCH_PROGRESS_NOTIFY_INTERVAL": "7s"})
    assert make_config(parsed).progress_notify_s == 7.0


def test_a_configuration_file_replaces_flags_and_variables(tmp_path: Path) -> None:
    path = tmp_path / "etcd.yaml"
    path.write_text(
        "name: filed\nlisten-client-urls: http://127.0.0.1:1,http://127.0.0.1:2\n"
        "advertise-client-urls: http://127.0.0.1:1\npre-vote: false\nsnapshot-count: 7\nlog-outputs: [stderr]\n"
        "client-transport-security:\n  cert-file: c.pem\n  key-file: k.pem\n  client-cert-auth: true\n"
        "peer-transport-security:\n  trusted-ca-file: ca.pem\n"
    )
    parsed = parse(("--config-file", str(path), "--name", "flag"), {"ETCD_SNAPSHOT_COUNT": "9"})
    config = make_config(parsed)
    assert (config.name, config.snapshot_count, config.pre_vote) == ("filed", 7, False)
    assert list(config.listen_client_urls) == ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    assert (config.client_tls.cert_file, config.client_tls.client_cert_auth) == ("c.pem", True)
    assert (config.peer_tls.trusted_ca_file, list(parsed.ignored)) == ("ca.pem", ["log-outputs"])
    assert parse((), {"ETCD_CONFIG_FILE": str(path)})["name"] == "filed"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("name: [", "is no YAML"),
        ("- name", "holds no settings"),
        ("nmae: x", "unknown setting nmae"),
        ("name: {a: b}", "name is a section"),
        ("peer-transport-security: 3", "is no section"),
        ("peer-transport-security: {auto-tls: true}", "--peer-auto-tls true cannot be had"),
        ("peer-transport-security: {allowed-cn: me}", "--peer-cert-allowed-cn me cannot be had"),
    ],
)
def test_a_configuration_file_that_cannot_be_used_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "etcd.yaml"
    path.write_text(content)
    with pytest.raises(UsageError, match=re.escape(problem)):
        parse(("--config-file", str(path)), {})
    with pytest.raises(UsageError, match="No such file"):
        parse(("--config-file", str(tmp_path / "missing")), {})


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_member(["--version"]) == 0
    assert re.match(r"etcd Version: 3\.5\.\d+", capsys.readouterr().out)
