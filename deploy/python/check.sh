#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check.sh WHEEL [SUITE [MIRROR]...]: installs the wheel from its file on a bare Debian 12, or on
# SUITE, as mmdebstrap names it. Then reads through it from an S3 server. Run it as root.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
wheel=$(realpath "$1")
shift
[ $# -gt 0 ] || set -- bookworm
suite=$1
shift
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
trap 'exit 130' HUP INT TERM
mmdebstrap --quiet --variant=apt --include=python3-venv,ca-certificates "$suite" "$root" "$@"
cp /etc/resolv.conf "$root/etc/"
# A proxy between here and PyPI may have an authority that this host trusts.
cp /etc/ssl/certs/ca-certificates.crt "$root/tmp/"
cp "$wheel" "$here/check.py" "$root/tmp/"
# The mounts go with the namespace.
# shellcheck disable=SC2016 # the inner shell expands these
unshare --mount sh -ec 'for m in proc sys dev; do mount --rbind "/$m" "$0/$m"; done
    exec chroot "$0" "$@"' "$root" \
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root PIP_CERT=/tmp/ca-certificates.crt \
    python3 /tmp/check.py "/tmp/$(basename "$wheel")"
