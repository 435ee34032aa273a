"""Client libraries as published, against a member: each runs its program in tests/clients/programs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.clients.conftest import Endpoint, installed, use

PROGRAMS = Path(__file__).parent / "programs"
pytestmark = pytest.mark.process


def run(interpreter: str, program: str, endpoint: Endpoint, cwd: Path) -> None:
    command: list[str | Path] = [installed(interpreter), PROGRAMS / program, endpoint.host, str(endpoint.port)]
    command += endpoint.tls
    use(command, cwd)


def run_node(endpoint: Endpoint, cwd: Path) -> None:
    modules = installed("node/node_modules")
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    command: list[str | Path] = [node, PROGRAMS / "use_etcd3.js", endpoint.host, str(endpoint.port), *endpoint.tls]
    use(command, cwd, NODE_PATH=str(modules))


@pytest.fixture(params=["plain", "tls"])
def endpoint(request: pytest.FixtureRequest) -> Endpoint:
    installed("")  # else no member is started
    found: Endpoint = request.getfixturevalue("plain" if request.param == "plain" else "secured")
    return found


def test_aetcd(endpoint: Endpoint, tmp_path: Path) -> None:
    if endpoint.tls:
        pytest.skip("aetcd offers no TLS")
    run("python/bin/python", "use_aetcd.py", endpoint, tmp_path)


def test_etcd3aio(endpoint: Endpoint, tmp_path: Path) -> None:
    run("python/bin/python", "use_etcd3aio.py", endpoint, tmp_path)


def test_etcd3gw_over_the_gateway(endpoint: Endpoint, tmp_path: Path) -> None:
    run("python/bin/python", "use_etcd3gw.py", endpoint, tmp_path)


def test_etcd_client_py_over_tonic(endpoint: Endpoint, tmp_path: Path) -> None:
    if endpoint.tls:
        pytest.skip("etcd-client-py offers no TLS")
    run("python/bin/python", "use_etcd_client.py", endpoint, tmp_path)


def test_tonic_itself(endpoint: Endpoint, tmp_path: Path) -> None:
    """The library under etcd-client-py, which has settings for TLS where that one has none."""
    scheme = "https" if endpoint.tls else "http"
    url = f"{scheme}://{endpoint.host}:{endpoint.port}"
    told = use([installed("tonic/debug/tonic-client"), url, *endpoint.tls], tmp_path)
    assert "500 calls at once on one connection" in told


def test_python_etcd3(endpoint: Endpoint, tmp_path: Path) -> None:
    run("python-etcd3/bin/python", "use_etcd3.py", endpoint, tmp_path)


def test_etcd3_of_npm_over_grpc_js(endpoint: Endpoint, tmp_path: Path) -> None:
    run_node(endpoint, tmp_path)
