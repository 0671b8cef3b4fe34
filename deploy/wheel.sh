#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the Python wheel and the tarball. Their program has every library but the C library linked
# in, so it runs on hosts that have none of them.
#
#   sh deploy/wheel.sh [--check] [FOLDER]
# FOLDER (build/wheel) gets forebay-VERSION-py3-none-manylinux_GLIBC_ARCH.whl,
# forebay-VERSION-Linux-ARCH.tar.gz and sbom.spdx.json. Run it on Debian 12, as root or with sudo.
# Two builds of one commit give the same bytes. --check also installs the wheel on a bare Debian 12
# and reads through it from an S3 server (deploy/python/check.sh); it needs root.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
check=0
while [ $# -gt 0 ]; do
    case $1 in
    --check) check=1 ;;
    -h | --help) sed -n '3,10p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    -*) echo "wheel.sh: unknown option $1 (--help)" >&2; exit 2 ;;
    *) break ;;
    esac
    shift
done
out=${1:-$here/build/wheel}
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$out/work
prefix=$work/build/prefix # CMakeLists.txt keeps names below the build folder out of the program
log=$out/build.log
# shellcheck disable=SC1091 # there, or the next command fails
suite=$(. /etc/os-release && [ "$ID" = debian ] && echo "$VERSION_CODENAME") ||
    { echo "wheel.sh: it needs Debian, whose source packages have two libraries" >&2; exit 1; }
sh "$here/deploy/packages.sh" --install build wheel
[ $check = 0 ] || sh "$here/deploy/packages.sh" --install bare

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
# Without ccache, for the reason that deb.sh gives.
unset CMAKE_C_COMPILER_LAUNCHER
umask 022
rm -rf "$work" "$out"/*.whl "$out"/*.tar.gz
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/src" "$prefix/lib/pkgconfig"
: >"$log"
began=$(date +%s)
step() { echo "wheel.sh: $1 (after $(($(date +%s) - began)) s)" >&2; }
logged() {
    "$@" >>"$log" 2>&1 ||
        { tail -20 "$log" >&2; echo "wheel.sh: $* failed: $log" >&2; exit 1; }
}

# --- Libraries of which Debian has no archive that can be linked ----------------------------------

# Debian's libcurl.a speaks thirty protocols and calls Kerberos, which has no archive. Debian has no
# archive of ISA-L. Both are built from Debian's sources with its patches, which apt verifies.
for line in "http://deb.debian.org/debian $suite" "http://deb.debian.org/debian $suite-updates" \
    "http://security.debian.org/debian-security $suite-security"; do
    echo "deb-src $line main"
done >"$work/sources.list"
set -- -qq -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/nonexistent \
    -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache"
[ "$(id -u)" != 0 ] || set -- "$@" -o APT::Sandbox::User=root
step "1/3 libcurl and ISA-L: a few minutes on one core, log: $log"
logged apt-get "$@" update
cd "$work/src"
logged apt-get "$@" source curl libisal
cd "$here"

hardened="-O2 -fstack-protector-strong -D_FORTIFY_SOURCE=2 -ffile-prefix-map=$work/="
logged cmake -S "$work"/src/curl-* -B "$work/curl" -G Ninja -DCMAKE_BUILD_TYPE=None \
    -DCMAKE_C_FLAGS="$hardened" -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_SHARED_LIBS=OFF \
    -DBUILD_CURL_EXE=OFF -DBUILD_TESTING=OFF -DENABLE_MANUAL=OFF -DHTTP_ONLY=ON \
    -DCURL_USE_OPENSSL=ON -DCURL_USE_LIBSSH2=OFF -DCURL_USE_LIBPSL=OFF -DUSE_LIBIDN2=OFF \
    -DUSE_NGHTTP2=OFF -DCURL_ZLIB=OFF -DCURL_BROTLI=OFF -DCURL_ZSTD=OFF \
    -DCURL_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt -DCURL_CA_PATH=/etc/ssl/certs \
    -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib
logged cmake --build "$work/curl"
logged cmake --install "$work/curl"
# curl's own file names the shared libraries that its build found.
# shellcheck disable=SC2016 # pkg-config expands it
sed -i 's/^Libs:.*/Libs: -L${libdir} -lcurl/; /^Libs.private/d' \
    "$prefix/lib/pkgconfig/libcurl.pc"
logged make -C "$work"/src/libisal-*/ -f Makefile.unx units=crc lib
cp "$work"/src/libisal-*/bin/isa-l.a "$prefix/lib/libisal.a"
printf '%s\n' 'Name: libisal' 'Description: ISA-L' "Version: $(pkg-config --modversion libisal)" \
    "Libs: -L$prefix/lib -lisal" >"$prefix/lib/pkgconfig/libisal.pc"

# --- The program ----------------------------------------------------------------------------------

step "2/3 the program"
export PKG_CONFIG_PATH="$prefix/lib/pkgconfig"
logged cmake -S "$here" -B "$work/build" -G Ninja -DFOREBAY_BUILD=release -DFOREBAY_TESTS=OFF \
    -DFOREBAY_STATIC=ON -DCMAKE_INSTALL_PREFIX=/usr
logged cmake --build "$work/build"
tree=$work/tree
DESTDIR=$tree logged cmake --install "$work/build" --strip
program=$tree/usr/bin/forebay
needs=$(objdump -p "$program" | awk '$1 == "NEEDED" { print $2 }')
for library in $needs; do
    case $library in
    libc.so.6 | libm.so.6 | ld-linux-*) ;;
    *) echo "wheel.sh: $program needs $library" >&2; exit 1 ;;
    esac
done
# The C library that has the newest of the symbols which the program calls.
glibc=$(objdump -T "$program" | sed -n 's/.*(GLIBC_\(2\.[0-9]*\)[.0-9]*).*/\1/p' |
    sort -uV | tail -1)

# --- What is linked in ----------------------------------------------------------------------------

step "3/3 bill of materials, wheel, tarball"
bom=$work/bom
docs=$tree/usr/share/doc/forebay
mkdir -p "$bom/usr/bin" "$bom/var/lib/dpkg/status.d" "$docs/linked"
cp "$program" "$bom/usr/bin/"
# linked NAME COPYRIGHT: a package of which something is in the program. Its record is on stdin.
linked() {
    cat >"$bom/var/lib/dpkg/status.d/$1"
    mkdir -p "$bom/usr/share/doc/$1"
    cp -L "$2" "$bom/usr/share/doc/$1/copyright"
    cp -L "$2" "$docs/linked/$1"
}
for archive in $(ninja -C "$work/build" -t commands forebay | tail -1 | tr ' ' '\n' |
    sed -n 's,^\(/usr/.*\.a\)$,\1,p' | sort -u); do
    dpkg-query -S "$archive" | sed 's/[:,].*//'
done | sort -u >"$work/packages"
while read -r package; do
    dpkg-query -s "$package" | linked "$package" "/usr/share/doc/$package/copyright"
done <"$work/packages"
for source in "$work"/src/*.dsc; do
    name=$(sed -n 's/^Source: //p' "$source")
    { echo "Package: $name"; grep -m 1 '^Version: ' "$source"; echo "Architecture: source"; } |
        linked "$name" "$(echo "$work/src/$name"-*/debian/copyright)"
done
revision=$(git -C "$here" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
python3 "$here/deploy/image/sbom.py" "$bom" "$revision" "$SOURCE_DATE_EPOCH" --static \
    >"$docs/forebay.spdx.json"
cp "$docs/forebay.spdx.json" "$out/sbom.spdx.json"

# --- Wheel and tarball ----------------------------------------------------------------------------

version=$(sed -n 's/^project(forebay VERSION \([0-9.]*\).*/\1/p' "$here/CMakeLists.txt")
tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -C "$tree" \
    --transform "s,^\\.,forebay-$version," -cf - . |
    gzip -9n >"$out/forebay-$version-$(uname -s)-$(uname -m).tar.gz"
wheel=$(python3 "$here/deploy/python/wheel.py" "$tree" "$glibc" "$SOURCE_DATE_EPOCH" "$out")
rm -rf "$work"
ls "$out"/*.whl "$out"/*.tar.gz
[ $check = 0 ] || sh "$here/deploy/python/check.sh" "$wheel"
