#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ends the server that prolog.sh started for this job on this node, and removes its cache and its
# key. Runs as root (Epilog= in slurm.conf). A job without a cache is no error, because a failed
# Epilog drains the node.
set -u
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
defaults=${FOREBAY_SLURM_DEFAULTS:-/etc/default/forebay-slurm}
# shellcheck disable=SC1090 # the site's own
[ ! -r "$defaults" ] || . "$defaults"
caches=${FOREBAY_SLURM_CACHE:-/var/cache/forebay-slurm}
states=${FOREBAY_SLURM_STATE:-/run/forebay-slurm}
wait_tenths=100 # shutdown.grace is 5 s

job=${SLURM_JOB_ID:-}
case $job in
'' | *[!0-9]*) echo "forebay: SLURM_JOB_ID is \"$job\": nothing to end" >&2; exit 0 ;;
esac
state=$states/$job
cache=$caches/job-$job

# The server may have died and its number be another process's by now.
is_ours() {
    [ -n "$1" ] && tr '\0' '\n' 2>/dev/null <"/proc/$1/cmdline" | grep -qxF "$cache"
}

pid=$(cat "$state/pid" 2>/dev/null)
if is_ours "$pid"; then
    kill -TERM "$pid" 2>/dev/null
    while is_ours "$pid" && [ $wait_tenths -gt 0 ]; do
        wait_tenths=$((wait_tenths - 1))
        sleep 0.1
    done
    ! is_ours "$pid" || kill -KILL "$pid" 2>/dev/null
fi
rm -rf "$cache" "$state"
exit 0
