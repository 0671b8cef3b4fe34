// SPDX-License-Identifier: Apache-2.0
// The script of the page, second part: the charts of the last two hours.

// --- charts of the last two hours ---

const rows = new Map();      // time of a step → {series: value or null}; from api/v1/history
const marks = new Map();     // events, by time and word: [time, word, text, isBad]
const edge = { left: 64, right: 10, top: 14, bottom: 20 };
let stepS = 5, newest = 0, isLoading = false, cursor = null, isSpanChosen = false;

const hitRatio = (r) => {
  const all = r.memory + r.disk + r.origin;
  return all > 0 ? (r.memory + r.disk) / all : null;
};
const perS = (n) => (n < 10 ? +n.toFixed(1) : count(n)) + "/s";
const seconds = (s) => millis(Math.round(1e6 * s));

// A line is [name, class, value of a row]. `kind` says how the lines are drawn: "stack" as areas on
// top of each other, "log" on a logarithmic axis. A line of the class "bad" is drawn as bars that
// are never too low to be seen. `least` is the lowest top of the axis.
const CHARTS = [
  { title: "Served, by source", kind: "stack", show: rate, least: 1024, isBytes: true, lines: [
    ["memory", "memory", (r) => r.memory], ["disk", "disk", (r) => r.disk],
    ["origin", "origin", (r) => r.origin]] },
  { title: "Byte hit ratio", show: (n) => percent(n, 1), least: 1, lines: [
    ["from the cache", "disk", hitRatio]] },
  { title: "Time to first byte", kind: "log", show: seconds, lines: [
    ["p50", "p50", (r) => r.first_byte_p50], ["p99", "p99", (r) => r.first_byte_p99],
    ["origin p99", "origin", (r) => r.origin_first_byte_p99]] },
  { title: "Requests", show: perS, least: 1, lines: [
    ["all", "memory", (r) => r.requests],
    ["failed or refused", "bad", (r) => r.failed]] },
  { title: "Requests to the origin", show: perS, least: 1, lines: [
    ["all", "origin", (r) => r.asked], ["repeated", "p50", (r) => r.asked_again],
    ["failed", "bad", (r) => r.asked_failed]] },
  { title: "Stored and evicted", show: rate, least: 1024, isBytes: true, lines: [
    ["stored", "disk", (r) => r.stored], ["evicted", "p99", (r) => r.evicted]] },
];

const clock = (s, more) => new Date(1000 * s).toLocaleTimeString("en-GB",
  { hour: "2-digit", minute: "2-digit", ...more });

function shape(svg, name, attributes, text) {
  const element = document.createElementNS(svg.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  svg.append(element);
  return element;
}

// Returns the lowest round number that is at least `n`.
function roundUp(n, isBytes) {
  const unit = isBytes ? 1024 ** Math.floor(Math.log2(n) / 10) : 10 ** Math.floor(Math.log10(n));
  return unit * (isBytes ? [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] : [1, 2, 4, 6, 8, 10])
    .find((step) => unit * step >= n * 0.999);
}

// Returns the rows between two times in columns of at least two pixels, each with the values of the
// lines: the mean of a total, the highest of all others. null: unknown.
function columnsOf(chart, from, to, width) {
  const columnS = stepS * Math.max(1, Math.ceil((to - from) / stepS / (width / 2)));
  const columns = [];
  for (let at = Math.ceil(from / columnS) * columnS; at <= to; at += columnS) {
    const group = [];
    for (let t = at - columnS + stepS; t <= at; t += stepS) {
      if (rows.has(t)) group.push(rows.get(t));
    }
    columns.push({ at, values: chart.lines.map(([, style, value]) => {
      const known = group.map(value).filter((n) => n !== null && !Number.isNaN(n));
      if (known.length === 0) return null;
      return chart.kind === "log" || style === "bad" ? Math.max(...known) :
        known.reduce((sum, n) => sum + n, 0) / known.length;
    }) });
  }
  return columns;
}

// Returns the path of a line, with a dot where both neighbours are unknown. With `base`, the path
// encloses the area down to it.
function pathOf(points, base) {
  let path = "", run = [];
  for (const point of [...points, null]) {
    if (point !== null) { run.push(point.map((n) => n.toFixed(1)).join()); continue; }
    if (run.length > 0) {
      path += base === undefined ? "M" + run.join("L") + (run.length === 1 ? "h.01" : "") :
        "M" + run[0].split(",")[0] + "," + base + "L" + run.join("L") + "V" + base + "Z";
    }
    run = [];
  }
  return path;
}

// Returns the axis of a chart: the heights of values, and the values that get a label.
function axisOf(chart, columns, height) {
  const bottom = height - edge.bottom, span = bottom - edge.top;
  if (chart.kind === "log") {
    const low = Math.log10(2.5e-4), high = Math.log10(30);
    return { ticks: [1e-3, 1e-2, 0.1, 1, 10], y: (s) =>
      bottom - span * (Math.min(high, Math.max(low, Math.log10(s))) - low) / (high - low) };
  }
  const tops = columns.map(({ values }) =>
    chart.kind === "stack" ? values.reduce((sum, n) => sum + n, 0) : Math.max(...values));
  const top = roundUp(Math.max(chart.least, ...tops), chart.isBytes);
  return { ticks: [0, top / 2, top], y: (n) => bottom - span * n / top };
}

function drawAxes(svg, chart, axis, place, from, to, width, height) {
  for (const tick of axis.ticks) {
    const y = Math.round(axis.y(tick)) + 0.5;
    shape(svg, "line", { class: "grid", x1: edge.left, x2: width - edge.right, y1: y, y2: y });
    shape(svg, "text", { x: edge.left - 6, y: y + 4, "text-anchor": "end" },
      chart.show(tick).replace(/\.0+(?= )/, ""));
  }
  const every = (to - from) / (width < 420 ? 4 : 5);
  const tickS = [60, 120, 300, 600, 1200, 1800, 3600].find((s) => s >= every) || 3600;
  const zone = 60 * new Date(1000 * to).getTimezoneOffset();
  for (let t = Math.ceil((from - zone) / tickS) * tickS + zone; t <= to; t += tickS) {
    const x = Math.round(place(t)) + 0.5;
    shape(svg, "line", { class: "grid", x1: x, x2: x, y1: height - edge.bottom, y2: height - 16 });
    if (x > edge.left + 16 && x < width - 18) {
      shape(svg, "text", { x, y: height - 4, "text-anchor": "middle" }, clock(t));
    }
  }
}

function drawMarks(svg, place, from, to, height) {
  for (const [at, word, text, isBad] of marks.values()) {
    if (at < from) continue;
    const x = Math.round(place(Math.min(at, to))) + 0.5, style = isBad ? "bad" : "soft";
    shape(svg, "path", { class: "mark " + style, d: "M" + x + ",8V" + (height - edge.bottom) });
    shape(svg, "path", { class: "area " + style, d: "M" + x + ",10l-5,-8h10z" })
      .append(shape(svg, "title", {}, clock(at) + " " + word + ": " + text));
  }
}

function drawLines(svg, chart, columns, axis, place, height) {
  const bottom = height - edge.bottom, below = columns.map(() => 0);
  const shapes = chart.lines.map(([, style], i) => {
    if (style === "bad") {
      const d = columns.filter(({ values }) => values[i] > 0).map(({ at, values }) =>
        "M" + place(at).toFixed(1) + "," + bottom + "V" +
        Math.min(bottom - 5, axis.y(values[i])).toFixed(1)).join("");
      return { class: "bars " + style, d };
    }
    const points = columns.map(({ at, values }, c) => {
      if (values[i] === null) return null;
      below[c] = chart.kind === "stack" ? below[c] + values[i] : values[i];
      return [place(at), axis.y(below[c])];
    });
    return chart.kind === "stack" ? { class: "area " + style, d: pathOf(points, bottom) } :
      { class: "line " + style, d: pathOf(points) };
  });
  // The lowest area of a stack comes last, on top of those that contain it.
  for (const attributes of chart.kind === "stack" ? shapes.reverse() : shapes) {
    shape(svg, "path", attributes);
  }
}

function drawChart(chart) {
  const { svg } = chart, width = svg.clientWidth, height = svg.clientHeight;
  const to = newest, from = to - Number($("span").value);
  const place = (t) =>
    edge.left + (width - edge.left - edge.right) * (t - from) / (to - from);
  svg.replaceChildren();
  if (width === 0 || newest === 0) return;
  const columns = columnsOf(chart, from, to, width - edge.left - edge.right);
  const axis = axisOf(chart, columns, height);
  drawAxes(svg, chart, axis, place, from, to, width, height);
  drawMarks(svg, place, from, to, height);
  drawLines(svg, chart, columns, axis, place, height);
  chart.columns = columns;
  chart.place = place;
  chart.line = shape(svg, "line", { class: "cursor", y1: edge.top, y2: height - edge.bottom });
}

// Shows the values at the cursor, or the newest ones.
function showValues(chart) {
  if (chart.columns === undefined) return;
  const column = cursor === null ? chart.columns[chart.columns.length - 1] :
    chart.columns.find(({ at }) => at >= cursor) || chart.columns[chart.columns.length - 1];
  chart.line.classList.toggle("on", cursor !== null);
  for (const x of ["x1", "x2"]) chart.line.setAttribute(x, chart.place(column.at));
  const texts = column.values.map((n) => n === null ? "–" : chart.show(n));
  chart.values.forEach((element, i) => { element.textContent = texts[i]; });
  chart.svg.setAttribute("aria-label", chart.title + " at " + clock(column.at) + ": " +
    chart.lines.map(([name], i) => name + " " + texts[i]).join(", "));
}

function showCursor() {
  CHARTS.forEach(showValues);
  const near = [...marks.values()].filter(([at]) => cursor !== null && Math.abs(at - cursor) <
    Number($("span").value) / 60).map(([, word, text]) => word + ": " + text);
  put("at", newest === 0 ? "the first values come within 5 s" : cursor === null ?
    "newest values, " + clock(newest, { second: "2-digit" }) :
    [clock(cursor, { second: "2-digit" }), ...near].join(", "));
}

function drawCharts() {
  CHARTS.forEach(drawChart);
  showCursor();
  const shown = [...marks.values()].filter(([at]) => at >= newest - Number($("span").value))
    .sort(([a], [b]) => a - b);
  $("marks").hidden = shown.length === 0;
  $("marks").replaceChildren(...shown.reverse().slice(0, 12).map(([at, word, text, isBad]) => {
    const item = make("li", undefined, ...(isBad ? ["error"] : []));
    item.append(make("b", clock(at, { second: "2-digit" }) + " " + word), " " + text);
    return item;
  }));
}

// Moves the cursor by columns of a chart.
function onKey(chart, event) {
  const columns = chart.columns || [], last = columns.length - 1;
  let i = cursor === null ? last : columns.findIndex(({ at }) => at >= cursor);
  const moves = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: last };
  if (event.key === "Escape") cursor = null;
  else if (!(event.key in moves) || last < 0) return;
  else cursor = columns[Math.min(last, Math.max(0, moves[event.key]))].at;
  event.preventDefault();
  showCursor();
  put("said", $("at").textContent + ". " + chart.svg.getAttribute("aria-label"));
}

function onPoint(chart, event) {
  if (chart.columns === undefined || chart.columns.length === 0) return;
  const x = event.clientX - chart.svg.getBoundingClientRect().left;
  const distance = ({ at }) => Math.abs(chart.place(at) - x);
  cursor = chart.columns.reduce((a, b) => distance(b) < distance(a) ? b : a).at;
  showCursor();
}

function makeCharts() {
  for (const chart of CHARTS) {
    const figure = $("chart").content.cloneNode(true);
    chart.svg = figure.querySelector("svg");
    figure.querySelector("figcaption").textContent = chart.title;
    chart.values = chart.lines.map(([name, style]) => {
      const item = make("li"), value = make("b");
      item.append(make("i", undefined, style), name + " ", value);
      figure.querySelector("ul").append(item);
      return value;
    });
    chart.svg.addEventListener("pointermove", (event) => onPoint(chart, event));
    chart.svg.addEventListener("pointerdown", (event) => onPoint(chart, event));
    chart.svg.addEventListener("pointerleave", () => { cursor = null; showCursor(); });
    chart.svg.addEventListener("keydown", (event) => onKey(chart, event));
    $("charts").append(figure);
  }
  new ResizeObserver(() => drawCharts()).observe($("charts"));
  $("span").addEventListener("change", () => { isSpanChosen = true; drawCharts(); });
}

function takeHistory(history) {
  const series = Object.entries(history.series);
  stepS = history.step_s;
  for (let t = history.first, i = 0; t <= history.last; t += stepS, i++) {
    rows.set(t, Object.fromEntries(series.map(([name, { values }]) => [name, values[i]])));
  }
  for (const event of history.events) marks.set(event[0] + " " + event[1], event);
  newest = history.last;
  const oldest = newest - history.steps * stepS;
  for (const t of rows.keys()) if (t <= oldest) rows.delete(t);
  for (const [key, [at]] of marks) if (at <= oldest) marks.delete(key);
  const held = rows.size * stepS; // a young server begins with the shortest span
  if (!isSpanChosen) $("span").value = held <= 600 ? 600 : held <= 1800 ? 1800 : 7200;
  drawCharts();
}

// Asks for the steps after the newest one. The rows stay if the server restarts.
async function askHistory(serverTime) {
  if (isLoading || document.hidden || serverTime < newest + stepS) return;
  isLoading = true;
  try {
    let history = await (await get("api/v1/history?after=" + newest)).json();
    if (history.last < newest) { // the server's clock was set back
      rows.clear();
      marks.clear();
      history = await (await get("api/v1/history")).json();
    }
    takeHistory(history);
  } catch { /* showLink() tells that the server has gone */ }
  isLoading = false;
}
