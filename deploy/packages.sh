#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2034,SC2086,SC2154 # groups are looked up by name, lists split on purpose
#
# Lists the Debian packages that Forebay needs, for the quickstart, the tests, CI and the
# Dockerfile.
#
#   sh deploy/packages.sh build                  prints the list
#   sh deploy/packages.sh --install build test   installs missing packages (as root, or by sudo)
#
# Lists: tools, linked, build, run, unit, test, page, fuzz, bench, metrics, clients, clients_java,
# image, package, wheel, bare, pods, tier, hosts, quickstart, release, cross, emulate
set -eu

# llhttp has its own package since Debian 13. Before that, and in Ubuntu 24.04, Node's packages have
# its sources.
# shellcheck disable=SC1091 # there, or an empty word
case $(. /etc/os-release 2>/dev/null && echo "${ID:-}-${VERSION_ID:-}") in
debian-12 | ubuntu-2[0-4].*) llhttp=node-llhttp ;;
*) llhttp=libllhttp-dev ;;
esac
tools="cmake ninja-build gcc pkg-config git ca-certificates"
# Libraries of the wheel's program, beside libcurl, which deploy/wheel.sh builds.
linked="libc6-dev libevent-dev libssl-dev liblmdb-dev liburing-dev libyaml-dev libisal-dev
 libexpat1-dev libjansson-dev libxxhash-dev"
build="$tools $linked libcurl4-openssl-dev $llhttp"
run="libevent-core-2.1-7 libevent-extra-2.1-7 libevent-pthreads-2.1-7 libcurl4 libssl3 liblmdb0
 liburing2 libyaml-0-2 libisal2 libexpat1 libjansson4 libxxhash0 ca-certificates"
unit="libcriterion-dev"
test="$unit python3 python3-venv clang-format-14 e2fsprogs mount nbdkit libnbd-bin fuse3 openssl
 curl procps mandoc zsh fish"
page="chromium"
fuzz="clang-14 libclang-rt-14-dev"
bench="nginx-light wrk python3 curl procps iproute2 openssl"
clients="awscli python3-boto3 s3cmd s3fs fuse3 curl"
clients_java="default-jdk-headless maven"
# promtool for tests/scenario/test_metrics.py. It has its own list, because it is 22 MB to fetch and
# 330 MB on disk. Debian starts the service if it can. The tests do not need the service: systemctl
# disable --now prometheus
metrics="prometheus"
image="buildah mmdebstrap umoci runc git ca-certificates python3"
wheel="dpkg-dev binutils nasm make python3 python3-venv curl"
# A bare system in a folder, for the check of the wheel.
bare="mmdebstrap"
package="dpkg-dev lintian file systemd mmdebstrap"
# Pods as their manifests say, without a cluster (tests/deploy/kubelet.py).
pods="runc iproute2"
# Hosts with Slurm, and shell scripts.
hosts="shellcheck util-linux"
# A tier behind a balancer. Debian starts this service too if it can, and the tests do not need it.
tier="haproxy iproute2 curl"
# For another processor: its compiler, and an emulator for its programs.
cross="gcc-aarch64-linux-gnu"
emulate="qemu-user-static"
quickstart="curl"
# Programs that sign a release.
release="openssh-client gpg gpg-agent"

if [ "${1:-}" = --install ]; then
    shift
    install=1
else
    install=0
fi
[ $# -gt 0 ] || set -- build
want=
for group; do
    case $group in
    tools | linked | build | run | unit | test | page | fuzz | bench | metrics | clients | \
        clients_java | image | package | wheel | bare | pods | tier | hosts | quickstart | \
        release | cross | emulate)
        eval "want=\"\$want \$$group\"" ;;
    *) echo "packages.sh: no group $group" >&2; exit 2 ;;
    esac
done
if [ $install = 0 ]; then
    echo $want
    exit 0
fi

missing=
for package in $want; do
    dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null | grep -q '^install ok installed' ||
        missing="$missing $package"
done
[ -n "$missing" ] || exit 0
as_root=
[ "$(id -u)" = 0 ] || as_root=sudo
echo "installing:$missing" >&2
# Apt's own lock may be held for a moment, and a mirror may hiccup: try three times.
for attempt in 1 2 3; do
    if $as_root apt-get -o DPkg::Lock::Timeout=120 -qq update &&
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 -qq -y \
            install --no-install-recommends $missing >/dev/null; then
        exit 0
    fi
    echo "packages.sh: attempt $attempt failed" >&2
done
exit 1
