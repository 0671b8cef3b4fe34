// SPDX-License-Identifier: Apache-2.0
// The script of the page, last part: what names objects or settings, and the start of it all.

// --- the map of an object's blocks ---

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name);

let explained = null;

// Fills each cell by the share of its blocks that is cached.
function drawMap() {
  if (explained === null || $("look-answer").hidden) return;
  const cells = explained.range.cells, map = $("map"), width = map.clientWidth;
  const columns = Math.max(1, Math.min(cells.length, width < 600 ? 16 : width < 1000 ? 32 : 64));
  const side = Math.min(34, width / columns), rows = Math.ceil(cells.length / columns);
  const ratio = window.devicePixelRatio || 1, height = Math.max(1, rows * side);
  map.hidden = cells.length === 0;
  map.style.height = height + "px";
  map.width = Math.round(width * ratio);
  map.height = Math.round(height * ratio);
  const context = map.getContext("2d");
  context.scale(ratio, ratio);
  cells.forEach(([cached, blocks], i) => {
    const x = (i % columns) * side, y = Math.floor(i / columns) * side;
    const share = blocks > 0 ? cached / blocks : 0;
    context.fillStyle = colour("track");
    context.fillRect(x + 1, y + 1, side - 2, side - 2);
    context.fillStyle = colour("disk");
    context.fillRect(x + 1, y + 1 + (side - 2) * (1 - share), side - 2, (side - 2) * share);
  });
}
addEventListener("resize", drawMap);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawMap);

// --- restricted details ---

async function ask(path) {
  const reply = await get(path);
  if (reply.ok) return reply;
  let why = "the server says " + reply.status;
  try { why = (await reply.json()).reason || why; } catch { /* no JSON: use the status */ }
  const error = new Error(why);
  error.status = reply.status;
  throw error;
}

function showError(id, error) {
  $(id).hidden = error === null;
  if (error !== null) put(id, error.message);
}

let hasDetail = false;

function setDetail(isThere, why) {
  hasDetail = isThere;
  for (const section of document.querySelectorAll(".detail")) section.hidden = !isThere;
  $("rights").hidden = isThere;
  if (!isThere) put("rights-why", "Hidden here: " + why + ".");
}

async function askDetail() {
  try {
    const reply = await ask("api/v1/jobs");
    showJobs((await reply.json()).jobs);
    showBuckets((await (await ask("api/v1/buckets")).json()).buckets);
    if (!isPaused) requests = (await (await ask("api/v1/requests")).json()).requests;
    showRequests();
    showError("jobs-error", null);
    if (!hasDetail) setDetail(true);
  } catch (error) {
    if (error.status === 401 || error.status === 403) setDetail(false, error.message);
    else showError("jobs-error", error);
  }
}

// Shows the rows in the table, and marks those for which isFailed() returns true.
function showRows(id, head, rows, isFailed = () => false) {
  $(id).hidden = rows.length === 0;
  $(id + "-none").hidden = rows.length > 0;
  const first = make("tr");
  first.append(...head.map(([title, ...classes]) => make("th", title, ...classes)));
  $(id).firstElementChild.replaceChildren(first, ...rows.map((cells, k) => {
    const row = make("tr", undefined, ...(isFailed(k) ? ["failed"] : []));
    row.append(...cells.map((cell, i) => make("td", cell, ...head[i].slice(1))));
    return row;
  }));
}

function showBuckets(buckets) {
  const served = (b) => b.memory_bytes + b.disk_bytes + b.origin_bytes;
  showRows("buckets",
    [["bucket", "key"], ["requests", "n"], ["hits", "n"], ["served", "n"], ["from cache", "n"]],
    buckets.sort((a, b) => served(b) - served(a)).slice(0, 20).map((b) =>
      [b.bucket, count(b.requests), percent(b.hits, b.requests), bytes(served(b)),
        percent(b.memory_bytes + b.disk_bytes, served(b))]));
}

let requests = [], isPaused = false, isFailedOnly = false;

function showRequests() {
  const wanted = $("requests-filter").value.trim().toLowerCase();
  const rows = requests.filter((r) => r.status >= 400 || !isFailedOnly).map((r) => [
    new Date(1000 * r.time).toLocaleTimeString("en", { hour12: false }), r.op,
    r.bucket + (r.key === "" ? "" : "/" + r.key) + (r.key_is_cut ? "…" : ""), String(r.status),
    [r.result, r.reason, r.error, r.why].filter((t) => t).join(": "), r.source, bytes(r.bytes),
    millis(Math.round(1e6 * r.total_s)), r.id])
    .filter((row) => row.join(" ").toLowerCase().includes(wanted));
  showRows("requests",
    [["time"], ["operation"], ["object", "key"], ["status", "n"], ["result, and why"], ["from"],
      ["bytes", "n"], ["took", "n"], ["id"]],
    rows, (i) => rows[i][3] >= "500");
}

function showJobs(jobs) {
  $("jobs-none").hidden = jobs.length > 0;
  $("jobs").replaceChildren(...jobs.reverse().map((job) => {
    const item = make("div", undefined, "job");
    const share = job.objects === 0 ? 0 :
      Math.min(job.objects_done / job.objects, job.bytes > 0 ? job.bytes_done / job.bytes : 1);
    const bar = make("div", undefined, "bar"), part = make("div");
    part.style.width = 100 * Math.min(1, share) + "%";
    bar.append(part);
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", percent(share, 1));
    const head = make("div", undefined, "wrap");
    head.append(make("b", job.kind + " " + job.id + ", " + job.state), ": " + job.what);
    item.append(head, bar, make("div",
      count(job.objects_done) + " of " + count(job.objects) + (job.counted ? "" : "+") +
      " objects, " + bytes(job.bytes_done) + " of " + bytes(job.bytes) +
      (job.state === "running" ? ", " + rate(job.rate) : "") +
      (job.waits !== null ? ", waits: " + job.waits_text : "") +
      (job.eta_s !== null ? ", " + time(job.eta_s) + " left" : "") +
      (job.objects_cached > 0 ?
        "; " + count(job.objects_cached) + " were cached or in flight" : ""), "soft"));
    if (job.objects_failed > 0) {
      item.append(make("div",
        count(job.objects_failed) + " failed" +
        (job.failures.length > 0 ? ": " + job.failures.join("; ") : ""), "error", "wrap"));
    }
    return item;
  }));
}

async function explain(event) {
  event.preventDefault();
  const text = $("uri").value.trim();
  const uri = text.startsWith("s3://") ? text : "s3://" + text;
  try {
    const reply = await ask("api/v1/explain?ask=origin&uri=" + encodeURIComponent(uri));
    explained = await reply.json();
    showError("look-error", null);
  } catch (error) {
    explained = null;
    $("look-answer").hidden = true;
    showError("look-error", error);
    return;
  }
  const e = explained, facts = [["object", e.uri]];
  put("verdict", e.verdict.text);
  put("remedy", e.verdict.remedy);
  if (e.known) {
    facts.push(["size", bytes(e.size) + ", blocks of " + bytes(e.block_size)],
      ["cached", bytes(e.cached_bytes)],
      ["fresh", (e.fresh ? "yes" : "no") +
        (e.age_s === null ? "" : ", confirmed " + time(e.age_s) + " ago")]);
    if (e.etag !== null) facts.push(["ETag", e.etag]);
  }
  facts.push(["rule", e.rule.match + " (" + e.rule.where + ")"],
    ["freshness", e.rule.cache ?
      e.rule.freshness + (e.rule.freshness === "ttl" ? " " + time(e.rule.ttl_s) : "") :
      "cache: false"],
    ["origin", e.origin],
    ...e.oddities.map((odd) => ["odd", odd.text]));
  $("facts").replaceChildren(...facts.flatMap(([name, value]) =>
    [make("dt", name), make("dd", value)]));
  put("map-text", e.known ?
    count(e.cached_blocks) + " of " + count(e.blocks) + " blocks" : "the object is not known here");
  $("map").setAttribute("aria-label", "block map: " + $("map-text").textContent);
  $("look-answer").hidden = false;
  drawMap();
}

async function runDoctor() {
  $("doctor-run").disabled = true;
  put("doctor-none", "The doctor is running …");
  try {
    const reply = await fetch("api/v1/doctor", { method: "POST", cache: "no-store",
      signal: AbortSignal.timeout(DOCTOR_PATIENCE_MS),
      headers: { "X-Forebay-Control": "1", ...bearer() } });
    const answer = await reply.json();
    if (!reply.ok) throw new Error(answer.reason);
    const order = ["red", "yellow", "green"];
    showRows("doctor", [["state"], ["check"], ["found, and what to do", "wrap"]], answer.findings
      .sort((a, b) => order.indexOf(a.state) - order.indexOf(b.state))
      .map((f) => [f.state, f.check, f.found + (f.remedy === "" ? "" : ": " + f.remedy)]));
    for (const cell of $("doctor").querySelectorAll("td:first-child")) {
      cell.classList.add("state-" + cell.textContent);
    }
    showError("doctor-error", null);
  } catch (error) {
    showError("doctor-error", error);
  }
  $("doctor-run").disabled = false;
}

let configLines = [];

function showConfig() {
  const wanted = $("config-filter").value.trim().toLowerCase();
  put("config-text", configLines.filter((line) => line.toLowerCase().includes(wanted)).join("\n"));
}

async function openConfig() {
  if (!$("config").open) return;
  try {
    const config = await (await ask("api/v1/config")).json();
    configLines = config.settings.map((s) =>
      s.key + ": " + (s.value === "" ? "\"\"" : s.value) + "  # " + s.source +
      (s.reload === "live" ? "" : "; a change needs a restart"));
    for (const b of config.buckets) {
      configLines.push("# bucket " + b.name + ": " + b.origin + ", at " + b.source);
    }
    for (const r of config.rules) configLines.push("# rule " + r.match + ", at " + r.source);
    showError("config-error", null);
  } catch (error) {
    configLines = [];
    showError("config-error", error);
  }
  showConfig();
}

// --- settings of clients ---

// Returns the URL by which a client on the same machine reaches a listener such as
// "tls:0.0.0.0:9443". Returns null for a unix socket, because S3 clients cannot use one.
function endpoint(listen) {
  const isTls = listen.startsWith("tls:");
  const address = isTls ? listen.slice(4) : listen;
  if (address.startsWith("unix:")) return null;
  return (isTls ? "https://" : "http://") +
    address.replace(/^(0\.0\.0\.0|localhost):/, "127.0.0.1:").replace(/^\[::\]:/, "[::1]:");
}

function snippet(title, text) {
  const head = make("div", undefined, "snippet"), pre = make("pre", text);
  const button = make("button", "copy");
  button.type = "button";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch { // no clipboard at this address: select the text for the keyboard
      getSelection().selectAllChildren(pre);
      button.textContent = "marked";
    }
  });
  head.append(make("span", title, "soft"), button);
  return [head, pre];
}

function showClients(version) {
  const urls = version.listen.map(endpoint).filter((url) => url !== null);
  if (urls.length === 0) {
    put("client-note", "Forebay listens on unix sockets only, which S3 clients do not speak: add " +
      "HOST:PORT to listen.");
    $("clients").replaceChildren();
    return;
  }
  const url = urls[0], isOpen = version.auth === "open", isTls = url.startsWith("https:");
  put("client-note", "Listens on " + version.listen.join(", ") + ". " + (isOpen
    ? "Clients sign with whatever keys they have: none are verified."
    : "Clients sign with a key of auth.keys_file.") +
    " From another machine, use the address of this one.");
  const shell = ["export AWS_ENDPOINT_URL_S3=" + url];
  if (isOpen) {
    shell.push("# clients need keys, but any keys will do",
      "export AWS_ACCESS_KEY_ID=any AWS_SECRET_ACCESS_KEY=any");
  }
  const keys = isOpen ? ",\n    aws_access_key_id=\"any\", aws_secret_access_key=\"any\"" : "";
  $("clients").replaceChildren(
    ...snippet("Shell, AWS CLI and SDKs (all variables: forebay env)", shell.join("\n")),
    ...snippet("Python", "boto3.client(\"s3\", endpoint_url=\"" + url + "\"" + keys + ")"),
    ...snippet("DuckDB", "SET s3_endpoint='" + url.replace(/^https?:\/\//, "") +
      "'; SET s3_use_ssl=" + isTls + "; SET s3_url_style='path';"));
}

async function askVersion() {
  try {
    const version = await (await ask("version")).json();
    showClients(version);
    showIdentity(version);
  } catch (error) {
    put("client-note", "Not known: " + error.message);
  }
}

$("look").addEventListener("submit", explain);
$("config").addEventListener("toggle", openConfig);
$("doctor-run").addEventListener("click", runDoctor);
$("requests-filter").addEventListener("input", showRequests);
$("requests-pause").addEventListener("click", () => {
  isPaused = !isPaused;
  put("requests-pause", isPaused ? "Resume" : "Pause");
  $("requests-pause").setAttribute("aria-pressed", String(isPaused));
});
$("requests-failed").addEventListener("click", () => {
  isFailedOnly = !isFailedOnly;
  $("requests-failed").setAttribute("aria-pressed", String(isFailedOnly));
  showRequests();
});
$("config-filter").addEventListener("input", showConfig);
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value.trim();
  listen();
  askDetail();
});
makeCharts();
setInterval(() => { if (hasDetail && !document.hidden) askDetail(); }, JOBS_EVERY_MS);
setInterval(watch, AGAIN_MS);
listen();
askVersion();
askDetail();
