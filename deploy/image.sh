#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the image as an OCI layout, without a daemon or a registry. The base is made from Debian's
# packages, and the Dockerfile runs in a chroot. Two builds of one commit and base have one digest.
#
#   sh deploy/image.sh [--target debug] [--base TAR] [FOLDER]
# FOLDER (build/image) gets oci/ (the layout), sbom.spdx.json, digest, and, unless --base names one,
# base.tar. Run it as root.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
target=
base=
while [ $# -gt 0 ]; do
    case $1 in
    --target) target=$2; shift ;;
    --base) base=$2; shift ;;
    -h | --help) sed -n '3,8p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    -*) echo "image.sh: unknown option $1 (--help)" >&2; exit 2 ;;
    *) break ;;
    esac
    shift
done
out=${1:-$here/build/image}
mkdir -p "$out"
out=$(cd "$out" && pwd)
[ "$(id -u)" = 0 ] || { echo "image.sh: making a base takes root" >&2; exit 1; }
sh "$here/deploy/packages.sh" --install image

# The time of the commit stands for every time in the image.
revision=$(git -C "$here" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
tag=$(git -C "$here" describe --exact-match --tags --match 'v[0-9]*' 2>/dev/null || :)
epoch=${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH="$epoch"

if [ -z "$base" ]; then
    base=$out/base.tar
    echo "base: Debian 12 by mmdebstrap" >&2
    printf '%s\n' 'deb http://deb.debian.org/debian bookworm main' \
        'deb http://deb.debian.org/debian bookworm-updates main' \
        'deb http://security.debian.org/debian-security bookworm-security main' |
        mmdebstrap --quiet --variant=apt --include=ca-certificates \
            --dpkgopt='path-exclude=/usr/share/man/*' \
            --dpkgopt='path-exclude=/usr/share/locale/*' bookworm "$base"
fi

store=$(mktemp -d)
trap 'rm -rf "$store"' EXIT
buildah() { command buildah --root "$store/root" --runroot "$store/run" --storage-driver vfs "$@"; }

# The name that the Dockerfile's FROM stands for.
container=$(buildah from scratch)
buildah add --quiet "$container" "$base" / >/dev/null
buildah commit --quiet "$container" docker.io/library/debian:bookworm-slim >/dev/null
buildah rm "$container" >/dev/null

set -- --isolation chroot --pull-never --quiet --timestamp "$epoch" --format oci \
    --build-arg "FOREBAY_REVISION=$revision" --build-arg "FOREBAY_TAG=$tag" \
    --build-arg "SOURCE_DATE_EPOCH=$epoch" \
    --label "org.opencontainers.image.revision=$revision"
[ -z "$target" ] || set -- "$@" --target "$target"
buildah build "$@" --tag localhost/forebay:latest "$here" >"$out/build.log" 2>&1 ||
    { tail -30 "$out/build.log" >&2; echo "image.sh: the build failed" >&2; exit 1; }
rm -rf "$out/oci"
buildah push --quiet localhost/forebay:latest "oci:$out/oci:latest"

container=$(buildah from --pull-never localhost/forebay:latest)
mounted=$(buildah mount "$container")
python3 "$here/deploy/image/sbom.py" "$mounted" "$revision" "$epoch" >"$out/sbom.spdx.json"
bytes=$(du -sb "$mounted" | cut -f1)
buildah umount "$container" >/dev/null
buildah rm "$container" >/dev/null
sed -n 's/.*"digest": *"\(sha256:[0-9a-f]*\)".*/\1/p' "$out/oci/index.json" | head -1 >"$out/digest"
[ -s "$out/digest" ] || python3 - "$out/oci/index.json" >"$out/digest" <<'PY'
import json, sys
print(json.load(open(sys.argv[1]))["manifests"][0]["digest"])
PY
packed=$(du -sb "$out/oci" | cut -f1)
echo "image: $out/oci, $(cat "$out/digest"), $bytes bytes unpacked, $packed packed"
