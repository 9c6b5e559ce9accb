// The live page: asks the scheduler for its overview and draws it. All texts of the cluster are
// put in by textContent, never as HTML.

const EVERY_MS = 2000;
const SHOWN = { failures: 200, decisions: 100, workers: 60, tasks: 200 };
const KEPT = { spans: 20000, samples: 1200, failures: 500, decisions: 500 };
const STATES = ["running", "waiting", "done", "failed", "cancelled"];

const seen = { seq: 0, started: null, spans: [], samples: [], failures: [], decisions: [] };
let last = null;
let colours = {};
let silentSince = null;

const at = (id) => document.getElementById(id);

function made(name, text, className) {
  const element = document.createElement(name);
  if (text !== undefined && text !== null) element.textContent = shown(text);
  if (className) element.className = className;
  return element;
}

// Control characters and marks of writing direction change what a reader sees around them.
function shown(text) {
  const clean = String(text).replace(
    /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
  return clean.length > 4000 ? `${clean.slice(0, 4000)} ...` : clean;
}

function short(text, length = 160) {
  const line = String(text ?? "").replace(/\s+/g, " ");
  return line.length > length ? `${line.slice(0, length)}...` : line;
}

function svg(name, attributes, children = []) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();

function fill(table, heads, rows) {
  const head = made("thead");
  const line = made("tr");
  for (const [text, kind] of heads) {
    const cell = made("th", text, kind);
    cell.scope = "col";
    line.append(cell);
  }
  head.append(line);
  const body = made("tbody");
  for (const cells of rows) {
    const row = made("tr");
    cells.forEach((cell, number) => {
      const kind = heads[number][1];
      const element = cell instanceof Node ? made("td", undefined, kind) : made("td", cell, kind);
      if (cell instanceof Node) element.append(cell);
      row.append(element);
    });
    body.append(row);
  }
  table.replaceChildren(head, body);
}

const number = (text) => [text, "number"];
const text = (name) => [name, "text"];

function progress(counts) {
  const total = STATES.reduce((sum, state) => sum + counts[state], 0) || 1;
  const parts = [];
  let from = 0;
  for (const state of ["done", "failed", "cancelled", "running", "waiting"]) {
    const width = (100 * counts[state]) / total;
    if (width) parts.push(svg("rect", { class: state, x: from, y: 0, width, height: 10 }));
    from += width;
  }
  const words = STATES.filter((s) => counts[s]).map((s) => `${counts[s]} ${s}`).join(", ");
  const attributes = { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none",
    role: "img", "aria-label": words || "no calls" };
  return svg("svg", attributes, parts);
}

function drawHead(now) {
  const { cluster } = now;
  const name = cluster.name || "cluster of this process";
  at("name").textContent = shown(name);
  document.title = `${short(shown(name), 40)} - scalable`;
  const state = at("state");
  state.className = cluster.state === "running" ? "good" : "bad";
  state.textContent = shown(cluster.reason ? `${cluster.state}: ${cluster.reason}` : cluster.state);
  const end = now.end;
  const cost = now.cost;
  const facts = [
    ["Running calls", now.calls.running], ["Waiting calls", now.calls.waiting],
    ["Done", now.calls.done], ["Failed", now.calls.failed], ["Cancelled", now.calls.cancelled],
    ["Workers", now.workers], ["Clients", now.clients],
    ["Predicted end", end.at === null ? `not known: ${end.reason}`
      : now.calls.running + now.calls.waiting === 0 ? "nothing to do"
        : `${clock(end.at)} (${clock(end.low)} to ${clock(end.high)})`],
  ];
  if (cost) {
    facts.push(["Cost", `${cost.cost.toFixed(2)} USD, ${cost.per_hour.toFixed(2)} an hour`]);
    if (cost.budget !== null) facts.push(["Budget", `${cost.budget} USD (${cost.stage})`]);
  }
  at("facts").replaceChildren(...facts.map(([label, value]) => {
    const box = made("div");
    const term = made("dt", label);
    const told = made("dd", value);
    told.dataset.fact = label;
    box.append(term, told);
    return box;
  }));
}

function drawPools(now) {
  const rows = Object.entries(now.pools).map(([tag, pool]) => {
    const s = pool.status;
    const words = [s.reason, s.waiting, s.last_loss && `last loss: ${s.last_loss}`];
    const limits = pool.adaptive
      ? `${pool.adaptive[0]} to ${pool.adaptive[1] ?? "any"}` : "fixed";
    return [tag || "(without tag)", s.wanted, s.running, s.launching, pool.busy, pool.idle,
      s.draining, s.failed, s.lost, `${pool.used_slots} of ${pool.slots}`, pool.waiting, limits,
      pool.cost ? pool.cost.cost.toFixed(2) : "-", words.filter(Boolean).join("; ")];
  });
  fill(at("pools"), [text("Pool"), number("Wanted"), number("Running"), number("Starting"),
    number("Busy"), number("Idle"), number("Draining"), number("Failed"), number("Lost"),
    number("Used slots"), number("Waiting calls"), text("Count"), number("Cost"),
    text("Reason")], rows);
}

function drawTasks(now) {
  const wanted = at("filter").value.toLowerCase();
  const found = now.tasks.filter((task) => task.name.toLowerCase().includes(wanted));
  const rows = found.slice(0, SHOWN.tasks).map((task) => {
    const c = task.counts;
    return [task.names > 1 ? `${short(task.name)} (${task.names} names)` : short(task.name),
      task.tag ?? "-", progress(c), c.running, c.waiting, c.done, c.failed, c.cancelled,
      duration(task.mean_s)];
  });
  fill(at("tasks"), [text("Task"), text("Pool"), ["Progress", ""], number("Running"),
    number("Waiting"), number("Done"), number("Failed"), number("Cancelled"),
    number("Mean time")], rows);
}

function colourOf(name) {
  const key = colours[name];
  return key === undefined ? "other" : String(key);
}

function drawTimeline(now) {
  const canvas = at("timeline");
  const seconds = Number(at("window").value);
  const from = now.at - seconds;
  const spans = seen.spans.filter((span) => span[3] >= from);
  const workers = [...new Set(spans.map((span) => span[0]))].sort();
  const rows = workers.slice(0, SHOWN.workers);
  const rowOf = new Map(rows.map((name, row) => [name, row]));
  const height = 14;
  const width = canvas.clientWidth || 800;
  const scale = window.devicePixelRatio || 1;
  canvas.style.height = `${Math.max(1, rows.length) * height + 18}px`;
  canvas.width = width * scale;
  canvas.height = (Math.max(1, rows.length) * height + 18) * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const x = (time) => ((time - from) / seconds) * width;
  const used = new Set();
  for (const [worker, name, began, ended, failed] of spans) {
    const row = rowOf.get(worker);
    if (row === undefined) continue;
    used.add(name);
    pen.fillStyle = colour(`--task-${colourOf(name)}`);
    const wide = Math.max(1, x(ended) - x(began));
    pen.fillRect(x(began), row * height + 2, wide, height - 4);
    if (failed) {
      pen.fillStyle = colour("--bad");
      pen.fillRect(x(began), row * height + height - 5, wide, 3);
    }
  }
  pen.fillStyle = colour("--text");
  for (const decision of seen.decisions.filter((d) => d.timestamp >= from)) {
    pen.fillRect(x(decision.timestamp), 0, 1, rows.length * height);
  }
  pen.fillStyle = colour("--dim");
  pen.font = "11px sans-serif";
  for (let mark = 0; mark < 5; mark += 1) {
    pen.fillText(clock(from + (seconds * mark) / 5), (width * mark) / 5 + 2, rows.length * height + 14);
  }
  const hidden = workers.length - rows.length;
  at("timeline-note").textContent = spans.length
    ? `${workers.length} workers with calls that ended${hidden > 0 ? `, the first ${rows.length} are drawn` : ""}; lines are changes of worker counts`
    : "no call has ended in this time";
  at("legend").replaceChildren(...[...used].sort().slice(0, 30).map((name) => {
    const entry = made("span", undefined, "legend");
    entry.append(made("span", "", `key c${colourOf(name)}`), ` ${shown(short(name, 40))}`);
    return entry;
  }));
}

function path(points, highest) {
  const first = points[0][0];
  const wide = points[points.length - 1][0] - first || 1;
  return points.map(([time, value], index) =>
    `${index ? "L" : "M"}${(((time - first) / wide) * 1000).toFixed(1)} ${(100 - (95 * value) / highest).toFixed(1)}`).join("");
}

function drawUse() {
  const tags = [...new Set(seen.samples.flatMap((sample) => Object.keys(sample.pools)))].sort();
  at("use").replaceChildren(...tags.slice(0, 20).flatMap((tag) => {
    const points = seen.samples.filter((sample) => tag in sample.pools)
      .map((sample) => [sample.at, ...sample.pools[tag]]);
    const highest = Math.max(1, ...points.map((p) => Math.max(p[4], p[3])));
    const longest = Math.max(1, ...points.map((p) => p[5]));
    const [, , , used, slots, waiting] = points[points.length - 1];
    const words = `${tag || "(without tag)"}: ${used} of ${slots} slots used, ${waiting} calls wait (most: ${longest})`;
    const lines = [["slots", 4, highest], ["used", 3, highest], ["queue", 5, longest]].map(
      ([name, column, most]) => svg("path", { class: `line ${name}`,
        d: path(points.map((p) => [p[0], p[column]]), most) }));
    const attributes = { class: "use", viewBox: "0 0 1000 100", preserveAspectRatio: "none",
      role: "img", "aria-label": words };
    return [made("p", words), svg("svg", attributes, lines)];
  }));
}

function drawFailures() {
  const groups = new Map();
  for (const row of seen.failures) {
    const details = row.details || {};
    const cause = `${row.failure_class}\n${details.frame || details.task_name || details.tag || ""}`;
    const group = groups.get(cause) || { count: 0, row };
    group.count += row.count || 1;
    group.row = row;
    groups.set(cause, group);
  }
  const open = new Set([...document.querySelectorAll("#failures details[open]")]
    .map((element) => element.dataset.cause));
  const parts = [...groups].reverse().slice(0, SHOWN.failures).map(([cause, { count, row }]) => {
    const part = made("details");
    part.dataset.cause = cause;
    part.open = open.has(cause);
    const details = row.details || {};
    const head = made("summary", `${count} x ${short(row.failure_class, 60)}: ${short(row.message)}`);
    const facts = [["Task", details.task_name], ["Call", details.task_id],
      ["Arguments", details.arguments], ["Where", details.frame], ["Pool", details.tag],
      ["Worker", details.worker], ["Tries", details.tries], ["Time", clock(row.timestamp)]];
    const list = made("dl");
    for (const [label, value] of facts.filter(([, told]) => told !== null && told !== undefined)) {
      const box = made("div");
      box.append(made("dt", label), made("dd", value));
      list.append(box);
    }
    part.append(head, list);
    for (const [label, value] of [["Message", row.message], ["Standard error", details.stderr],
      ["Last output of the worker", details.output], ["Traceback", details.traceback]]) {
      if (value) part.append(made("p", label, "dim"), made("pre", value));
    }
    return part;
  });
  const none = made("p", "no failure", "good");
  at("failures").replaceChildren(...(parts.length ? parts : [none]));
}

function drawDecisions() {
  const rows = seen.decisions.slice(-SHOWN.decisions).reverse().map((row) =>
    [clock(row.timestamp), row.tag, row.from, row.to, row.source, row.reason]);
  fill(at("decisions"), [text("Time"), text("Pool"), number("From"), number("To"),
    text("Source"), text("Reason")], rows);
}

function drawManagers(now) {
  const rows = now.managers.map((manager) => {
    const pools = Object.entries(manager.pools).map(([tag, pool]) =>
      `${tag}: ${pool.running} of ${pool.wanted}`).join(", ");
    const reasons = Object.entries(manager.reasons || {}).map(([tag, why]) => `${tag}: ${why}`);
    const bad = Object.entries(manager.pools).filter(([, pool]) => pool.reason)
      .map(([tag, pool]) => `${tag}: ${pool.reason}`);
    return [manager.id, manager.target || "-", manager.provider, manager.state,
      duration(manager.silent_s), pools, [...bad, ...reasons].join("; ")];
  });
  fill(at("managers"), [text("Manager"), text("Target"), text("Provider"), text("State"),
    number("Last heard"), text("Workers"), text("Reasons")], rows);
}

function draw() {
  if (!last) return;
  drawHead(last);
  drawPools(last);
  drawTasks(last);
  drawTimeline(last);
  drawUse();
  drawFailures();
  drawDecisions();
  drawManagers(last);
}

function take(answer) {
  const { overview, events } = answer;
  const another = seen.started !== null && seen.started !== overview.cluster.started_at;
  seen.started = overview.cluster.started_at;
  seen.seq = another ? 0 : events.seq; // what another scheduler numbered is asked for anew
  for (const kind of Object.keys(KEPT)) {
    seen[kind] = another ? [] : [...seen[kind], ...events[kind]].slice(-KEPT[kind]);
  }
  last = overview;
  Object.assign(colours, answer.colours);
  if (Object.keys(colours).length > 5000) colours = answer.colours;
}

async function look() {
  const connection = at("connection");
  try {
    const answer = await fetch(`overview.json?since=${seen.seq}`,
      { signal: AbortSignal.timeout(20000), cache: "no-store" });
    if (!answer.ok) throw new Error(`the scheduler answers with ${answer.status}`);
    take(await answer.json());
    silentSince = null;
    connection.hidden = true;
    draw();
  } catch (error) {
    silentSince ??= new Date();
    connection.hidden = false;
    connection.textContent = `No answer since ${silentSince.toLocaleTimeString()}: the scheduler is busy, or has ended. `
      + "This page shows its last state, and asks again.";
  }
  document.body.dataset.looked = String(Number(document.body.dataset.looked || 0) + 1);
  setTimeout(look, document.hidden ? 5 * EVERY_MS : EVERY_MS);
}

at("filter").addEventListener("input", draw);
at("window").addEventListener("change", draw);
window.addEventListener("resize", draw);
look();
