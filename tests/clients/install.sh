#!/bin/sh
# Installs the client libraries that tests/clients uses, each as published, into the folder named by $1.
set -eu
folder=${1:?usage: install.sh FOLDER}
python=${PYTHON:-python3}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

environment() { # NAME PACKAGE...
    name=$1
    shift
    test -x "$folder/$name/bin/python" || "$python" -m venv "$folder/$name"
    "$folder/$name/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

environment python aetcd==1.0.0 etcd3aio==0.3.0 etcd3gw==2.7.0 etcd-client-py==0.5.1
environment python-etcd3 etcd3==0.12.0 'protobuf<=3.20.3' # its generated code needs protobuf 3

if command -v npm >/dev/null; then
    npm install --silent --no-audit --no-fund --prefix "$folder/node" etcd3@1.1.2 @grpc/grpc-js@1.14.7
else
    echo "npm is missing: without etcd3 of npm" >&2
fi

if command -v cargo >/dev/null; then
    here=$(cd "$(dirname "$0")" && pwd)
    mkdir -p "$folder/tonic-source"
    cp -R "$here/tonic/." "$folder/tonic-source"
    cargo build --quiet --manifest-path "$folder/tonic-source/Cargo.toml" --target-dir "$folder/tonic" ||
        echo "the crates of tonic cannot be had: without a client on tonic itself" >&2
else
    echo "cargo is missing: without a client on tonic itself" >&2
fi

if command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then
    mkdir -p "$folder/etcdctl-3.4"
    (cd "$folder/etcdctl-3.4" && apt-get download -qq -o APT::Sandbox::User=root etcd-client \
        && dpkg-deb -x etcd-client_*.deb . && rm etcd-client_*.deb) ||
        echo "the Debian package etcd-client cannot be had: without etcdctl 3.4" >&2
else
    echo "apt-get is missing: without etcdctl 3.4" >&2
fi
