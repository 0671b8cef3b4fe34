#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes a release of a clean clone: Python wheels and tarballs for x86-64 and arm64; Debian package
# and image for x86-64; chart, bills of materials, notes, checksums, signature. Two releases of one
# commit and one base, with the same packages of Debian, differ only in their signatures.
#
#   sh deploy/release.sh [--sign KEY] [--base TAR] [FOLDER]    a new FOLDER (build/release-VERSION)
#   sh deploy/release.sh --check    compares all places that name the version; prints it last
#   --sign KEY        signs SHA256SUMS: KEY is the file of an ssh key, or the name of a gpg key
#   --base TAR        uses base.tar of deploy/image.sh as the image's base, not today's Debian 12
#   --image FOLDER    uses the image that deploy/image.sh made of this commit
#   --package FOLDER  uses the package that deploy/deb.sh made of this commit
#   --wheel FOLDER    uses the wheels and tarballs that deploy/wheel.sh made of this commit
#   --allow-dirty     accepts a tree with uncommitted changes
# Run it as root on x86-64, like image.sh. Without --sign it reports that nothing is signed.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
key= base= image= package= wheel= out= check=0 dirty=0
fail() { echo "release.sh: $*" >&2; exit 1; }
needs() { [ $# -ge 2 ] || { echo "release.sh: $1 wants a value (--help)" >&2; exit 2; }; }
while [ $# -gt 0 ]; do
    case $1 in
    --sign) needs "$@"; key=$2; shift ;;
    --base) needs "$@"; base=$2; shift ;;
    --image) needs "$@"; image=$2; shift ;;
    --package) needs "$@"; package=$2; shift ;;
    --wheel) needs "$@"; wheel=$2; shift ;;
    --check) check=1 ;;
    --allow-dirty) dirty=1 ;;
    -h | --help) sed -n '3,15p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    -*) echo "release.sh: unknown option $1 (--help)" >&2; exit 2 ;;
    *) [ -z "$out" ] || { echo "release.sh: one folder, not $out and $1" >&2; exit 2; }; out=$1 ;;
    esac
    shift
done

# --- One version ----------------------------------------------------------------------------------

# "FILE SCRIPT": what sed prints first is the version that FILE names.
version=
agree() {
    found=$(sed -n "$2" "$here/$1" | head -1)
    [ -n "$found" ] || fail "$1 names no version"
    [ -n "$version" ] || version=$found
    [ "$found" = "$version" ] || fail "$1 says version $found, CMakeLists.txt says $version"
}
agree CMakeLists.txt 's/^project(forebay VERSION \([0-9][0-9.]*\) .*/\1/p'
agree deploy/helm/forebay/Chart.yaml 's/^version: *"\{0,1\}\([^" ]*\)"\{0,1\} *$/\1/p'
agree deploy/helm/forebay/Chart.yaml 's/^appVersion: *"\{0,1\}\([^" ]*\)"\{0,1\} *$/\1/p'
agree deploy/debian/changelog 's/^forebay (\([^)]*\)) .*/\1/p'
agree deploy/CHANGELOG.md 's/^## \[\([0-9][^]]*\)\].*/\1/p'
if [ $check = 1 ]; then
    echo "$version"
    exit 0
fi

# --- What can be refused before anything is built -------------------------------------------------

out=${out:-$here/build/release-$version}
[ ! -e "$out" ] ||
    fail "$out is there already: a release is made once; remove it, or name another folder"
revision=$(git -C "$here" rev-parse --short=12 HEAD 2>/dev/null) ||
    fail "$here is no clone: the commit is a part of what is made"
[ $dirty = 1 ] || [ -z "$(git -C "$here" status --porcelain)" ] ||
    fail "the tree has changes that are not committed (git status; --allow-dirty)"
epoch=$(git -C "$here" log -1 --format=%ct)
export SOURCE_DATE_EPOCH="$epoch"
[ -z "$image" ] || [ -f "$image/oci/index.json" ] || fail "--image: $image holds no oci/index.json"
[ -z "$package" ] || ls "$package"/*.deb >/dev/null 2>&1 ||
    fail "--package: $package holds no package"
[ -z "$wheel" ] || ls "$wheel"/*.whl >/dev/null 2>&1 || fail "--wheel: $wheel holds no wheel"
# A program that was not built at the tag says so (CMakeLists.txt).
named=$version-dev
! git -C "$here" describe --exact-match --tags --match "v$version" >/dev/null 2>&1 || named=$version
[ -z "$key" ] || sh "$here/deploy/packages.sh" --install release
if [ -n "$key" ] && [ ! -f "$key" ]; then
    gpg --batch --list-secret-keys "$key" >/dev/null 2>&1 ||
        fail "--sign: $key is neither a file nor a key that gpg has"
fi
umask 022
mkdir -p "$(dirname "$out")"
out=$(cd "$(dirname "$out")" && pwd)/$(basename "$out")
made=$(mktemp -d "$out.XXXXXX")
trap 'rm -rf "$made" "$made.sums"' EXIT
trap 'exit 130' HUP INT TERM
chmod 755 "$made"

# --- Artefacts ------------------------------------------------------------------------------------

packed() {
    tar --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner \
        --mode=u+rwX,go=rX,go-w "$@"
}

if [ -z "$image" ]; then
    image=$here/build/release-work/image
    set --
    [ -z "$base" ] || set -- --base "$base"
    sh "$here/deploy/image.sh" "$@" "$image" >&2
fi
if [ -z "$package" ]; then
    package=$here/build/release-work/package
    sh "$here/deploy/deb.sh" "$package" >&2
fi
if [ -z "$wheel" ]; then
    wheel=$here/build/release-work/wheel
    for arch in amd64 arm64; do
        sh "$here/deploy/wheel.sh" --arch "$arch" "$wheel" >&2
    done
fi

# Image, package, wheels and tarballs must be of this commit and version, whoever made them.
of_image=$(python3 - "$image/oci" <<'PY'
import json, pathlib, sys
oci = pathlib.Path(sys.argv[1])
blob = lambda d: json.loads((oci / "blobs" / d.replace(":", "/")).read_text())
index = json.loads((oci / "index.json").read_text())
config = blob(blob(index["manifests"][0]["digest"])["config"]["digest"])
print(config["config"]["Labels"]["org.opencontainers.image.revision"], config["architecture"])
PY
)
[ "${of_image% *}" = "$revision" ] ||
    fail "$image is of commit ${of_image% *}, this tree of $revision"
deb=$(ls "$package"/forebay_"$version"_*.deb 2>/dev/null) ||
    fail "$package holds no package of version $version"
dpkg-deb --extract "$deb" "$made/unpacked"
said=$("$made/unpacked/usr/bin/forebay" version --json)
rm -rf "$made/unpacked"
case $said in
*"\"version\":\"$named\",\"revision\":\"$revision\""*) ;;
*) fail "$deb is not of version $named, commit $revision: $said" ;;
esac
# This machine does not run the programs of all tarballs. The bill names the commit and the
# program's checksum, the wheel's name has what its program said of itself.
in_wheel=$named
[ "$named" = "$version" ] || in_wheel=$version.dev0+$revision
ls "$wheel/forebay-$version"-*.tar.gz >/dev/null 2>&1 ||
    fail "$wheel holds no tarball of version $version"
for tarball in "$wheel/forebay-$version"-*.tar.gz; do
    machine=${tarball##*-}
    machine=${machine%.tar.gz}
    whl=$(ls "$wheel/forebay-$in_wheel"-py3-none-manylinux_*_"$machine.whl" 2>/dev/null) ||
        fail "$wheel holds no wheel of $in_wheel for $machine"
    bill=$wheel/forebay-$version-static-$machine.spdx.json
    program=$(tar -xzOf "$tarball" "forebay-$version/usr/bin/forebay" | sha256sum | cut -d' ' -f1)
    grep -q "\"$program\"" "$bill" && grep -q "\"versionInfo\": \"$revision\"" "$bill" ||
        fail "$tarball is not of commit $revision: $bill"
    cp "$tarball" "$whl" "$bill" "$made/"
done

cp "$deb" "$made/"
cp "$image/sbom.spdx.json" "$made/forebay-$version.spdx.json"
packed -C "$image/oci" -cf "$made/forebay-$version-image-${of_image#* }.oci.tar" \
    blobs index.json oci-layout
# As `helm package` makes it, but the same in two builds: links become what they lead to.
packed -C "$here/deploy/helm" -chf - forebay | gzip -9n >"$made/forebay-$version.tgz"
sed -n "/^## \[$version\]/,/^## \[/p" "$here/deploy/CHANGELOG.md" |
    sed '1d;/^## \[/d' >"$made/NOTES.md"
grep -q . "$made/NOTES.md" || fail "deploy/CHANGELOG.md says nothing of $version"
chmod 644 "$made"/*

(cd "$made" && sha256sum -- * >"$made.sums")
mv "$made.sums" "$made/SHA256SUMS"
[ "$named" = "$version" ] ||
    echo "release.sh: NOT TAGGED v$version; the programs call themselves $named" >&2
if [ -z "$key" ]; then
    echo "release.sh: NOT SIGNED; --sign KEY signs SHA256SUMS" >&2
elif [ -f "$key" ]; then
    ssh-keygen -q -Y sign -f "$key" -n forebay-release "$made/SHA256SUMS" ||
        fail "--sign: ssh-keygen could not sign with $key"
    ssh-keygen -q -Y check-novalidate -n forebay-release -s "$made/SHA256SUMS.sig" \
        <"$made/SHA256SUMS" >/dev/null
else
    gpg --batch --yes --local-user "$key" --armor --detach-sign "$made/SHA256SUMS" ||
        fail "--sign: gpg could not sign as $key"
    gpg --batch --verify "$made/SHA256SUMS.asc" "$made/SHA256SUMS" 2>/dev/null
fi
chmod 644 "$made"/SHA256SUMS*
mv "$made" "$out"
trap - EXIT
echo "release: $out, version $version, commit $revision, image $(cat "$image/digest")"
ls "$out"
