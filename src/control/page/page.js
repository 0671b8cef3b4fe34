// SPDX-License-Identifier: Apache-2.0
// The script of the page, first part: formats, samples from the server, and what everybody sees.
// admin_index.c joins page.html, page.js, charts.js and details.js into one file.
"use strict";
const KEPT = 63;             // samples: a minute
const NOW_S = 3;             // period of the means shown as "now"
const WINDOW_S = 60;         // period of first bytes and of the recent hit ratio
const JOBS_EVERY_MS = 2000;
const AGAIN_MS = 1000;
const PATIENCE_MS = 10000;   // longest wait for an answer
const DOCTOR_PATIENCE_MS = 60000;
const SILENT_MS = 5000;      // longest wait for an event; then the connection counts as broken

const REMEDIES = {
  "list":
    "Listings go to the origin. cache.list_ttl, or list_ttl of a rule, keeps them for a moment.",
  "rule": "A rule says cache: false. Change it, or put another one in front.",
  "method": "Writes and the like always go to the origin.",
  "sub-resource": "Tags, ACLs, uploads and the like always go to the origin.",
  "version": "Reads of a versionId go to the origin. Read the current version.",
  "part-number": "Reads by part number go to the origin. Read by ranges.",
  "cors": "A web page asked (Origin): the bucket's own rules decide what it may read.",
  "no-store": "The client says Cache-Control: no-store, and cache.client_directives obeys it.",
  "sse-c": "Encrypted with a key of the client's own: that is never cached.",
  "expected-owner": "x-amz-expected-bucket-owner is for the origin to judge. Leave it out.",
  "payer": "x-amz-request-payer is for the origin to judge. Leave it out.",
  "header": "An x-amz- header that may change the answer. The access log tells which client.",
  "unknown-parameter": "A query parameter that may change the answer. Leave it out.",
  "literal-plus": "A '+' in a path, which origins read in two ways. Send it as %2B.",
  "no-etag":
    "The origin gives no strong ETag, so that pieces cannot be known to be of one version.",
  "answer": "The origin's answer cannot be cached as it is. forebay doctor looks at the origin.",
  "changing": "The object changed again and again while it was read.",
  "checksum": "A HEAD asked for checksums that are not kept of this object.",
  "hops": "It came by way of another Forebay, while the origin is not known to answer.",
};
// Names are counters of the summary.
const FAILURES = {
  http_shed_connections: ["refused: too many connections", "limits.max_connections bounds them."],
  http_shed_inflight: ["refused: too many requests in flight", "limits.max_inflight bounds them."],
  http_shed_memory: ["refused: memory is used up",
    "Raise limits.max_buffer, or the memory limit of the process."],
  http_shed_sockets: ["refused: no memory for more sockets",
    "Raise the memory limit of the process, or use fewer connections."],
  http_shed_source: ["refused: too much from one address", "Use fewer connections there."],
  origin_waits_timed_out: ["no connection to the origin came free in time",
    "Raise origin.connections, or lower --jobs of warm jobs."],
  origin_errors_dns: ["the origin's name was not found", "Check origin.endpoint and the resolver."],
  origin_errors_connect: ["no connection to the origin",
    "Check origin.endpoint, the origin, and the network in between."],
  origin_errors_tls: ["TLS with the origin failed", "Check origin.ca_file and the clock."],
  origin_errors_timeout: ["the origin took too long", "Look at the origin's load."],
  origin_errors_reset: ["the origin broke off", "Forebay asked again where it could."],
  origin_errors_slowdown: ["the origin throttles", "Lower origin.connections, or warm --rate."],
  origin_errors_5xx: ["the origin answered 5xx", "Look at the origin's own logs."],
  origin_errors_auth: ["the origin refused the credentials",
    "Check credentials.source, and the rights of its keys."],
  origin_errors_protocol: ["the origin sent what is no valid HTTP", "Run forebay doctor."],
};

const $ = (id) => document.getElementById(id);
const put = (id, text) => { if ($(id).textContent !== text) $(id).textContent = text; };
function make(name, text, ...classes) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  element.classList.add(...classes);
  return element;
}

// --- formats of numbers ---

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let i = 0;
  while (Math.abs(n) >= 1024 && i < units.length - 1) { n /= 1024; i++; }
  return (i === 0 ? Math.round(n) : n.toFixed(n < 10 ? 2 : n < 100 ? 1 : 0)) + " " + units[i];
}
const rate = (n) => bytes(n) + "/s";
const count = (n) => Math.round(n).toLocaleString("en");
const percent = (part, whole) => whole > 0 ? (100 * part / whole).toFixed(1) + " %" : "–";
const millis = (us) => us === null ? "–" : us === Infinity ? "over" : us < 1000 ? us + " µs" :
  us < 1e6 ? +(us / 1e3).toPrecision(3) + " ms" : +(us / 1e6).toPrecision(3) + " s";
function time(s) {
  if (s < 60) return Math.round(s) + " s";
  if (s < 3600) return Math.floor(s / 60) + " min " + Math.floor(s % 60) + " s";
  if (s < 86400) return Math.floor(s / 3600) + " h " + Math.floor(s % 3600 / 60) + " min";
  return Math.floor(s / 86400) + " d " + Math.floor(s % 86400 / 3600) + " h";
}
const total = (object) => Object.values(object).reduce((sum, n) => sum + n, 0);

// --- samples from the server ---

let samples = [];            // the oldest first; all from one process of the server

const countersOf = (summary, prefix) => Object.fromEntries(Object.entries(summary.counters)
  .filter(([name]) => name.startsWith(prefix)));
const statusesOf = (summary) => Object.fromEntries(Object.entries(summary.requests)
  .filter(([code]) => code.startsWith("5")));
// Returns what failed since the start: {name in FAILURES or status: count}.
const failuresOf = (summary) => ({ ...statusesOf(summary), ...countersOf(summary, "http_shed_"),
  ...countersOf(summary, "origin_errors_"),
  origin_waits_timed_out: summary.counters.origin_waits_timed_out });

function sampleOf(summary) {
  const c = summary.counters;
  return {
    at: summary.uptime_s,
    memory: c.response_bytes_memory, disk: c.response_bytes_disk, origin: c.response_bytes_origin,
    fetched: c.origin_received_bytes, requests: total(summary.requests),
    asked: total(summary.origin), failures: failuresOf(summary),
    failed: total(statusesOf(summary)), // also those refused because of a limit
    evicted: c.evicted_bytes_capacity, ages: summary.histograms.eviction_age,
    hit: summary.histograms.first_byte_hit, miss: summary.histograms.first_byte_miss,
    other: summary.histograms.first_byte_other,
  };
}

// Returns the latest sample that is at least `seconds` old, or else the oldest one.
function before(seconds) {
  const last = samples[samples.length - 1];
  let i = samples.length - 1;
  while (i > 0 && last.at - samples[i].at < seconds - 0.25) i--;
  return samples[i];
}

const perSecond = (name, from, to) =>
  to.at > from.at ? (to[name] - from[name]) / (to.at - from.at) : 0;

// Returns microseconds, or null without requests. All `rows` have the same bounds.
function quantile(q, from, to, rows) {
  const bounds = to[rows[0]].bounds_us;
  const counts = to[rows[0]].counts.map((_, i) =>
    rows.reduce((sum, row) =>
      sum + to[row].counts[i] - (from === to ? 0 : from[row].counts[i]), 0));
  const all = counts.reduce((sum, n) => sum + n, 0);
  let below = 0;
  for (let i = 0; all > 0 && i < counts.length; i++) {
    below += counts[i];
    if (below >= q * all) return i < bounds.length ? bounds[i] : Infinity;
  }
  return null;
}

function take(summary) {
  const sample = sampleOf(summary);
  const last = samples[samples.length - 1];
  if (last && sample.at === last.at) return;
  if (last && (sample.at < last.at || sample.requests < last.requests)) { // the server restarted
    samples = [];
    askVersion();
    askDetail();
  }
  samples.push(sample);
  if (samples.length > KEPT) samples.shift();
  $("main").hidden = false;
  heardAt = performance.now();
  lastTime = summary.time;
  showHealth(summary);
  showLink(true);
  showNumbers(sample, summary);
  showWaits(sample);
  showOrigins(summary.origins);
  showCache(summary);
  showBypass(summary);
  showFailures(summary);
  askHistory(summary.time);
}

// --- the page ---

let serverName = "Forebay";   // in the title of the tab
let health = "good", verdict = "";

// Says whether the server answers. If not, the page turns grey, because its numbers are old.
function showLink(isGood, why) {
  put("link", isGood ? "live" : why);
  $("link").classList.toggle("error", !isGood);
  document.body.classList.toggle("gone", !isGood);
  if (!isGood && samples.length > 0) {
    put("state", "No answer from the server: the numbers are as of " +
      clock(lastTime, { second: "2-digit" }) + ". Look at its log, and whether it still runs.");
    $("reasons").hidden = true;
  }
  document.title = (!isGood ? "gone: " : health !== "good" ? verdict + ": " : "") +
    serverName;
}

function showIdentity({ pod, host, origin }) {
  serverName = (pod || host) + " · Forebay";
  put("identity", [...(pod === null ? [] : ["pod " + pod]),
    ...(host === pod ? [] : ["host " + host]), "origin " + origin].join(" · "));
}

function showHealth(summary) {
  const reasons = summary.conditions.map((row) => [row.name,
    row.text + " (since " + clock(row.since) + "). To do: " + row.remedy + "."]);
  const has = (severity) => summary.conditions.some((row) => row.severity === severity);
  [health, verdict] = !summary.ready ? ["bad", "Not ready: " + summary.reason] :
    has("critical") ? ["bad", "Serving, degraded"] :
      has("warning") ? ["warn", "Serving, with a warning"] : ["good", "Ready"];
  put("state", verdict);
  $("health").className = "wide strip " + health;
  put("version", summary.version + ", I/O by " + summary.io_engine + ", up " +
    time(summary.uptime_s));
  const text = reasons.map((r) => r.join(": ")).join("\n");
  $("reasons").hidden = reasons.length === 0;
  if ($("reasons").dataset.text !== text) {
    $("reasons").dataset.text = text;
    $("reasons").replaceChildren(...reasons.map(([name, why]) => {
      const item = make("li");
      item.append(make("b", name), ": " + why);
      return item;
    }));
  }
}

function showNumbers(s, { counters: c, savings }) {
  const now = before(NOW_S), minute = before(WINDOW_S);
  const served = s.memory + s.disk + s.origin;
  const recent = served - minute.memory - minute.disk - minute.origin;
  put("ratio", percent(s.memory + s.disk, served));
  put("ratio-more",
    "last minute " + percent(s.memory + s.disk - minute.memory - minute.disk, recent));
  const speed = ["memory", "disk", "origin"].map((name) => perSecond(name, now, s));
  put("served", rate(speed[0] + speed[1] + speed[2]));
  put("served-more", count(perSecond("requests", now, s)) + " requests/s, " +
    count(c.http_inflight) + " in flight");
  put("fetched", rate(perSecond("fetched", now, s)));
  put("fetched-more", count(perSecond("asked", now, s)) + " requests/s, " +
    count(c.fills_inflight) + " fills in flight");
  put("saved", bytes(savings.bytes));
  put("saved-more", count(savings.requests) + " requests, $" +
    (savings.cost_bytes + savings.cost_requests).toFixed(2) +
    (savings.wait_s === null ? "" : ", " + time(savings.wait_s) + " of waiting"));
  const failed = s.failed - minute.failed;
  put("failed", count(failed));
  $("failed").classList.toggle("bad", failed > 0);
  put("failed-more", count(s.failed) + " since start, of " + count(s.requests));
}

function showFailures(summary) {
  const s = samples[samples.length - 1], minute = before(WINDOW_S);
  const shown = Object.entries(s.failures).filter(([, n]) => n > 0)
    .map(([name, n]) => [n - (minute.failures[name] || 0), n,
      ...(FAILURES[name] || ["clients got " + name, name === "503" ?
        "They retry. The rows below say why." : "The access log says which requests."])]);
  showRows("failure", [["last minute", "n"], ["since start", "n"], ["what, and what to do"]],
    shown.map(([recent, n, ...texts]) => [count(recent), count(n), texts.join(". ")]),
    (i) => shown[i][0] > 0);
}

function showWaits(s) {
  const from = before(WINDOW_S);
  const head = make("tr");
  head.append(make("th", "answer"), make("th", "p50", "n"), make("th", "p99", "n"),
    make("th", "p99 since start", "n"));
  const zero = { at: 0 };
  const kinds = [["from cache", ["hit"]], ["fetched", ["miss"]], ["other", ["other"]]];
  const rows = kinds.map(([title, names]) => {
    const row = make("tr");
    for (const name of names) zero[name] = { counts: s[name].counts.map(() => 0) };
    row.append(make("td", title), make("td", millis(quantile(0.5, from, s, names)), "n"),
      make("td", millis(quantile(0.99, from, s, names)), "n"),
      make("td", millis(quantile(0.99, zero, s, names)), "n"));
    return row;
  });
  $("waits").replaceChildren(head, ...rows);
}

// Shows how soon the slowest origins answer.
function showOrigins(origins) {
  const wait = (s) => millis(s === null ? null : Math.round(1e6 * s));
  const name = (o) => o.name + (o.calls_lowered ?
    `: lowered to ${count(o.calls_limit)} calls at once` : "");
  showRows("origins", [["origin", "key"], ["p50", "n"], ["p99", "n"], ["usually", "n"]],
    origins.filter((o) => o.answers > 0).slice(0, 5).map((o) =>
      [name(o), wait(o.first_byte_p50_s), wait(o.first_byte_p99_s), wait(o.first_byte_usual_s)]));
}

// The condition that keeps the cache from its size; undefined if the disk has room and works. A
// larger cache.size does not help then.
const diskTrouble = (summary) => summary.conditions.find((row) =>
  ["disk-full", "disk-degraded", "disk-short"].includes(row.name));

function showCache(summary) {
  const c = summary.counters, trouble = diskTrouble(summary);
  const held = Math.min(c.cache_held_bytes, c.cache_bytes), reserved = c.cache_bytes - held;
  const width = n =>
    (c.cache_capacity_bytes > 0 ? 100 * Math.min(1, n / c.cache_capacity_bytes) : 0) + "%";
  $("fill").firstElementChild.style.width = width(held);
  $("fill").lastElementChild.style.width = width(reserved);
  put("fill-text", bytes(held) + " held of " + bytes(c.cache_capacity_bytes) +
    " (" + percent(held, c.cache_capacity_bytes) +
    "), " + bytes(reserved) + " reserved");
  $("fill").setAttribute("aria-label", $("fill-text").textContent);
  const s = samples[samples.length - 1];
  put("fill-more", count(c.cache_objects) + " objects, " + count(c.cache_blocks) +
    " blocks. Evicted since the start: " + bytes(c.evicted_bytes_capacity) +
    ", now " + rate(perSecond("evicted", before(WINDOW_S), s)) + ".");
  // A short time between last use and eviction suggests that the data would have been read again.
  const from = s.ages.counts.some((n, i) => n > before(WINDOW_S).ages.counts[i]) ?
    before(WINDOW_S) : { at: 0, ages: { counts: s.ages.counts.map(() => 0) } };
  const age = quantile(0.5, from, s, ["ages"]);
  $("age-text").hidden = age === null;
  if (age !== null) {
    put("age-text", "Half of the evicted data was used " +
      (age === Infinity ? "more than 30 days ago" : "in the last " + time(age / 1e6)) +
      (from.at === 0 ? " (since the start)." : " (last minute).") +
      (age >= 3600e6 ? "" : trouble !== undefined ? " That is short: " + trouble.text + "." :
        " That is short: forebay plan shows what a larger cache.size would save."));
  }
}

function showBypass(summary) {
  const rows = Object.entries(summary.bypass).map(([reason, n]) =>
    [n, reason, REMEDIES[reason] || "The access log tells which requests."]);
  const trouble = diskTrouble(summary);
  for (const row of summary.refusals) {
    const isOfSize = trouble !== undefined && ["not-admitted", "no-segment"].includes(row.word);
    rows.push([row.count, "not stored: " + row.word,
      row.text + ": " + (isOfSize ? trouble : row).remedy + "."]);
  }
  const shown = rows.filter((row) => row[0] > 0).sort((a, b) => b[0] - a[0]).slice(0, 10);
  $("bypass").hidden = shown.length === 0;
  $("bypass-none").hidden = shown.length > 0;
  const head = make("tr");
  head.append(make("th", "count", "n"), make("th", "reason"), make("th", "what to do"));
  $("bypass").firstElementChild.replaceChildren(head, ...shown.map(([n, reason, remedy]) => {
    const row = make("tr");
    row.append(make("td", count(n), "n"), make("td", reason), make("td", remedy, "soft"));
    return row;
  }));
}

// --- live ---

let token = "";              // of admin.token_file, if the user has given it
let events = null;           // ends the stream of events
let heardAt = 0, isAsking = false, lastTime = 0;

// All requests carry the token, because the server adds details to open answers for its bearer.
const bearer = () => token === "" ? {} : { Authorization: "Bearer " + token };
const get = (path) => fetch(path, { cache: "no-store", headers: bearer(),
  signal: AbortSignal.timeout(PATIENCE_MS) });

function takeEvent(event) {
  try {
    take(JSON.parse(event.slice(event.indexOf("data: ") + 6)));
  } catch (error) {
    showLink(false, "the server's answer is not valid: " + error.message);
  }
}

async function readEvents(reader) {
  let text = "";
  for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
    const parts = (text + piece.value).split("\n\n");
    text = parts.pop();
    parts.forEach(takeEvent);
  }
}

// Replaces the stream of events by a new one. Uses fetch(), because an EventSource sends no token.
async function listen() {
  const ours = new AbortController();
  if (events !== null) events.abort();
  events = ours;
  heardAt = performance.now();
  try {
    const reply = await fetch("api/v1/events", { cache: "no-store", headers: bearer(),
      signal: ours.signal });
    if (reply.ok) await readEvents(reply.body.pipeThrough(new TextDecoderStream()).getReader());
  } catch { /* watch() shows what fails */ }
  if (events === ours) heardAt = -SILENT_MS;
}

// Polls the summary while there is no stream, because too many clients watch or the server has
// ended. Then tries to open a stream again.
async function watch() {
  if (isAsking || performance.now() - heardAt < SILENT_MS) return;
  isAsking = true;
  try {
    const reply = await get("api/v1/summary");
    if (!reply.ok) throw new Error("the server says " + reply.status);
    take(await reply.json());
  } catch (error) {
    showLink(false,
      "no connection (" + error.message + "), trying again");
  }
  isAsking = false;
  listen();
}
