#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# From a clean clone to a served sample data set, on a Debian 12 that has nothing but git.
#
#   deploy/quickstart.sh             installs packages, builds, serves a sample on 127.0.0.1:9000
#   deploy/quickstart.sh --check     the same on a free port; fetches twice through it, and stops
#   deploy/quickstart.sh --dir DIR   serves DIR instead (its folders are the buckets)
#   deploy/quickstart.sh --port N    another port; the page is on the next one
#
# It shows each step with its time, and the build with a bar on a terminal.
# It writes only to build/quickstart of the source tree.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
root=${FOREBAY_BUILD_ROOT:-$here/build}/quickstart
port=9000
data=
check=0
while [ $# -gt 0 ]; do
    case $1 in
    --check) check=1 ;;
    --dir) data=$(cd "$2" && pwd); shift ;;
    --port) port=$2; shift ;;
    -h | --help) sed -n '3,11p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "quickstart.sh: unknown option $1 (--help)" >&2; exit 2 ;;
    esac
    shift
done

say() { printf '%s\n' "$*" >&2; }

# took BEGAN: the seconds since then, as words.
took() { echo "$(($(date +%s) - $1)) s"; }

# Draws "$root/step" (DONE/ALL, of files) each second, until that is gone.
draw() {
    while sleep 1 && [ -e "$root/step" ]; do
        read -r step <"$root/step" || continue
        percent=$((100 * ${step%/*} / ${step#*/}))
        bar=$(printf "%$((percent * 3 / 10))s" "" | tr ' ' '#')
        printf '\r\033[K      [%-30s] %d %%, %s' "$bar" "$percent" "$(took "$1")" >&2
        [ $((${step#*/} - ${step%/*})) -gt 1 ] || printf ', linking' >&2
    done
}

# Reads ninja's lines "[3/213] ...". Keeps the last one for draw() on a terminal, and writes a line
# for each quarter elsewhere.
progress() {
    shown=0
    while read -r line; do
        case $line in "["[0-9]*/[0-9]*"] "*) ;; *) continue ;; esac
        step=${line#"["} step=${step%%"]"*}
        percent=$((100 * ${step%/*} / ${step#*/}))
        if [ -t 2 ]; then
            echo "$step" >"$root/step"
        elif [ $((percent / 25)) -gt $shown ] && [ $percent -lt 100 ]; then
            shown=$((percent / 25))
            say "      $percent % after $(took "$1")"
        fi
    done
}

build() {
    cmake -S "$here" -B "$root/release" -G Ninja -DFOREBAY_BUILD=release -DFOREBAY_TESTS=OFF &&
        cmake --build "$root/release" --target forebay
}

mkdir -p "$root/bin"
began=$(date +%s)
say "1/3 packages: what the build needs, by apt"
sh "$here/deploy/packages.sh" --install build quickstart
say "      all there after $(took "$began")"

began=$(date +%s)
say "2/3 build: a few minutes on one core (log: $root/build.log)"
rm -f "$root/built"
if [ -t 2 ]; then
    echo 0/1 >"$root/step"
    draw "$began" &
    trap 'rm -f "$root/step"' EXIT
fi
{ build 2>&1 && : >"$root/built"; } | tee "$root/build.log" | progress "$began"
if [ -t 2 ]; then
    rm -f "$root/step"
    wait
    trap - EXIT
    printf '\r\033[K' >&2
fi
if [ ! -e "$root/built" ]; then
    tail -30 "$root/build.log" >&2
    say "the build failed: $root/build.log"
    exit 1
fi
forebay=$root/bin/forebay
ln -sf ../release/forebay "$forebay"
say "      built after $(took "$began"): $forebay"

# A little of everything: nested text files, an odd key, an empty object, one of several blocks.
sample() {
    data=$root/sample
    [ -e "$data/.complete" ] && return
    bucket=$data/sample
    mkdir -p "$bucket/train" "$bucket/notes"
    awk -v folder="$bucket/train" 'BEGIN {
        srand(42)
        for (i = 0; i < 200; i++) {
            name = sprintf("%s/item-%04d.txt", folder, i)
            lines = 20 + int(rand() * 400)
            for (n = 0; n < lines; n++)
                printf "item %d line %d %08d\n", i, n, int(rand() * 1e8) > name
            close(name)
        }
    }'
    echo "hello from forebay" >"$bucket/hello.txt"
    echo "a key with blanks" >"$bucket/notes/read me + 100%.txt"
    : >"$bucket/notes/empty"
    head -c 8388611 /dev/urandom >"$bucket/shard-0000.bin"
    : >"$data/.complete"
}

fetch=
if [ -z "$data" ]; then
    sample
    fetch=sample/hello.txt
fi
config=$root/forebay.yaml
cat >"$config" <<YAML
# Written by quickstart.sh. The sample never changes, and this rule says so: after the first pass
# no request for it reaches the origin. Without this rule an object is asked about once a minute.
rules:
  - {match: "sample/**", freshness: immutable}
YAML

admin=http://127.0.0.1:$((port + 1))
say "3/3 serve"
serve() {
    exec "$forebay" serve -c "$config" --origin.endpoint "dir:$data" --listen "127.0.0.1:$1" \
        --admin.listen "127.0.0.1:$2" --cache.dir "$root/cache" --cache.size 1GiB
}

if [ $check = 0 ]; then
    elsewhere= # commands look at the default port by themselves
    [ "$port" = 9000 ] || elsewhere=$admin
    cat >&2 <<TEXT

Forebay serves $data on http://127.0.0.1:$port (stop with Ctrl-C). In another terminal:

    export PATH=$root/bin:\$PATH${elsewhere:+ FOREBAY_ADMIN=$elsewhere}
    forebay status                                    # how it is; forebay: what else there is
    curl http://127.0.0.1:$port/${fetch:-BUCKET/KEY}
    export AWS_ENDPOINT_URL_S3=http://127.0.0.1:$port AWS_ACCESS_KEY_ID=x AWS_SECRET_ACCESS_KEY=x
    aws s3 ls s3://sample/                            # any S3 client, unchanged

The page, in a browser: $admin/

To keep it, in ~/.local/bin or another folder that is on your PATH:

    mkdir -p ~/.local/bin && ln -s $root/release/forebay ~/.local/bin/

To put it before a real store:

    AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=... \\
        forebay serve --origin.endpoint https://s3.eu-central-1.amazonaws.com

TEXT
    serve "$port" "$((port + 1))"
fi

# --check: on a port that is free, fetch twice, stop, and see a clean end.
attempt=0
while :; do
    attempt=$((attempt + 1))
    now=$(date +%S%N | cut -c1-5 | sed 's/^0*//;s/^$/1/')
    port=$((20000 + ($$ * 7 + attempt * 131 + now) % 20000))
    rm -rf "$root/cache"
    serve "$port" "$((port + 1))" >"$root/serve.log" 2>&1 &
    pid=$!
    # shellcheck disable=SC2064
    trap "kill $pid 2>/dev/null || :" EXIT
    tries=0
    while [ $tries -lt 100 ] && kill -0 $pid 2>/dev/null; do
        curl -fsS -o /dev/null "http://127.0.0.1:$((port + 1))/startupz" 2>/dev/null && break 2
        tries=$((tries + 1))
        sleep 0.1
    done
    kill $pid 2>/dev/null || :
    if [ $attempt -ge 5 ]; then
        cat "$root/serve.log" >&2
        say "it did not start"
        exit 1
    fi
done
url=http://127.0.0.1:$port
# fetch KEY RESULT: the bytes are those of the file, Cache-Status has RESULT.
fetch() {
    curl -fsS -D "$root/head" -o "$root/body" "$url/sample/$1"
    cmp "$root/body" "$data/sample/$1"
    grep -qi "^cache-status: forebay; *$2" "$root/head" && return
    say "sample/$1: expected $2:"
    cat "$root/head" "$root/serve.log" >&2
    exit 1
}
if [ -n "$fetch" ]; then
    # A file changed less than 2 s ago is streamed and not kept: the sample may be that young.
    sleep 3
    fetch hello.txt fwd=uri-miss
    fetch shard-0000.bin fwd=uri-miss
    # The next request finds the fetched object once it is published, 200 ms later at most.
    sleep 1
    fetch hello.txt hit
    fetch shard-0000.bin hit
    curl -fsS -r 1048570-1048585 "$url/sample/shard-0000.bin" >/dev/null
fi
curl -fsS "$url/" >/dev/null
kill "$pid"
code=0
wait "$pid" || code=$?
trap - EXIT
[ $code = 0 ] || { cat "$root/serve.log" >&2; say "it ended with $code"; exit 1; }
echo "quickstart: served, fetched twice (the second time from the cache), stopped"
