// The dashboard: asks the scheduler for its overview and draws it.

import { callOfAddress, showAddress } from "./call.js";
import { at, callLink, clock, duration, factList, fill, made, money, number, paged, short, shown, svg, text }
  from "./shown.js";
import { described, drawTimeline, listenToTimeline } from "./timeline.js";

const EVERY_MS = 2000;
const SHOWN = { failures: 50, decisions: 50, tasks: 50, pools: 50, ended: 15, calls: 20, reasons: 5 };
const KEPT = { spans: 20000, samples: 1200, failures: 500, decisions: 500 };
const STATES = ["running", "waiting", "done", "failed", "cancelled", "found"];

const seen = { seq: 0, started: null, spans: [], samples: [], failures: [], decisions: [] };
let last = null;
let colours = {};
let silentSince = null;

function progress(counts) {
  const total = STATES.reduce((sum, state) => sum + counts[state], 0) || 1;
  const parts = [];
  let from = 0;
  for (const state of ["done", "found", "failed", "cancelled", "running", "waiting"]) {
    const width = (100 * counts[state]) / total;
    if (width) parts.push(svg("rect", { class: state, x: from, y: 0, width, height: 10 }));
    from += width;
  }
  const words = STATES.filter((s) => counts[s])
    .map((s) => `${counts[s]} ${s === "found" ? "cached" : s}`).join(", ");
  const attributes = { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none",
    role: "img", "aria-label": words || "no tasks" };
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
    ["Running tasks", now.calls.running], ["Waiting tasks", now.calls.waiting],
    ["Done", now.calls.done], ["Failed", now.calls.failed], ["Cancelled", now.calls.cancelled],
    ["Workers", now.workers], ["Clients", now.clients],
    ["Predicted end", end.at === null ? `not known: ${end.reason}`
      : now.calls.running + now.calls.waiting === 0 ? "nothing to do"
        : `${clock(end.at)} (${clock(end.low)} to ${clock(end.high)})`],
  ];
  const reruns = Object.entries(now.reruns).map(([why, count]) => `${count} x ${why}`);
  if (reruns.length) facts.push(["Ran again", reruns.join(", ")]);
  const { remembered } = now;
  if (remembered.found || remembered.missed) {
    facts.push(["Cache hits", remembered.found], ["Time saved", duration(remembered.saved_s)]);
    const reasons = remembered.reasons.map((r) => `${r.count} x ${shown(r.task)}: ${shown(r.reason)}`);
    const more = reasons.length - SHOWN.reasons;
    const told = [...reasons.slice(0, SHOWN.reasons), ...(more > 0 ? [`${more} more reasons`] : [])];
    facts.push(["Cache misses", [remembered.missed, ...told].join("; ")]);
  }
  if (cost) {
    facts.push(["Cost", `${money(cost.cost)} ${cost.currency}, ${money(cost.per_hour)} an hour`]);
    if (cost.budget !== null) facts.push(["Budget", `${money(cost.budget)} ${cost.currency} (${cost.stage})`]);
  }
  at("facts").replaceChildren(...facts.map(([label, value]) => {
    const box = made("div");
    const term = made("dt", label);
    const told = made("dd", value);
    if (String(value).length > 30) box.className = "wide";
    told.dataset.fact = label;
    box.append(term, told);
    return box;
  }));
}

function drawPools(now) {
  const pools = paged(at("pools-pages"), Object.entries(now.pools), SHOWN.pools, draw);
  const rows = pools.map(([tag, pool]) => {
    const s = pool.status;
    const leaving = Object.entries(pool.leaving || {}).map(([why, n]) => `${n} leaving: ${why}`);
    const words = [s.reason, s.waiting, s.last_loss && `last loss: ${s.last_loss}`, ...leaving];
    const limits = pool.adaptive
      ? `${pool.adaptive[0]} to ${pool.adaptive[1] ?? "any"}` : "fixed";
    return [tag || "(without tag)", s.wanted, s.running, s.launching, pool.busy, pool.idle,
      s.draining, s.failed, s.lost, `${pool.used_slots} of ${pool.slots}`, pool.waiting, limits,
      pool.cost ? money(pool.cost.cost) : "-", words.filter(Boolean).join("; ")];
  });
  fill(at("pools"), [text("Pool"), number("Desired"), number("Running"), number("Starting"),
    number("Busy"), number("Idle"), number("Draining"), number("Failed"), number("Lost"),
    number("Used slots"), number("Waiting tasks"), text("Count"), number("Cost"),
    text("Reason")], rows);
}

function drawTasks(now) {
  const wanted = at("filter").value.toLowerCase();
  const found = now.tasks.filter((task) => task.name.toLowerCase().includes(wanted));
  const rows = paged(at("tasks-pages"), found, SHOWN.tasks, draw).map((task) => {
    const c = task.counts;
    return [task.names > 1 ? `${short(task.name)} (${task.names} names)` : short(task.name),
      task.tag ?? "-", progress(c), c.running, c.waiting, c.done, c.failed, c.cancelled, c.found,
      duration(task.mean_s), duration(task.mean_queued_s)];
  });
  fill(at("tasks"), [text("Task"), text("Pool"), ["Progress", ""], number("Running"),
    number("Waiting"), number("Done"), number("Failed"), number("Cancelled"), number("Cached"),
    number("Mean time"), number("Mean queue time")], rows);
}

function drawCalls(now) {
  const rows = now.running.map((call) => [callLink(call.key, null, call.name), short(call.key, 60),
    call.calls ? `${call.calls} tasks` : "1 task", call.tag ?? "-", call.worker,
    duration(call.since_s)]);
  fill(at("running"), [text("Running for the longest time"), text("Key"), text("Tasks"),
    text("Pool"), text("Worker"), number("Since")], rows);
  const more = now.calls.running - now.running.reduce((sum, c) => sum + (c.calls || 1), 0);
  at("running-note").textContent = now.running.length
    ? (more > 0 ? `${more} further tasks run` : "") : "no task runs";
  at("ended").replaceChildren(...seen.spans.slice(-SHOWN.ended).reverse().map((span) => {
    const item = made("li");
    item.append(callLink(span[6], null, described(span)));
    return item;
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
    const words = `${tag || "(without tag)"}: ${used} of ${slots} slots used, ${waiting} waiting tasks (peak: ${longest})`;
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
    const group = groups.get(cause) || { count: 0, rows: [] };
    group.count += row.count || 1;
    group.rows.push(row);
    groups.set(cause, group);
  }
  const open = new Set([...document.querySelectorAll("#failures details[open]")]
    .map((element) => element.dataset.cause));
  const shownGroups = paged(at("failures-pages"), [...groups].reverse(), SHOWN.failures, draw);
  const parts = shownGroups.map(([cause, { count, rows }]) => {
    const row = rows[rows.length - 1];
    const part = made("details");
    part.dataset.cause = cause;
    part.open = open.has(cause);
    const details = row.details || {};
    const head = made("summary", `${count} x ${short(row.failure_class, 60)}: ${short(row.message)}`);
    part.append(head, factList([["Task", details.task_name],
      ["Arguments", details.arguments], ["Where", details.frame], ["Pool", details.tag],
      ["Worker", details.worker], ["Attempts", details.tries], ["Time", clock(row.timestamp)]]));
    const calls = rows.filter((each) => each.details && each.details.task_id).reverse();
    if (calls.length) {
      const links = made("p", "Tasks: ", "calls");
      for (const each of calls.slice(0, SHOWN.calls)) {
        const { task_id: key, position, arguments: given } = each.details;
        links.append(callLink(key, position, given || key), " ");
      }
      if (calls.length > SHOWN.calls) links.append(`and ${calls.length - SHOWN.calls} more`);
      part.append(links);
    }
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
  const latest = [...seen.decisions].reverse();
  const rows = paged(at("decisions-pages"), latest, SHOWN.decisions, draw).map((row) =>
    [clock(row.timestamp), row.tag, row.from, row.to, row.source, row.reason]);
  fill(at("decisions"), [text("Time"), text("Pool"), number("From"), number("To"),
    text("Source"), text("Reason")], rows);
}

function drawManagers(now) {
  const rows = now.managers.map((manager) => {
    const pools = Object.entries(manager.pools).map(([tag, pool]) =>
      `${tag}: ${pool.running} of ${pool.wanted}`).join(", ");
    const bad = Object.entries(manager.pools).filter(([, pool]) => pool.reason)
      .map(([tag, pool]) => `${tag}: ${pool.reason}`);
    return [manager.id, manager.target || "-", manager.provider, manager.state,
      duration(manager.silent_s), pools, bad.join("; ")];
  });
  fill(at("managers"), [text("Manager"), text("Target"), text("Provider"), text("State"),
    number("Last heard"), text("Workers"), text("Reasons")], rows);
}

// What has the focus is drawn anew; its successor gets the focus.
function focused() {
  const element = document.activeElement;
  if (element.matches("a[href^='#call/']")) return `a[href="${CSS.escape(element.hash)}"]`;
  const cause = element.parentElement && element.parentElement.dataset.cause;
  return cause ? `details[data-cause="${CSS.escape(cause)}"] > summary` : null;
}

function draw() {
  if (!last) return;
  drawHead(last);
  if (callOfAddress()) return; // the rest is not seen
  const focus = focused();
  drawParts();
  if (focus && document.activeElement === document.body) {
    const successor = document.querySelector(focus);
    if (successor) successor.focus({ preventScroll: true });
  }
}

function drawParts() {
  drawPools(last);
  drawTasks(last);
  drawCalls(last);
  drawTimeline(last, seen, colours, draw);
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
  at("pages-of-dask").hidden = !answer.pages_of_dask;
  Object.assign(colours, answer.colours);
  if (Object.keys(colours).length > 5000) colours = answer.colours;
}

async function look() {
  const connection = at("connection");
  try {
    const answer = await fetch(`overview.json?since=${seen.seq}`,
      { signal: AbortSignal.timeout(20000), cache: "no-store" });
    if (answer.status === 403) throw new Error("token");
    if (!answer.ok) throw new Error(`the scheduler answers with ${answer.status}`);
    take(await answer.json());
    silentSince = null;
    connection.hidden = true;
    draw();
  } catch (error) {
    silentSince ??= new Date();
    connection.hidden = false;
    const why = error.message === "token"
      ? "the server at this address has another token, so the cluster was restarted: open its link"
      : "the scheduler is busy or has ended";
    connection.textContent = `No answer since ${silentSince.toLocaleTimeString()}: ${why}. `
      + "This page shows its last state, and asks again.";
  }
  document.body.dataset.looked = String(Number(document.body.dataset.looked || 0) + 1);
  setTimeout(look, document.hidden ? 5 * EVERY_MS : EVERY_MS);
}

at("filter").addEventListener("input", draw);
at("window").addEventListener("change", draw);
window.addEventListener("resize", draw);
window.addEventListener("hashchange", () => {
  showAddress();
  draw();
});
listenToTimeline(draw);
showAddress();
look();
