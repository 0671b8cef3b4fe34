#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the Debian package.
#
#   sh deploy/deb.sh [FOLDER]
#
# FOLDER (build/package) gets forebay_VERSION_ARCH.deb. Two builds of one commit on one Debian give
# the same bytes.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
out=${1:-$here/build/package}
mkdir -p "$out"
out=$(cd "$out" && pwd)
sh "$here/deploy/packages.sh" --install build package

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
# Without ccache, because it would put the folder of an object's first build into the build id.
unset CMAKE_C_COMPILER_LAUNCHER
umask 022
rm -rf "$out/build"
cmake -S "$here" -B "$out/build" -G Ninja -DFOREBAY_BUILD=release -DFOREBAY_TESTS=OFF \
    -DCMAKE_INSTALL_PREFIX=/usr >"$out/build.log" 2>&1 &&
    cmake --build "$out/build" >>"$out/build.log" 2>&1 ||
    { tail -20 "$out/build.log" >&2; echo "deb.sh: the build failed" >&2; exit 1; }
rm -rf "$out"/*.deb "$out/tree"
(cd "$out/build" && cpack -G DEB -B "$out") >>"$out/build.log" 2>&1 ||
    { tail -20 "$out/build.log" >&2; echo "deb.sh: cpack failed" >&2; exit 1; }

# Packed again with the time of the commit, so that two builds give the same bytes.
deb=$(ls "$out"/*.deb)
dpkg-deb --raw-extract "$deb" "$out/tree"
dpkg-deb --root-owner-group --build "$out/tree" "$deb" >>"$out/build.log"
rm -rf "$out/tree" "$out/_CPack_Packages"
echo "$deb"
