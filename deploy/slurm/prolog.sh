#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Starts a cache for each Slurm job on each of its nodes. Only the job can read it. slurm.conf:
#
#   Prolog=/usr/share/forebay/slurm/prolog.sh
#   TaskProlog=/usr/share/forebay/slurm/prolog.sh
#   Epilog=/usr/share/forebay/slurm/epilog.sh
#
# As Prolog (root) it starts `forebay serve` as the job's user, on a free port of loopback, with an
# access key of the job's own, since all users of a node can reach its loopback. As TaskProlog (the
# user) it prints that port and key for the job's environment. The origin and its region are in
# /etc/forebay/slurm.yaml; keys for it in the user's ~/.aws, as for any S3 client.
#
# A failed Prolog would drain the node, and a job without a cache is only slower. So on any failure
# the log says why, and the job runs on S3.
#
#   FOREBAY_SLURM_CACHE   folder of the caches (/var/cache/forebay-slurm): root's, on a local disk
#   FOREBAY_SLURM_CONFIG  the configuration (/etc/forebay/slurm.yaml)
#   FOREBAY_SLURM_STATE   sockets, keys and logs (/run/forebay-slurm)
# Slurm passes no environment: set them in /etc/default/forebay-slurm.
set -u
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
defaults=${FOREBAY_SLURM_DEFAULTS:-/etc/default/forebay-slurm}
# shellcheck disable=SC1090 # the site's own
[ ! -r "$defaults" ] || . "$defaults"
caches=${FOREBAY_SLURM_CACHE:-/var/cache/forebay-slurm}
config=${FOREBAY_SLURM_CONFIG:-/etc/forebay/slurm.yaml}
states=${FOREBAY_SLURM_STATE:-/run/forebay-slurm}
forebay=${FOREBAY_SLURM_BINARY:-/usr/bin/forebay}
wait_tenths=300

job=${SLURM_JOB_ID:-}
case $job in
'' | *[!0-9]*) echo "forebay: SLURM_JOB_ID is \"$job\": no cache" >&2; exit 0 ;;
esac
state=$states/$job
cache=$caches/job-$job

# --- TaskProlog ---------------------------------------------------------------------------------
if [ "${SLURM_SCRIPT_CONTEXT:-prolog_slurmd}" = prolog_task ]; then
    [ -r "$state/client.env" ] || exit 0
    sed -n 's/^[A-Za-z_][A-Za-z0-9_]*=/export &/p' "$state/client.env"
    echo "unset AWS_SESSION_TOKEN"
    exit 0
fi

# --- Prolog -------------------------------------------------------------------------------------
# Root writes only to folders of root, because a file in a folder of the user may be a link to
# anywhere.
give_up() {
    echo "forebay: job $job runs without a cache: $*" >&2
    ! command -v logger >/dev/null || logger -t forebay-slurm "job $job runs without a cache: $*"
    [ ! -s "$state/pid" ] || kill -KILL "$(cat "$state/pid")" 2>/dev/null
    rm -rf "$state" "$cache"
    exit 0
}

umask 077
uid=${SLURM_JOB_UID:-}
case $uid in
'' | *[!0-9]*) give_up "SLURM_JOB_UID is \"$uid\"" ;;
esac
gid=$(id -g "$uid" 2>/dev/null) || give_up "nobody knows user $uid"
[ -x "$forebay" ] || give_up "no program $forebay"
[ ! -e "$state/pid" ] || exit 0 # once a node is enough
as_user="setpriv --reuid $uid --regid $gid --init-groups --no-new-privs --inh-caps=-all --reset-env"

mkdir -p "$states" "$caches" || give_up "no folder $states or $caches"
chmod 711 "$states" "$caches" || give_up "they are not ours: $states, $caches"
mkdir -p "$state" || give_up "no folder $state"
# Remove what a crash of the node has left: caches of jobs that are not here.
for old in "$caches"/job-*; do
    [ ! -d "$old" ] || [ -d "$states/${old##*/job-}" ] || rm -rf "$old"
done
rm -rf "$cache" "$state/socket"
mkdir "$cache" "$state/socket" || give_up "no folder $cache"
chmod 711 "$state" || give_up "not ours: $state"
"$forebay" keys new "slurm-job-$job" --allow '*:read,list,write,delete,any' >"$state/keys.yaml" ||
    give_up "no key"
chown "$uid:$gid" "$cache" "$state/socket" "$state/keys.yaml" ||
    give_up "user $uid can be given nothing"
id=$(sed -n 's/^- id: \([A-Z0-9]*\).*/\1/p' "$state/keys.yaml")
secret=$(sed -n 's/^  secret: \([A-Za-z0-9]*\).*/\1/p' "$state/keys.yaml")

# setsid, because Slurm ends all processes of its own group. Each of the three programs executes the
# next, so the process id stays.
cd / || give_up "no root"
# shellcheck disable=SC2086 # words
setsid $as_user "$forebay" serve -c "$config" --listen 127.0.0.1:0 \
    --auth.mode verify --auth.keys_file "$state/keys.yaml" --cache.dir "$cache" \
    --admin.listen off --admin.socket "$state/socket/admin" --shutdown.grace 5s \
    >"$state/log" 2>&1 </dev/null &
pid=$!
echo "$pid" >"$state/pid"

# shellcheck disable=SC2086
until $as_user "$forebay" env --shell dotenv --admin "unix:$state/socket/admin" \
    >"$state/new" 2>/dev/null; do
    wait_tenths=$((wait_tenths - 1))
    [ $wait_tenths -gt 0 ] || give_up "the server does not answer: $(tail -c 300 "$state/log")"
    kill -0 "$pid" 2>/dev/null || give_up "the server has ended: $(tail -c 300 "$state/log")"
    sleep 0.1
done
printf 'AWS_ACCESS_KEY_ID=%s\nAWS_SECRET_ACCESS_KEY=%s\n' "$id" "$secret" >>"$state/new"
chown "$uid:$gid" "$state/new" || give_up "user $uid can be given nothing"
mv "$state/new" "$state/client.env"
