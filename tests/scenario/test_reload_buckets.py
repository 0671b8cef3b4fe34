# SPDX-License-Identifier: Apache-2.0
"""A reload gives a bucket another origin. Requests in flight keep their origin, later ones use the
new one, and no cached object of one is served as another's."""

import http.client
import json
import os
import random
import threading

import pytest
from client import judge
from conftest import strict
from forebay import build_kind, parallel, scaled
from origin import Origin
from signer import Signer
from test_control import ask
from test_origin_trouble import events
from test_reload import asked, change, in_force, merged, serve
from waiting import wait_for

MIB = 1 << 20
RULES = {"rules": [{"match": "**", "freshness": "immutable", "list_ttl": "1h"}]}


@pytest.fixture
def two(origin):
    """The default origin, and a second one with other versions of the same keys."""
    with strict(Origin()) as other:
        for size, key in ((3 * MIB, "k"), (2000, "small")):
            origin.put(key, size)
            other.put(key, size)
            other.overwrite(key, size)  # an ETag that the first one never had
        yield origin, other


def at(*rows):
    return {"buckets": [dict(row) for row in rows], **RULES}


def bucket(name, where, **more):
    return {
        "name": name,
        "origin": "s3://bkt",
        "endpoint": where.endpoint,
        "region": "us-east-1",
        **more,
    }


def test_a_bucket_moves_and_comes_back(start, two, engine, tmp_path):
    """A bucket moves to another endpoint, to a directory and back. Each time it has that origin's
    bytes, and objects cached earlier are hits again once that origin has confirmed them."""
    first, second = two
    (tmp_path / "tree" / "bkt").mkdir(parents=True)
    (tmp_path / "tree" / "bkt" / "small").write_bytes(b"from the directory")
    server = serve(start, first, RULES, engine=engine)
    assert asked(server, first, "k") > 0
    assert change(server, at(bucket("bkt", second)))["applied"] == ["buckets"]
    mark = first.mark()
    for key in ("k", "small"):
        assert asked(server, second, key) > 0 and asked(server, second, key) == 0
    assert not first.requests(since=mark)
    change(server, at({"name": "bkt", "origin": f"dir:{tmp_path}/tree/bkt"}))
    with server.client() as client:
        assert client.get("small").body == b"from the directory" and client.get("k").status == 404
    marks = [where.mark() for where in two]
    change(server, RULES)
    assert asked(server, first, "k") == 1 and asked(server, first, "k") == 0
    assert first.bytes_sent(since=marks[0]) == 0 and asked(server, first, "small") > 0
    change(server, at(bucket("bkt", second)))
    assert asked(server, second, "k") == 1 and asked(server, second, "small") == 1
    server.file = merged(server.base, at(bucket("bkt", second)))
    server.restart()
    assert asked(server, second, "k") == 1, "the directory is no longer named"
    assert asked(server, second, "k") == 0 and asked(server, second, "small") == 1
    assert second.bytes_sent(since=marks[1]) == 0
    change(server, RULES)
    assert asked(server, first, "k") == 1


def test_only_the_name_at_the_origin_changes(start, two):
    first, _ = two
    first.make_bucket("second")
    first.put("k", MIB, bucket="second")
    server = serve(start, first, at(bucket("bkt", first)))
    assert asked(server, first, "k") > 0
    change(server, at(bucket("bkt", first, origin="s3://second")))
    with server.client() as client:
        assert len(client.get("k").body) == MIB
    change(server, at(bucket("bkt", first)))
    assert asked(server, first, "k") == 1
    change(server, at({"name": "bkt", "origin": "s3://second"}))  # at the default origin
    with server.client() as client:
        assert len(client.get("k").body) == MIB


def test_listings_come_from_the_current_origin(start, two):
    first, second = two
    second.put("only-there", 1)
    server = serve(start, first, RULES, settings={"workers": 1})

    def listed():
        with server.client() as client:
            return b"only-there" in client.list().body

    assert not listed() and not listed()
    change(server, at(bucket("bkt", second)))
    assert listed()
    change(server, RULES)
    assert not listed()


def test_requests_in_flight_keep_their_origin(start, two, engine):
    """A read and an upload end at the origin where they began, although the bucket moves before
    they end."""
    first, second = two
    server = serve(start, first, RULES, engine=engine)
    go, seen = threading.Event(), []

    def read():
        with server.client() as client:
            seen.append(client.get("k"))

    def write():
        with server.client() as client:
            seen.append(client.request("PUT", "/bkt/new", body=b"x" * 1000))

    first.fault("k", "hold_at", (MIB, go))
    threads = [threading.Thread(target=read), threading.Thread(target=write)]
    with first.hold("new"):
        for thread in threads:
            thread.start()
        first.wait_for(1, key="k")
        first.wait_for(1, key="new")
        change(server, at(bucket("bkt", second)))
        with server.client() as client:
            judge(client.get("small"), second, "small", 0, 2000)
            judge(client.get("k"), second, "k", 0, 3 * MIB)
    go.set()
    for thread in threads:
        thread.join()
    judge(next(reply for reply in seen if len(reply.body) > 0), first, "k", 0, 3 * MIB)
    assert [reply.status for reply in seen] == [200, 200]
    assert not second.requests(key="new") and first.requests(key="new", method="PUT")
    server.settle()
    # A write was in flight when the bucket moved. The new origin might be another name of the place
    # that the write changes.
    mark = second.mark()
    assert asked(server, second, "k") == 1 and asked(server, second, "k") == 1
    assert second.bytes_sent(since=mark) == 0
    change(server, RULES)
    assert asked(server, first, "k") == 1 and asked(server, first, "k") == 0


def test_a_write_while_a_bucket_is_away(start, two):
    """A write reaches the same place by another name while a bucket's name is not in use. It still
    invalidates the objects cached under that name."""
    first, second = two
    server = serve(start, second, at(bucket("bkt", first)))
    assert asked(server, first, "k") > 0 and asked(server, first, "k") == 0
    change(server, at(bucket("other", first)))
    with server.client(bucket="other") as client:
        assert client.request("PUT", "/other/k", body=b"new").status == 200
        assert client.get("k").body == b"new"
    change(server, at(bucket("bkt", first), bucket("other", first)))
    with server.client() as client:
        assert client.get("k").body == b"new"


def test_a_write_that_a_new_name_comes_into(start, two):
    """A name for the same place is added while a write is open. Objects read by the new name are
    fetched again once the write has ended."""
    first, second = two
    server = serve(start, second, at(bucket("bkt", first)))
    done = []

    def write():
        with server.client() as client:
            done.append(client.request("PUT", "/bkt/k", body=b"new").status)

    thread = threading.Thread(target=write)
    mark = first.mark()
    with first.hold("k"):
        thread.start()
        first.wait_for(1, key="k", method="PUT")
        change(server, at(bucket("bkt", first), bucket("other", first)))
        reader = server.client(bucket="other")
        held = threading.Thread(target=lambda: done.append(len(reader.get("k").body)))
        held.start()
        first.wait_for(2, key="k")
    thread.join()
    held.join()
    assert 200 in done and first.requests(since=mark)
    server.settle()
    with server.client(bucket="other") as client:
        assert client.get("k").body == b"new"
    reader.close()


def test_a_new_name_for_a_place_is_in_doubt(start, two):
    """The origin may still apply a write that it never answered. So objects read by a new name for
    that place are revalidated too."""
    first, second = two
    server = serve(start, second, at(bucket("bkt", first)), settings={"origin.retries": 0})
    first.fault("k", "reset", method="PUT")
    with server.client() as client:
        assert client.request("PUT", "/bkt/k", body=b"new").status >= 500
    change(server, at(bucket("bkt", first), bucket("other", first)))
    with server.client(bucket="other") as client:
        judge(client.get("k"), first, "k", 0, 3 * MIB)
        server.settle()
        first.overwrite("k", 2 * MIB)  # the origin applies it now
        judge(client.get("k"), first, "k", 0, 2 * MIB)


def test_a_bad_bucket_changes_nothing(start, two, tmp_path):
    first, second = two
    server = serve(start, first, at(bucket("bkt", second)))
    asked(server, second, "k")
    good = [row for row in at(bucket("bkt", first))["buckets"]]
    for row, why in (
        ({"name": "x", "origin": f"dir:{tmp_path}/none/x"}, "none"),
        ({"name": "x", "origin": "s3://x", "endpoint": "nonsense"}, "nonsense"),
        (
            {
                "name": "x",
                "origin": "s3://x",
                "credentials": {"access_key_file": "/no/such", "secret_key_file": "/no/such"},
            },
            "/no/such",
        ),
        ({"name": "x", "orign": "s3://x"}, "orign"),
    ):
        refused = change(server, {"buckets": [*good, row], "cache": {"ttl": "7s"}}, code=3)
        assert why in refused["errors"][0] and "forebay.yaml:1:" in refused["errors"][0], refused
        assert in_force(server)["cache.ttl"] == "60s"
        assert asked(server, second, "k") == 0
    assert "reload-refused" in server.conditions()
    change(server, at(bucket("bkt", first)))
    assert asked(server, first, "k") > 0


def test_origins_of_a_process_are_bounded(start, two):
    """The number of origins since the start is limited. A restart forgets those that are not in
    use."""
    first, _ = two
    rows = [
        [
            {"name": f"bucket-{turn}-{i}", "origin": "s3://bkt", "endpoint": first.endpoint}
            for i in range(700)
        ]
        for turn in (0, 1)
    ]
    server = serve(start, first, RULES, settings={"workers": 1, "limits.max_connections": 100})
    change(server, at(*rows[0]))
    refused = change(server, at(*rows[1]), code=3)
    assert "1280" in refused["errors"][0] and "restart" in refused["errors"][0]
    change(server, at(*rows[0][:600]))
    change(server, at(*rows[0]))  # those are known
    change(server, at(*rows[0][:600], *rows[1][:100]))
    server.file = merged(server.base, at(*rows[1]))
    server.restart()
    with server.client(bucket="bucket-1-699") as client:
        judge(client.get("k"), first, "k", 0, 3 * MIB)


def test_few_descriptors_are_shared(start, two):
    """Forebay refuses more origins than there are descriptors for. The existing ones work."""
    first, second = two
    wrapper = ("sh", "-c", 'ulimit -n 700; exec "$@"', "sh")
    server = serve(start, first, RULES, wrapper=wrapper)
    refused = change(
        server,
        at(
            *(
                {"name": f"b{i}", "origin": "s3://bkt", "endpoint": second.endpoint}
                for i in range(200)
            )
        ),
        code=3,
    )
    assert "descriptors" in refused["errors"][0] and "ulimit -n" in refused["errors"][0]
    refused = change(server, {"limits": {"max_connections": "20000"}}, code=3)
    assert "descriptors" in refused["errors"][0]
    assert asked(server, first, "k") > 0


def test_unused_origins_cause_no_degraded_state(start, two):
    first, second = two
    server = serve(start, first, settings={"origin.probe": "true", "origin.retries": 0})
    dead = {"name": "dead", "origin": "s3://bkt", "endpoint": "http://127.0.0.1:9"}
    change(server, at(dead))
    server.wait_condition("origin-unreachable")
    assert b"127.0.0.1:9" in bytes(server.admin("/readyz").body)
    change(server, RULES)
    assert "origin-unreachable" not in server.conditions()
    assert b"127.0.0.1:9" not in bytes(server.admin("/readyz").body)
    change(server, at(dead))  # and a request goes to it again
    server.wait_condition("origin-unreachable")


def test_commands_use_the_current_origin_of_a_bucket(start, two):
    """`warm`, `explain` and `evict` use the origin that the reload gave to the bucket."""
    first, second = two
    server = serve(start, first, RULES)
    change(server, at(bucket("bkt", second)))
    assert ask(server, "warm", "s3://bkt/", "--wait")[-1]["objects_failed"] == 0
    assert asked(server, second, "k") == 0
    told = ask(server, "explain", "s3://bkt/k")[-1]
    assert str(second.port) in told["origin"], told
    ask(server, "evict", "s3://bkt")
    assert asked(server, second, "k") > 0
    change(server, RULES)
    assert ask(server, "explain", "s3://bkt/k")[-1]["cached_bytes"] == 0


@pytest.mark.tsan
def test_moves_under_load(start, two, engine, figure):
    """A bucket moves back and forth while clients read and write. Each answer comes whole from one
    origin, the one in force when it was asked, and nothing grows."""
    first, second = two
    turns = scaled(400, 40) if build_kind() == "debug" else 20
    server = serve(start, first, at(bucket("bkt", first)), engine=engine)
    keys = [f"k{i}" for i in range(12)]
    for i, key in enumerate(keys):
        size = (900, 70_000, 1_200_000)[i % 3]
        first.put(key, size)
        second.put(key, size)
        second.overwrite(key, size)
    lock, phase, over, counts = threading.Lock(), [0, first], threading.Event(), [0] * 4

    def now():
        with lock:
            return list(phase)

    def read_on(worker):
        dice = random.Random(worker)
        with server.client() as client:
            while not over.is_set():
                key = dice.choice(keys)
                before, asked_of = now()
                reply = client.get(key)
                after, _ = now()
                of = first if first.number_of(key, reply.etag) else second
                judge(reply, of, key, 0, of.version(key).size)
                assert before % 2 or before != after or of is asked_of, (key, before)
                if dice.random() < 0.1:
                    assert client.list().status == 200
                counts[worker] += 1

    def move():
        seen = []
        try:
            for turn in range(turns):
                to = (second, first)[turn % 2]
                with lock:
                    phase[0] += 1  # neither is promised during a move
                change(server, at(bucket("bkt", to)))
                with lock:
                    phase[:] = [phase[0] + 1, to]
                seen.append(len(os.listdir(f"/proc/{server._pid()}/fd")))
        finally:
            over.set()
        return seen

    seen = parallel(5, lambda i: read_on(i) if i < 4 else move())[4]
    figure(
        f"{turns} moves under {sum(counts)} reads; "
        f"{max(seen[:10])} then {max(seen[-10:])} descriptors"
    )
    assert min(counts) > 0
    assert max(seen[-10:]) <= max(seen[:10]) + 40, seen


# --- what else became live with it ----------------------------------------------------------------


def test_a_reload_changes_who_may_ask_the_admin_port(start, origin, tmp_path):
    server = serve(start, origin)
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o600)

    def status(headers=()):
        connection = http.client.HTTPConnection("127.0.0.1", server.admin_port, timeout=20)
        connection.request("GET", "/api/v1/config", headers=dict(headers))
        return connection.getresponse().status

    assert status() == 200 and status({"Host": "x.example"}) == 403
    change(server, {"admin": {"allowed_hosts": "x.example"}})
    assert status({"Host": "x.example"}) == 200
    with_token = {
        "admin": {"allowed_hosts": "x.example", "trust_loopback": "false", "token_file": str(token)}
    }
    change(server, with_token)
    assert status() == 401 and status({"Authorization": "Bearer 0123456789abcdef"}) == 200
    env = {"FOREBAY_ADMIN_TOKEN": "0123456789abcdef"}
    token.write_text("short")
    (server.folder / "forebay.yaml").write_text(json.dumps(merged(server.base, with_token)))
    refused = ask(server, "reload", code=3, **env)[-1]
    assert "admin.token_file" in refused["errors"][0]
    assert status({"Authorization": "Bearer 0123456789abcdef"}) == 200
    token.write_text("fedcba9876543210")
    ask(server, "reload", **env)
    assert status({"Authorization": "Bearer 0123456789abcdef"}) == 401
    assert status({"Authorization": "Bearer fedcba9876543210"}) == 200


def test_sts_is_relayed_as_the_file_says(start, origin):
    with Origin() as sts:
        server = serve(
            start,
            origin,
            {"sts": {"relay": "off"}},
            env={"AWS_ENDPOINT_URL_STS": sts.endpoint, "AWS_REGION": "us-east-1"},
        )

        def relayed():
            mark = sts.mark()
            with server.client() as client:
                client.request(
                    "POST",
                    "/",
                    headers=[("Content-Type", "application/x-www-form-urlencoded")],
                    body=b"Action=AssumeRoleWithWebIdentity&Version=2011-06-15",
                )
            return len(sts.requests(since=mark)) > 0

        assert not relayed()
        change(server, {"sts": {"relay": "loopback"}})
        assert relayed()
        change(server, {"sts": {"relay": "off"}})
        assert not relayed()
        sts.violations.clear()


def test_how_many_clients_and_how_much_memory(start, origin):
    server = serve(start, origin, {"limits": {"max_buffer": "64MiB"}})
    with server.client() as one:
        assert one.request("GET", "/").status in (200, 403)
        change(server, {"limits": {"max_connections": "1", "max_buffer": "32MiB"}})
        with server.connection() as refused:
            assert refused.read_reply().status == 503
        assert server.metric("forebay_buffer_limit_bytes") == 32 * MIB
        change(server, {"limits": {"max_connections": "500", "max_buffer": "96MiB"}})
        assert server.metric("forebay_buffer_limit_bytes") == 96 * MIB
        with server.client() as more:
            assert more.request("GET", "/").status in (200, 403)
    origin.put("large", 24 * MIB)
    assert asked(server, origin, "large") > 0 and asked(server, origin, "large") == 0
    wait_for(
        lambda: server.metric("forebay_buffer_used_bytes") < 32 * MIB, "memory to be given back"
    )


# --- files that change without anybody saying so --------------------------------------------------


def test_a_file_that_changes_is_read(start, origin, tmp_path):
    """Changed files are read without a reload: written in place, renamed over, or behind a swapped
    symbolic link, as in a ConfigMap's volume. A bad file causes one message. The keys file is read
    too."""
    volume = tmp_path / "volume"
    for turn in (1, 2, 3):
        (volume / f"..{turn}").mkdir(parents=True)
        (volume / f"..{turn}" / "forebay.yaml").write_text(f"cache: {{ttl: {turn}h}}\n")
    (volume / "..data").symlink_to("..1")
    (volume / "forebay.yaml").symlink_to("..data/forebay.yaml")
    server = start(
        origin, wrapper=("sh", "-c", 'exec "$@" -c ' + str(volume / "forebay.yaml"), "sh")
    )

    def ttl_becomes(value):
        wait_for(lambda: in_force(server)["cache.ttl"] == value, f"cache.ttl to be {value}")

    ttl_becomes("1h")
    for turn in (2, 3):
        (volume / "..next").symlink_to(f"..{turn}")
        (volume / "..next").rename(volume / "..data")
        ttl_becomes(f"{turn}h")
    path = volume / "..3" / "forebay.yaml"
    path.write_text("cache: {ttl: 5}\n")
    server.wait_stderr("reload_failed")
    path.unlink()  # between two of them the file may be missing
    wait_for(lambda: "reload-refused" in server.conditions(), "the gauge")
    other = volume / "other"
    other.write_text("cache: {ttl: 6h}\n")
    other.rename(path)
    ttl_becomes("6h")
    said = lambda: [
        line for line in server.stderr if "config_changed" in line or "reload_failed" in line
    ]  # noqa: E731
    wait_for(lambda: len(said()) >= 5, said)
    assert len(said()) == 5, said()  # nothing is read twice


def test_remedies_name_the_place_to_which_the_endpoint_of_a_bucket_moves(start, origin):
    """A bucket with a region of its own is at the endpoint of the default origin. A reload writes
    the same endpoint into the bucket's entry."""
    own = bucket("bkt", origin)
    inherited = {name: value for name, value in own.items() if name != "endpoint"}
    origin.down()
    server = serve(start, origin, at(inherited), settings={"origin.probe": "true"})

    def remedies():
        found = events(server, "origin_unreachable")
        return [event["remedy"] for event in found if event["origin"].endswith("#bkt")]

    wait_for(remedies, "the probe of the start")
    assert "host and port of origin.endpoint" in remedies()[0]
    change(server, at(own))
    wait_for(lambda: len(remedies()) > 1, "the probe of the reload")
    assert "host and port of buckets[bkt].endpoint" in remedies()[1]


def test_a_keys_file_that_changes_is_read(start, origin, tmp_path):
    keys = tmp_path / "keys.yaml"

    def write(bucket):
        keys.write_text(
            f"- {{id: someone, secret: something-long, allow: "
            f"[{{bucket: '{bucket}', ops: [read]}}]}}"
        )
        keys.chmod(0o600)

    write("elsewhere")
    origin.put("k", 10)
    server = start(origin, settings={"auth.mode": "verify", "auth.keys_file": str(keys)})

    def status():
        with server.client() as client:
            return client.request(
                "GET",
                "/bkt/k",
                Signer("someone", "something-long").headers("GET", "/bkt/k", client.host, [], b""),
            ).status

    assert status() == 403
    write("bkt")
    wait_for(lambda: status() == 200, "the key to be let in")
