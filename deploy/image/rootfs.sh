#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# rootfs.sh BINARY FOLDER: what an image FROM scratch holds: the binary, the libraries it is linked
# with and their loader, where its certificates are, names for its user, and one record per package
# for scanners and licences.
set -eu
binary=$1
root=$2

mkdir -p "$root/usr/bin" "$root/etc/ssl/certs" "$root/cache" "$root/tmp" \
    "$root/var/lib/dpkg/status.d"
install -m 755 "$binary" "$root/usr/bin/forebay"
strip "$root/usr/bin/forebay"

# ldd names each library once, with those of its libraries: "name => PATH (0x...)", or "PATH
# (0x...)" for the loader.
ldd "$binary" | awk '{ for (i = 1; i <= NF; i++) if ($i ~ /^\//) print $i }' |
    sort -u >"$root/.libraries"
while read -r path; do
    mkdir -p "$root$(dirname "$path")"
    cp -L --preserve=mode "$path" "$root$path"
done <"$root/.libraries"

cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
printf '%s:/:/sbin/nologin\n' root:x:0:0:root forebay:x:65532:65532:forebay >"$root/etc/passwd"
printf 'root:x:0:\nforebay:x:65532:\n' >"$root/etc/group"
printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
chown 65532:65532 "$root/cache"
chmod 700 "$root/cache"
chmod 1777 "$root/tmp"

# Find the package of each file, under both names that a merged /usr gives it.
{
    while read -r path; do
        real=$(readlink -f "$path")
        dpkg-query -S "$path" 2>/dev/null || dpkg-query -S "$real" 2>/dev/null ||
            dpkg-query -S "${real#/usr}" 2>/dev/null ||
            { echo "rootfs.sh: no package has $path" >&2; exit 1; }
    done <"$root/.libraries"
    echo "ca-certificates: "
} | sed 's/: .*//; s/:[a-z0-9]*$//' | sort -u >"$root/.packages"
while read -r package; do
    dpkg-query -s "$package" |
        sed '/^Conffiles:/,/^[^ ]/{/^Conffiles:/d;/^ /d}' >"$root/var/lib/dpkg/status.d/$package"
    mkdir -p "$root/usr/share/doc/$package"
    cp -L "/usr/share/doc/$package/copyright" "$root/usr/share/doc/$package/" 2>/dev/null || true
done <"$root/.packages"
rm "$root/.libraries" "$root/.packages"
