# SPDX-License-Identifier: Apache-2.0
"""A reload applies its settings from the next request on. It names settings that it cannot apply,
and clients notice nothing."""

import contextlib
import json
import os
import random
import re
import shutil
import subprocess
import threading

import pytest
from client import judge
from forebay import KEYS, PATIENT, build_kind, parallel, run_forebay, scaled
from origin import Origin
from test_control import ask
from waiting import wait_for

MIB = 1 << 20
FLAGS = ("listen", "admin.listen", "workers", "cache.dir")  # the rest is in the file


def serve(start, origin, file=None, **more):
    """A server whose settings are in a file, except for those that a reload never changes."""
    server = start(origin, run=False, **more)
    tree = {}
    for key, value in list(server.settings.items()):
        if key not in FLAGS:
            set_key(tree, key, str(value))
            server.settings[key] = None
    server.base = tree
    server.file = merged(tree, file or {})
    return server.start()


def set_key(tree, key, value):
    *folders, name = key.split(".")
    for folder in folders:
        tree = tree.setdefault(folder, {})
    tree[name] = value


def merged(one, other):
    both = {**one}
    for key, value in other.items():
        is_deep = isinstance(value, dict) and isinstance(both.get(key), dict)
        both[key] = merged(both[key], value) if is_deep else value
    return both


def change(server, file, code=0, **env):
    """Rewrites the file and reloads. Returns the answer of `forebay reload`."""
    path, text = (
        server.folder / "forebay.yaml",
        file if isinstance(file, str) else json.dumps(merged(server.base, file)),
    )
    before = path.read_text()
    for attempt in range(5):
        path.write_text(text)
        answer = ask(server, "reload", code=code, **env)[-1]
        if (
            answer["errors"]
            or answer["applied"]
            or answer["needs_restart"]
            or text == before
            or attempt == 4
        ):
            return answer
        # If writing and reloading take more than two seconds, the server may have read the file by
        # itself. Then reload again.
        path.write_text(before)
        ask(server, "reload", **env)


def in_force(server):
    """Returns the settings in force, as /api/v1/config has them, and the rules."""
    answer = json.loads(bytes(server.admin("/api/v1/config").body))
    return {row["key"]: row["value"] for row in answer["settings"]} | {
        "rules": [row["match"] for row in answer["rules"]]
    }


def asked(server, origin, key, **more):
    """Returns how many requests a read of KEY costs at the origin."""
    mark = origin.mark()
    with server.client() as client:
        judge(client.get(key, **more), origin, key, 0, origin.version(key).size)
    server.settle()
    return len(origin.requests(since=mark))


# --- rules ----------------------------------------------------------------------------------------


def test_each_field_of_a_rule_changes_with_the_next_request(start, origin, engine):
    server = serve(
        start, origin, {"rules": [{"match": "bkt/**", "freshness": "immutable"}]}, engine=engine
    )
    origin.put("k", 3 * MIB)
    assert asked(server, origin, "k") > 0 and asked(server, origin, "k") == 0
    for rule, costs in (
        ({"freshness": "strict"}, True),
        ({"freshness": "ttl", "ttl": "1h"}, False),
        ({"freshness": "ttl", "ttl": "0s"}, True),
        ({"freshness": "immutable"}, False),
        ({"cache": False}, True),
        ({"max_object_size": "4MiB"}, False),
    ):
        assert change(server, {"rules": [{"match": "bkt/**", **rule}]})["applied"] == ["rules"]
        assert (asked(server, origin, "k") > 0) == costs, rule
    # Another rule before it, and the defaults after all rules.
    rules = [
        {"match": "bkt/k", "freshness": "strict"},
        {"match": "bkt/**", "freshness": "immutable"},
    ]
    change(server, {"rules": rules})
    assert in_force(server)["rules"] == [rule["match"] for rule in rules]
    assert asked(server, origin, "k") > 0
    change(server, {"rules": [], "cache": {"ttl": "1h"}})
    assert asked(server, origin, "k") == 0
    change(server, {"cache": {"ttl": "0s"}})
    assert asked(server, origin, "k") > 0
    # Blocks of objects cached from now on, whether objects are kept at all, and listings.
    change(server, {"cache": {"block_size": "2MiB", "ttl": "1h"}})
    origin.put("new", 3 * MIB)
    asked(server, origin, "new")
    assert ask(server, "explain", "s3://bkt/new")[-1]["block_size"] == 2 * MIB
    change(server, {"cache": {"max_object_size": "2MiB", "ttl": "1h"}})
    origin.put("large", 3 * MIB)
    assert asked(server, origin, "large") > 0 and asked(server, origin, "large") > 0
    with server.client() as client:  # each worker has listings of its own
        for list_ttl, costs in (("1h", 1), ("1h", 0), ("2h", 0), ("0s", 1), ("1h", 1), ("0s", 1)):
            change(server, {"cache": {"list_ttl": list_ttl}})
            mark = origin.mark()
            assert client.list().status == 200
            assert len(origin.requests(since=mark)) == costs, list_ttl


def kept_listings(server):
    return server.metric("forebay_buffer_bytes", kind="listings")


def test_listings_that_a_rule_forbids_are_given_back_with_the_reload(start, origin, engine):
    """When a rule forbids kept listings, their memory is freed by the reload, also that of a
    listing in flight. Kept listings of other buckets stay."""

    def keep(*buckets, **cache):
        return {
            "rules": [{"match": f"{bucket}/**", "list_ttl": "1h"} for bucket in buckets],
            "cache": {"list_ttl": "0s", **cache},
        }

    server = serve(start, origin, keep("bkt", "other"), engine=engine)
    origin.put("k", 1)
    origin.put("k", 1, bucket="other")
    with server.client() as client:
        for prefix in range(40):
            assert client.list(f"list-type=2&prefix={prefix}").status == 200
        assert client.request("GET", "/other?list-type=2").status == 200
        server.wait_metric("forebay_buffer_bytes", lambda v: v > 41 * 300, kind="listings")
        change(server, keep("other"))
        assert 0 < kept_listings(server) < 2000
        mark = origin.mark()
        assert client.request("GET", "/other?list-type=2").status == 200
        assert not origin.requests(since=mark)
        with origin.hold(None):
            join = threading.Thread(
                target=lambda: client.request("GET", "/other?list-type=2&prefix=k")
            )
            join.start()
            origin.wait_for(1, bucket="other", since=mark)
            change(server, {"rules": [], "cache": {"list_ttl": "0s"}})
        join.join()
        server.wait_metric("forebay_buffer_bytes", lambda v: v == 0, kind="listings")


def test_a_request_keeps_the_rule_that_it_began_with(start, origin, engine):
    """A request whose rule is removed while it runs, twice, is answered and stored as if nothing
    had happened."""
    server = serve(
        start, origin, {"rules": [{"match": "bkt/**", "freshness": "immutable"}]}, engine=engine
    )
    origin.put("k", 5 * MIB)
    result = []
    reader = threading.Thread(target=lambda: result.append(asked(server, origin, "k")))
    with origin.hold("k"):
        reader.start()
        origin.wait_for(1, key="k")
        change(server, {"rules": [{"match": "bkt/**", "cache": False}]})
        change(
            server,
            {
                "rules": [
                    {"match": "other/**", "pin": True},
                    {"match": "bkt/**", "freshness": "immutable"},
                ]
            },
        )
    reader.join()
    assert result and asked(server, origin, "k") == 0


def test_groups_of_pins_follow_their_rules(start, origin, engine):
    """A pin keeps its objects over reloads that move its rule. If its rule is removed, they count
    like all others."""
    server = serve(start, origin, {"rules": [{"match": "bkt/a/**", "pin": True}]}, engine=engine)
    origin.put("a/k", 2 * MIB)
    origin.put("b/k", MIB)
    asked(server, origin, "a/k")
    asked(server, origin, "b/k")
    pinned = server.wait_metric("forebay_cache_pinned_bytes", lambda v: v >= 2 * MIB)
    change(
        server,
        {"rules": [{"match": "bkt/b/**", "share": "20%"}, {"match": "bkt/a/**", "pin": True}]},
    )
    server.wait_metric("forebay_cache_pinned_bytes", lambda v: v == pinned)
    change(server, {"rules": [{"match": "bkt/b/**", "share": "20%"}]})
    server.wait_metric("forebay_cache_pinned_bytes", lambda v: v == 0)
    assert asked(server, origin, "a/k") == 0  # it is still cached
    change(
        server, {"rules": [{"match": "bkt/c/**", "pin": True}, {"match": "bkt/b/**", "pin": True}]}
    )
    asked(server, origin, "b/k")  # a read object counts by its current rule
    server.wait_metric("forebay_cache_pinned_bytes", lambda v: MIB <= v < 2 * MIB)


def test_blocks_too_large_for_the_segments_are_refused_whole(start, origin):
    server = serve(start, origin, {"cache": {"size": "64MiB"}})
    refused = change(
        server,
        {
            "cache": {"size": "64MiB", "ttl": "7s"},
            "rules": [{"match": "b/**", "block_size": "16MiB"}],
        },
        code=3,
    )
    assert "forebay.yaml:1:" in refused["errors"][0] and "restart" in refused["errors"][0]
    assert in_force(server)["cache.ttl"] == "60s"


@pytest.mark.tsan
def test_reloads_under_load_are_not_noticed(start, origin, engine, figure):
    """100 reloads, every third of them bad, switch between two different configurations under load.
    Hits, misses, parts and listings are all answered rightly, and nothing grows."""
    turns = scaled(1000, 100) if build_kind() == "debug" else 40
    one = {
        "rules": [
            {"match": "bkt/a/**", "freshness": "immutable", "pin": True},
            {"match": "bkt/b/**", "cache": False},
        ],
        "cache": {"list_ttl": "1h"},
    }
    two = {
        "rules": [
            {"match": "bkt/b/**", "freshness": "immutable", "share": "20%"},
            {"match": "bkt/a/**", "freshness": "strict", "block_size": "64KiB", "priority": 7},
        ],
        "cache": {"ttl": "0s", "size": "96MiB", "verify": "always", "client_directives": "all"},
        "log": {"keys": "hash"},
        "access_log": {"format": "s3"},
    }
    server = serve(start, origin, {**one, "cache": {"size": "128MiB"}}, engine=engine)
    keys = [f"{folder}/{i}" for folder in "abc" for i in range(12)]
    for i, key in enumerate(keys):
        origin.put(key, (900, 70_000, 1_200_000)[i % 3])
    over, count, pauses = threading.Event(), [0] * 4, [threading.Lock() for _ in range(4)]

    def read_on(worker):
        dice = random.Random(worker)
        while not over.is_set():
            with server.client() as client:
                for _ in range(20):
                    key = dice.choice(keys)
                    size = origin.version(key).size
                    first = dice.randrange(size) if dice.random() < 0.4 else 0
                    last = None if first == 0 else dice.randrange(first, size)
                    with pauses[worker]:
                        reply = client.get(key, first or None, last)
                    judge(reply, origin, key, first, (size if last is None else last + 1) - first)
                    with pauses[worker]:
                        assert dice.random() < 0.9 or client.list().status == 200
                    count[worker] += 1

    def what_it_has():
        """Measures between two requests. Data that waits for a slow disk does not count as
        growth."""
        with contextlib.ExitStack() as paused:
            for pause in pauses:
                paused.enter_context(pause)
            server.durable()
            return server.memory_bytes(), len(os.listdir(f"/proc/{server._pid()}/fd"))

    def reload_all():
        seen = []
        try:
            for turn in range(turns):
                if turn % 3 == 2:
                    bad = (
                        '{"rules": [{"match": "bkt/**", "ttl": 5}]}',
                        '{"cache": {"size": "1MiB"}}',
                        json.dumps(
                            merged(
                                server.base,
                                {"cache": {"ttl": "9s"}, "access_log": {"path": "/no/such"}},
                            )
                        ),
                    )
                    change(server, bad[turn // 3 % 3], code=3)
                else:
                    answer = change(
                        server, {"cache": {"size": "128MiB"}, **one} if turn % 3 == 0 else two
                    )
                    assert "rules" in answer["applied"] or turn == 0 and answer["applied"], answer
                if turn % (turns // 10) == turns // 10 - 1:
                    seen.append(what_it_has())
        finally:
            over.set()
        return seen

    seen = parallel(5, lambda i: read_on(i) if i < 4 else reload_all())[4]
    figure(
        f"{turns} reloads under {sum(count)} requests: "
        f"{seen[1][0] >> 10} to {seen[-1][0] >> 10} KiB"
    )
    assert min(count) > 0
    if build_kind() == "debug":
        assert seen[-1][0] <= max(memory for memory, _ in seen[:5]) * 1.1 + MIB, seen
    assert seen[-1][1] <= max(files for _, files in seen[:5]) + 4, seen


# --- logs -----------------------------------------------------------------------------------------


def test_logs_go_where_the_file_says(start, origin):
    """A reload can move the access log to another file, change its form, and switch it off and on.
    It can change level, form and keys of the server log."""
    server = serve(start, origin)
    first, second = server.folder / "first.log", server.folder / "second.log"
    origin.put("dir/k", 10)

    def get():
        with server.client() as client:
            return client.get("dir/k").header("x-amz-request-id")

    def has(path, name):
        return path.exists() and name in path.read_text()

    change(server, {"access_log": {"path": str(first)}})
    one = get()
    wait_for(lambda: has(first, one), "a line in the first file")
    change(server, {"access_log": {"path": str(second), "format": "s3"}, "log": {"keys": "hash"}})
    two = get()
    wait_for(lambda: has(second, two), "a line in the second file")
    assert "REST.GET.OBJECT" in second.read_text() and "dir/k" not in second.read_text()
    assert not has(first, two)
    change(server, {"access_log": {"path": "off"}})
    off = get()
    change(server, {"access_log": {"path": str(first), "sample": "0"}})
    unseen = get()
    change(server, {"access_log": {"path": str(first)}, "log": {"format": "text", "level": "warn"}})
    three = get()
    wait_for(lambda: has(first, three), "a line again")
    for path in (first, second):
        assert not has(path, off) and not has(path, unseen)
    refused = change(
        server, {"access_log": {"path": "/dev/null/x/log"}, "cache": {"ttl": "7s"}}, code=3
    )
    assert "access_log.path" in refused["errors"][0]
    server.wait_stderr("level=error event=reload_failed")  # as text now
    count = len(server.stderr)
    change(server, {"log": {"level": "warn", "format": "text"}})
    change(server, {"log": {"level": "info", "format": "text"}})
    server.wait_stderr("level=info event=reloaded")
    assert (
        sum("event=reloaded" in line for line in server.stderr[count:]) == 1
    )  # the one at `warn` prints nothing


def test_a_log_that_was_off_can_be_turned_on(start, origin):
    server = serve(start, origin, {"access_log": {"path": "off"}})
    origin.put("k", 10)
    asked(server, origin, "k")
    assert change(server, {})["applied"] == ["access_log.path"]
    asked(server, origin, "k")
    server.access_log(wait_for=lambda line: line["key"] == "k")


# --- requests, limits, the rest -------------------------------------------------------------------


def test_a_reload_changes_what_requests_may_say(start, origin):
    """A reload can change whether clients may use Cache-Control, the names of virtual hosts, and
    the web origins."""
    server = serve(start, origin, {"rules": [{"match": "bkt/**", "freshness": "immutable"}]})
    rules = {"rules": [{"match": "bkt/**", "freshness": "immutable"}]}
    origin.put("k", 10)
    asked(server, origin, "k")
    no_cache = {"headers": [("Cache-Control", "no-cache")]}
    assert asked(server, origin, "k", **no_cache) > 0
    change(server, {**rules, "cache": {"client_directives": "ignore"}})
    assert asked(server, origin, "k", **no_cache) == 0
    change(server, {**rules, "cache": {"client_directives": "all"}})
    assert asked(server, origin, "k", headers=[("Cache-Control", "no-store")]) > 0

    def status(host=None, headers=()):
        with server.client(host=host) as client:
            return client.request("GET", "/bkt/k" if host is None else "/k", headers).status

    assert status(host="bkt.cache.example") == 403
    change(
        server,
        {
            **rules,
            "s3": {"domains": "cache.example"},
            "auth": {"allowed_origins": "http://page.example"},
        },
    )
    assert status(host="bkt.cache.example") == 200
    assert status(headers=[("Origin", "http://page.example")]) == 200
    change(server, rules)
    assert status(host="bkt.cache.example") == 403
    assert status(headers=[("Origin", "http://page.example")]) == 403


def test_limits_of_clients(start, origin):
    """A reload can change the limits of concurrent requests, of connections per source and of idle
    time."""
    server = serve(start, origin)
    origin.put("k", 10)
    change(server, {"limits": {"max_inflight": "1"}})
    waiting = threading.Thread(target=asked, args=(server, origin, "k"))
    with origin.hold("k"), server.client() as client:
        waiting.start()
        origin.wait_for(1, key="k")
        assert client.head("k").status == 503
        change(server, {"limits": {"max_connections_per_source": "1"}})
        with server.connection() as refused:
            assert refused.read_reply().status == 503
        change(server, {"limits": {"idle_timeout": "10ms"}})
        assert client.request("GET", "/").status in (200, 403)
        wait_for(client.connection.at_end, "the idle connection to be closed")
    waiting.join()


def test_a_reload_changes_timeouts_and_retries(start, origin):
    """A reload can change timeouts and retries of calls to origins."""
    server = serve(start, origin, {"origin": {"retries": 0, "first_byte_timeout": "1h"}})
    for key in ("a", "b", "c"):
        origin.put(key, 10)

    def status(key):
        with server.client() as client:
            return client.get(key).status

    origin.fault("a", "status", 503, times=1)
    assert status("a") == 503
    change(server, {"origin": {"retries": 5, "retry_budget": "100%"}})
    origin.fault("b", "status", 503, times=2)
    assert status("b") == 200
    change(server, {"origin": {"retries": 0, "first_byte_timeout": "100ms"}})
    with origin.hold("c"):
        assert status("c") in (503, 504)


def write_keys(folder, name, access, secret):
    out = {}
    for part, text in (("access", access), ("secret", secret)):
        path = folder / f"{name}-{part}"
        path.write_text(text)
        path.chmod(0o600)
        out[f"{part}_key_file"] = str(path)
    return {"credentials": {"source": "config", **out}}


def test_keys_for_the_origin_change(start, origin, tmp_path):
    """A reload can change the credentials for the origin: other files, or other keys in the same
    files. The next call is signed with the new ones, and none with the old ones."""
    one = write_keys(tmp_path, "one", *next(iter(KEYS.items())))
    server = serve(start, origin, one)
    for key in ("a", "b", "c"):
        origin.put(key, 10)
    assert asked(server, origin, "a") == 1
    origin.credentials = {"second": "second-secret"}
    assert change(server, write_keys(tmp_path, "two", "second", "second-secret"))["applied"] == [
        "credentials.access_key_file",
        "credentials.secret_key_file",
    ]
    assert asked(server, origin, "b") == 1
    origin.credentials = {"third": "third-secret"}
    change(server, write_keys(tmp_path, "two", "third", "third-secret"))
    assert asked(server, origin, "c") == 1
    refused = change(
        server, {**write_keys(tmp_path, "two", "third", ""), "cache": {"ttl": "7s"}}, code=3
    )
    assert "two-secret" in refused["errors"][0]
    assert in_force(server)["cache.ttl"] == "60s"


def test_authorities_of_origins_change(start, tmp_path):
    """A reload can change the certificate authorities for origins. Another file, or other
    certificates in the same file, apply to new connections. A file without certificates is refused.
    """
    pairs = [certificate(tmp_path, str(i)) for i in range(3)]
    origins = [Origin(credentials=KEYS, tls=pair) for pair in pairs]
    ca = tmp_path / "ca.pem"
    for made in origins:
        made.start()
        made.put("k", 10)
    server = serve(start, origins[0], {"origin": {"ca_file": pairs[1][0], "retries": 0}})
    with server.client() as client:
        assert client.get("k").status == 503
        ca.write_text(open(pairs[2][0]).read())
        change(server, {"origin": {"ca_file": str(ca), "retries": 0}})
        assert client.get("k").status == 503
        ca.write_text(open(pairs[0][0]).read())
        change(server, {"origin": {"ca_file": str(ca), "retries": 0}})
        reply = client.get("k")
        assert reply.status == 200, server.output()
        judge(reply, origins[0], "k")
        ca.write_text("nothing")
        assert (
            "origin.ca_file"
            in change(server, {"origin": {"ca_file": str(ca)}}, code=3)["errors"][0]
        )
    for made in origins:
        made.stop()


def certificate(folder, name):
    pair = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-keyout",
            pair[1],
            "-out",
            pair[0],
            "-days",
            "2",
            "-subj",
            f"/CN={name}",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
    )
    pair[1].chmod(0o600)
    return tuple(map(str, pair))


def test_an_unfinished_renewal_of_the_certificate_is_a_condition(start, origin, tmp_path):
    """Only the certificate has been replaced. The former pair stays in use, which the answer of a
    reload and the condition say, until its key is there too."""
    pair, other = certificate(tmp_path, "first"), certificate(tmp_path, "other")
    tls = {
        "listen": "127.0.0.1:0,tls:127.0.0.1:0",
        "listen_tls.cert": pair[0],
        "listen_tls.key": pair[1],
    }
    server = serve(start, origin, settings=tls)
    shutil.copy(other[0], pair[0])
    admin = f"http://127.0.0.1:{server.admin_port}"
    got = run_forebay(*PATIENT, "--admin", admin, "reload")
    assert got.returncode == 0 and "the former certificate stays in use" in got.stderr, got
    server.wait_condition("reload-refused")
    shutil.copy(other[1], pair[1])
    got = run_forebay(*PATIENT, "--admin", admin, "reload")
    assert got.returncode == 0 and "certificate" not in got.stderr, got
    server.wait_condition("reload-refused", holds=False)


# --- every key ------------------------------------------------------------------------------------


def test_a_reload_says_what_each_changed_key_needs(start, origin, tmp_path):
    """For each changed key the answer says whether it is applied or waits for a restart, by its
    class in the table of settings. Unchanged keys are not named."""
    table = run_forebay("config", "docs").stdout
    rows = re.findall(
        r"^\| `([a-z0-9_.]+(?:\[\])?)` \|.*\| (reload|restart) \| [^|]*\|$", table, re.M
    )
    cert, key = certificate(tmp_path, "c")
    token, keys = tmp_path / "token", tmp_path / "keys.yaml"
    token.write_text("0123456789abcdef")
    keys.write_text("- {id: someone, secret: something, allow: [{bucket: '*', ops: [read]}]}")
    for path in (token, keys):
        path.chmod(0o600)
    values = {"auto": "7", "true": "false", "false": "true", "0s": "7s", "0": "7"}
    other = {
        "auth.mode": "verify",
        "origin.probe": "true",
        "credentials.source": "env",
        "listen_tls.cert": cert,
        "listen_tls.key": key,
        "s3.domains": "x.example",
        "admin.socket": "off",
        "admin.token_file": str(token),
        "admin.allowed_hosts": "x.example",
        "origin.endpoint": "https://127.0.0.1:9",
        "origin.region": "eu-west-1",
        "origin.ca_file": cert,
        "origin.max_rate": "7MiB/s",
        "origin.proxy": "http://proxy.example:3128",
        "origin.proxy_auth_file": str(token),
        "origin.retry_budget": "7%",
        "credentials.access_key_file": str(token),
        "credentials.secret_key_file": str(token),
        "credentials.session_token_file": str(token),
        "auth.keys_file": str(keys),
        "auth.allowed_origins": "http://x.example",
        "cache.size": "700MiB",
        "cache.headroom": "7%",
        "cache.min_free": "7%",
        "cache.scrub_rate": "7MiB/s",
        "cache.block_size": "64KiB",
        "cache.readahead": "7MiB",
        "cache.stale_if_error": "7s",
        "limits.max_buffer": "77MiB",
        "limits.min_rate": "7KiB/s",
        "access_log.path": str(tmp_path / "log"),
        "access_log.sample": "0.5",
        "limits.header_timeout": "7s",
    }
    lists = {"rules[]": [{"match": "x/**"}], "buckets[]": [{"name": "x", "origin": "s3://y"}]}
    server = serve(start, origin)
    socket = f"unix:{in_force(server)['admin.socket']}"  # over TCP one key would lock the test out
    judged = 0
    for name, how in rows:
        kind = re.search(rf"^\| `{re.escape(name)}` \| (\S+) \| ([^|]*) \|", table, re.M)
        default, accepts = kind.group(1).strip("`"), kind.group(2).split(", ")
        if name in FLAGS:
            continue
        tree = {}
        if name in lists:
            tree[name[:-2]] = lists[name]
        elif (
            name in other
            or default in values
            and (
                accepts == ["true", "false"]
                or not re.fullmatch(r"[a-z0-9_-]+(, [a-z0-9_-]+)+", kind.group(2))
            )
        ):
            set_key(tree, name, other.get(name) or values[default])
        elif default.endswith("s") and default[:-1].isdigit():
            set_key(tree, name, "7s")
        elif default.isdigit() and "," not in kind.group(2):
            set_key(tree, name, "7")
        else:  # a choice
            now = in_force(server)[name]
            set_key(
                tree,
                name,
                next(word for word in accepts if word not in (default, now, "auto", "verify")),
            )
        if name == "auth.mode":
            set_key(tree, "auth.keys_file", str(keys))
        if re.fullmatch("credentials.*_file", name):
            set_key(tree, "credentials.access_key_file", str(token))
            set_key(tree, "credentials.secret_key_file", str(token))
        if name.startswith("origin.proxy"):
            set_key(tree, "origin.endpoint", other["origin.endpoint"])
            set_key(tree, "origin.proxy", other["origin.proxy"])
        change(server, {}, FOREBAY_ADMIN=socket)
        answer = change(server, tree, FOREBAY_ADMIN=socket)
        said = "applied" if how == "reload" else "needs_restart"
        assert name.removesuffix("[]") in answer[said], (name, how, tree, answer)
        assert (
            name.removesuffix("[]") not in answer["needs_restart" if how == "reload" else "applied"]
        ), (name, answer)
        judged += 1
    assert judged == len(rows) - len(FLAGS) and judged > 60
