#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the Python wheel and the tarball. Their program has every library but the C library linked
# in, so it runs on hosts that have none of them.
#
#   sh deploy/wheel.sh [--arch ARCH] [--check] [FOLDER]
# FOLDER (build/wheel) gets forebay-VERSION-py3-none-manylinux_GLIBC_MACHINE.whl,
# forebay-VERSION-Linux-MACHINE.tar.gz and forebay-VERSION-static-MACHINE.spdx.json.
#   --arch ARCH   this machine's processor as Debian names it, or arm64, by a cross compiler
#   --check       as root: installs the wheel on a bare Debian 12 and reads through it from an S3
#                 server (deploy/python/check.sh); for another processor qemu runs the program, as
#                 far as it can (deploy/python/check_emulated.py)
# Run it on Debian 12, as root or with sudo. Two builds of one commit, with the same packages of
# Debian, give the same bytes.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck disable=SC1091 # there, or the next command fails
suite=$(. /etc/os-release && [ "$ID" = debian ] && echo "$VERSION_CODENAME") ||
    { echo "wheel.sh: it needs Debian, whose libraries it links in" >&2; exit 1; }
own=$(dpkg --print-architecture)
arch=$own
check=0
while [ $# -gt 0 ]; do
    case $1 in
    --arch) [ $# -ge 2 ] || { echo "wheel.sh: --arch wants a value (--help)" >&2; exit 2; }
        arch=$2; shift ;;
    --check) check=1 ;;
    -h | --help) sed -n '3,14p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    -*) echo "wheel.sh: unknown option $1 (--help)" >&2; exit 2 ;;
    *) break ;;
    esac
    shift
done
case $arch in
amd64) machine=x86_64 ;;
arm64) machine=aarch64 ;;
*) echo "wheel.sh: --arch wants amd64 or arm64, not \"$arch\"" >&2; exit 2 ;;
esac
[ "$arch" = "$own" ] || [ "$arch" = arm64 ] ||
    { echo "wheel.sh: it has no cross compiler from $own to $arch" >&2; exit 2; }
triple=$machine-linux-gnu
out=${1:-$here/build/wheel}
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$out/work-$arch
root=$work/build/root # CMakeLists.txt keeps names below the build folder out of the program
log=$out/build-$arch.log
sh "$here/deploy/packages.sh" --install tools wheel
if [ "$arch" = "$own" ]; then
    emulator="env" # starts the program as it is
    [ $check = 0 ] || sh "$here/deploy/packages.sh" --install bare
else
    emulator="qemu-$machine-static -L $root"
    sh "$here/deploy/packages.sh" --install cross emulate
fi

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
# Without ccache, for the reason that deb.sh gives.
unset CMAKE_C_COMPILER_LAUNCHER
umask 022
rm -rf "$work" "$out"/*"$machine".whl "$out"/*"$machine".tar.gz "$out"/*"$machine".spdx.json
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/src" "$work/packages" \
    "$root/usr/local/lib/pkgconfig"
: >"$log"
began=$(date +%s)
step() { echo "wheel.sh: $1 (after $(($(date +%s) - began)) s)" >&2; }
logged() {
    "$@" >>"$log" 2>&1 ||
        { tail -20 "$log" >&2; echo "wheel.sh: $* failed: $log" >&2; exit 1; }
}

# --- Debian's libraries for ARCH, in a folder -----------------------------------------------------

# They are the newest ones, whatever this machine has installed. Apt verifies them.
for line in "http://deb.debian.org/debian $suite" "http://deb.debian.org/debian $suite-updates" \
    "http://security.debian.org/debian-security $suite-security"; do
    printf 'deb %s main\ndeb-src %s main\n' "$line" "$line"
done >"$work/sources.list"
: >"$work/status"
set -- -qq -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/nonexistent \
    -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" \
    -o Dir::State::Status="$work/status" -o APT::Architecture="$arch" -o APT::Architectures="$arch"
[ "$(id -u)" != 0 ] || set -- "$@" -o APT::Sandbox::User=root
step "1/4 Debian's libraries for $arch, log: $log"
logged apt-get "$@" update
# shellcheck disable=SC2046 # a list
logged apt-get "$@" --yes --download-only --no-install-recommends install \
    $(sh "$here/deploy/packages.sh" linked)
for deb in "$work"/cache/archives/*.deb; do
    logged dpkg-deb --extract "$deb" "$root"
    package=$(dpkg-deb --field "$deb" Package)
    dpkg-deb --field "$deb" >"$work/packages/$package"
    dpkg-deb --fsys-tarfile "$deb" | tar -t | sed "s,^\\.,$package ,"
done >"$work/files"
cat >"$work/toolchain.cmake" <<END
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $machine)
set(CMAKE_SYSROOT $root)
set(CMAKE_C_COMPILER $triple-gcc)
set(CMAKE_CROSSCOMPILING_EMULATOR $emulator)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
END
export PKG_CONFIG_SYSROOT_DIR="$root"
export PKG_CONFIG_LIBDIR="$root/usr/local/lib/pkgconfig:$root/usr/lib/$triple/pkgconfig"

# --- Libraries of which Debian has no archive that can be linked ----------------------------------

# Debian's libcurl.a speaks thirty protocols and calls Kerberos, which has no archive. Debian has no
# archive of ISA-L. Both are built from Debian's sources with its patches, which apt verifies.
step "2/4 libcurl and ISA-L: a few minutes on one core"
cd "$work/src"
logged apt-get "$@" source curl libisal
cd "$here"

hardened="-O2 -fstack-protector-strong -D_FORTIFY_SOURCE=2 -ffile-prefix-map=$work/="
# HAVE_POLL_FINE: with a toolchain file curl does not test poll(), and would use select().
logged cmake -S "$work"/src/curl-* -B "$work/curl" -G Ninja -DCMAKE_BUILD_TYPE=None \
    -DCMAKE_TOOLCHAIN_FILE="$work/toolchain.cmake" -DHAVE_POLL_FINE=1 \
    -DCMAKE_C_FLAGS="$hardened" -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_SHARED_LIBS=OFF \
    -DBUILD_CURL_EXE=OFF -DBUILD_TESTING=OFF -DENABLE_MANUAL=OFF -DHTTP_ONLY=ON \
    -DCURL_USE_OPENSSL=ON -DCURL_USE_LIBSSH2=OFF -DCURL_USE_LIBPSL=OFF -DUSE_LIBIDN2=OFF \
    -DUSE_NGHTTP2=OFF -DCURL_ZLIB=OFF -DCURL_BROTLI=OFF -DCURL_ZSTD=OFF \
    -DCURL_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt -DCURL_CA_PATH=/etc/ssl/certs \
    -DCMAKE_INSTALL_PREFIX=/usr/local -DCMAKE_INSTALL_LIBDIR=lib
logged cmake --build "$work/curl"
DESTDIR=$root logged cmake --install "$work/curl"
# curl's own file names the shared libraries that its build found.
# shellcheck disable=SC2016 # pkg-config expands it
sed -i 's/^Libs:.*/Libs: -L${libdir} -lcurl/; /^Libs.private/d' \
    "$root/usr/local/lib/pkgconfig/libcurl.pc"
logged make -C "$work"/src/libisal-*/ -f Makefile.unx units=crc lib host_cpu="$machine" \
    CC="$triple-gcc --sysroot=$root" AR="$triple-ar"
cp "$work"/src/libisal-*/bin/isa-l.a "$root/usr/local/lib/libisal.a"
printf '%s\n' 'Name: libisal' 'Description: ISA-L' "Version: $(pkg-config --modversion libisal)" \
    'Libs: -L/usr/local/lib -lisal' >"$root/usr/local/lib/pkgconfig/libisal.pc"

# --- The program ----------------------------------------------------------------------------------

step "3/4 the program"
logged cmake -S "$here" -B "$work/build" -G Ninja -DFOREBAY_BUILD=release -DFOREBAY_TESTS=OFF \
    -DFOREBAY_STATIC=ON -DCMAKE_TOOLCHAIN_FILE="$work/toolchain.cmake" -DCMAKE_INSTALL_PREFIX=/usr
logged cmake --build "$work/build"
tree=$work/tree
DESTDIR=$tree logged cmake --install "$work/build" --strip
program=$tree/usr/bin/forebay
needs=$("$triple-objdump" -p "$program" | awk '$1 == "NEEDED" { print $2 }')
for library in $needs; do
    case $library in
    libc.so.6 | libm.so.6 | ld-linux-*) ;;
    *) echo "wheel.sh: $program needs $library" >&2; exit 1 ;;
    esac
done
# The C library that has the newest of the symbols which the program calls.
glibc=$("$triple-objdump" -T "$program" | sed -n 's/.*(GLIBC_\(2\.[0-9]*\)[.0-9]*).*/\1/p' |
    sort -uV | tail -1)
# shellcheck disable=SC2086 # a command and its options
said=$($emulator "$program" version --json)

# --- What is linked in ----------------------------------------------------------------------------

step "4/4 bill of materials, wheel, tarball"
version=$(sed -n 's/^project(forebay VERSION \([0-9.]*\).*/\1/p' "$here/CMakeLists.txt")
tarball=$out/forebay-$version-Linux-$machine.tar.gz
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
    sed -n 's,^root\(/usr/lib/.*\.a\)$,\1,p' | sort -u); do
    awk -v file="$archive" '$2 == file { print $1 }' "$work/files"
done | sort -u >"$work/linked"
while read -r package; do
    linked "$package" "$root/usr/share/doc/$package/copyright" <"$work/packages/$package"
done <"$work/linked"
for source in "$work"/src/*.dsc; do
    name=$(sed -n 's/^Source: //p' "$source")
    { echo "Package: $name"; grep -m 1 '^Version: ' "$source"; echo "Architecture: source"; } |
        linked "$name" "$(echo "$work/src/$name"-*/debian/copyright)"
done
revision=$(git -C "$here" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
python3 "$here/deploy/image/sbom.py" "$bom" "$revision" "$SOURCE_DATE_EPOCH" --static \
    >"$docs/forebay.spdx.json"
cp "$docs/forebay.spdx.json" "$out/forebay-$version-static-$machine.spdx.json"

# --- Wheel and tarball ----------------------------------------------------------------------------

tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -C "$tree" \
    --transform "s,^\\.,forebay-$version," -cf - . | gzip -9n >"$tarball"
wheel=$(python3 "$here/deploy/python/wheel.py" "$tree" "$said" \
    "manylinux_$(echo "$glibc" | tr . _)_$machine" "$SOURCE_DATE_EPOCH" "$out")
rm -rf "$work"
ls "$wheel" "$tarball"
if [ $check = 1 ] && [ "$arch" = "$own" ]; then
    sh "$here/deploy/python/check.sh" "$wheel"
elif [ $check = 1 ]; then
    python3 "$here/deploy/python/check_emulated.py" "$wheel"
fi
