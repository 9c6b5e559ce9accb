// The page of a live cluster, whose data it fetches, and of a recorded run, whose data is embedded
// in the document. All texts are put in by textContent, never as HTML.

const EVERY_MS = 2000;
const ROWS = 50; // of a table, and causes of failures, on one page
const WORKERS = 64; // rows of the timeline on one page
const LONG = 32; // characters of a cell that is broken into lines
const LINKED = 20; // tasks of one cause
const ENDED = 15;
const KEPT = { spans: 20000, samples: 1200, failures: 500, decisions: 500 };
const PARTS = ["plan", "advice", "pools", "tasks", "running", "decisions", "managers", "environment"];
const SVG = "http://www.w3.org/2000/svg";

const seen = { seq: 0, started: null, spans: [], samples: [], failures: [], decisions: [] };
let last = null; // the latest data
let colours = {};
let silentSince = null;

const at = (id) => document.getElementById(id);

// Texts and elements ------------------------------------------------------------------------------

// Control characters and marks of writing direction change what a reader sees around them: the set
// of harmless.py, without the line break.
function shown(text) {
  const clean = String(text).replace(
    /[\0-\t\v-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]/gu, "\ufffd");
  return clean.length > 20000 ? `${clean.slice(0, 20000)} ...` : clean;
}

// The middle is cut out: keys differ at their ends.
function short(text, length = 160) {
  const line = shown(text ?? "").replace(/\s+/g, " ");
  if (line.length <= length) return line;
  const tail = Math.floor(length / 3);
  return `${line.slice(0, length - tail - 1)}…${line.slice(-tail)}`;
}

function made(name, text, className) {
  const element = document.createElement(name);
  if (text !== undefined && text !== null) element.textContent = shown(text);
  if (className) element.className = className;
  return element;
}

function svg(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// An entry of a legend: its key, which is an element, and words.
function legend(key, words) {
  const entry = made("span", undefined, "legend");
  entry.append(key, ` ${words}`);
  return entry;
}

// Times of day are the reader's: a scheduler may run in another time zone.
const clock = (seconds) =>
  new Date(seconds * 1000).toLocaleTimeString([], { hourCycle: "h23" });

function duration(seconds) {
  if (seconds < 0.1) return `${(seconds * 1000).toFixed(1)} ms`;
  return seconds < 60 ? `${seconds.toFixed(seconds < 1 ? 2 : 1)} s` : tickText(Math.round(seconds));
}

const wellFormed = (key) => String(key).replace(/[\ud800-\udfff]/gu, "\ufffd");

// Address of a task's page: the key is one part of it, whatever characters it has.
function callAddress(key, position) {
  const place = position === null || position === undefined ? "" : `/${position}`;
  return `#call/${encodeURIComponent(wellFormed(key))}${place}`;
}

function callLink(key, position, words) {
  const link = made("a", short(words, 60));
  link.href = callAddress(key, position);
  link.title = short(key);
  return link;
}

// Pieces: what the parts of the page consist of ---------------------------------------------------

const cache = new Map(); // the drawn pieces by their places

// A piece that has not changed stays in the document, with its focus and open details.
function pieceAt(place, piece) {
  const told = JSON.stringify(piece);
  const known = cache.get(place);
  if (known && known.told === told) return known.element;
  const element = drawPiece(place, piece, known && known.element);
  cache.set(place, { told, element });
  return element;
}

function drawPiece(place, piece, before) {
  if (piece.table) return tableOf(place, piece, before?.shown && before); // it may have been a text
  if (piece.facts) return factList(piece.facts);
  if (piece.list) {
    const list = made("ul");
    list.append(...piece.list.map((each) => made("li", each)));
    return list;
  }
  if (piece.tasks) {
    const links = made("p", "Tasks: ", "calls");
    for (const [words, key, position] of piece.tasks.slice(0, LINKED)) {
      links.append(key === null ? made("span", short(words, 60)) : callLink(key, position, words), " ");
    }
    const more = piece.tasks.length - LINKED;
    if (more > 0) links.append(`and ${more} more`);
    return links;
  }
  if (piece.details) {
    const part = made("details");
    part.dataset.cause = place;
    part.open = before && before.tagName === "DETAILS" ? before.open : Boolean(piece.open);
    part.append(made("summary", piece.details));
    part.append(...piece.pieces.map((each) => drawPiece(place, each)));
    return part;
  }
  if (piece.title) return made("h3", piece.title);
  return piece.block === undefined ? made("p", piece.text, piece.look) : made("pre", piece.block);
}

function factList(facts) {
  const list = made("dl");
  for (const [label, value, kind] of facts) {
    const box = made("div");
    const told = made("dd", kind === "time"
      ? `${new Date(value * 1000).toLocaleDateString()} ${clock(value)}` : value);
    told.dataset.fact = label;
    if (String(value).length > 30) box.className = "wide";
    box.append(made("dt", label), told);
    list.append(box);
  }
  return list;
}

function place(holder, elements) {
  const same = holder.children.length === elements.length
    && elements.every((element, index) => holder.children[index] === element);
  if (!same) holder.replaceChildren(...elements);
}

function drawPieces(holder, name, pieces, keys) {
  const used = new Set(pieces.map((_, index) => `${name}/${keys ? keys[index] : index}`));
  for (const key of cache.keys()) if (key.startsWith(`${name}/`) && !used.has(key)) cache.delete(key);
  const places = [...used];
  place(holder, pieces.map((piece, index) => pieceAt(places[index], piece)));
}

// Tables ------------------------------------------------------------------------------------------

const RIGHT = new Set(["count", "duration", "bytes", "money"]);

// A table with its filter and pager. They stay when the rows change.
function tableOf(place, piece, before) {
  const name = place.replace("/0", "").replace("/", "-"); // the first one has the name of its part
  let holder = before;
  if (!holder) {
    holder = made("div");
    if (piece.filter) {
      const label = made("label", "Show rows that contain ");
      const input = made("input");
      Object.assign(input, { id: `${name}-filter`, type: "search", maxLength: 100 });
      input.addEventListener("input", () => drawRows(holder));
      label.append(input);
      const line = made("p", undefined, "tool");
      line.append(label);
      holder.append(line);
    }
    const scroll = made("div", undefined, "scroll");
    const table = made("table");
    table.id = name;
    scroll.append(table);
    const pages = made("div");
    pages.id = `${name}-pages`;
    holder.append(scroll, pages);
  }
  holder.shown = piece;
  drawRows(holder);
  return holder;
}

function drawRows(holder) {
  const { table, links } = holder.shown;
  const input = holder.querySelector("input");
  const wanted = input ? input.value.toLowerCase() : "";
  let rows = wanted
    ? table.rows.filter((row) => row.cells.join(" ").toLowerCase().includes(wanted)) : table.rows;
  const column = table.columns.findIndex((each) => each.name === holder.dataset.sort);
  if (column >= 0) {
    const sign = holder.dataset.down ? -1 : 1;
    rows = [...rows].sort((a, b) => sign * compared(a.values[column], b.values[column]));
  }
  const pages = holder.lastElementChild;
  rows = paged(pages, rows, ROWS, () => drawRows(holder));
  const body = made("tbody");
  for (const row of rows) {
    const line = made("tr");
    table.columns.forEach(({ kind }, number) => {
      const cell = made("td", undefined, RIGHT.has(kind) ? "number" : "text");
      const [text, value] = [row.cells[number], row.values[number]];
      if (text.length > LONG) cell.classList.add("long");
      if (kind === "progress") cell.append(bar(Object.entries(row.parts), text));
      else if (kind === "time" && value !== null && last.live) cell.textContent = clock(value);
      else if (links && number === 0) cell.append(callLink(row.key, null, text));
      else cell.textContent = shown(text);
      line.append(cell);
    });
    body.append(line);
  }
  const element = holder.querySelector("table");
  if (element.tHead) element.tBodies[0].replaceWith(body);
  else element.append(heads(holder, table.columns), body);
  if (element.tHead.rows[0].cells.length !== table.columns.length) {
    element.tHead.replaceWith(heads(holder, table.columns));
  }
}

function heads(holder, columns) {
  const line = made("tr");
  for (const { name, heading, kind } of columns) {
    const cell = made("th", undefined, RIGHT.has(kind) ? "number" : "text");
    cell.scope = "col";
    if (heading) {
      const button = made("button", heading);
      button.type = "button";
      button.title = "Sort";
      button.addEventListener("click", () => {
        const down = holder.dataset.sort !== name || !holder.dataset.down;
        Object.assign(holder.dataset, { sort: name, down: down ? "1" : "" });
        for (const other of line.cells) other.removeAttribute("aria-sort");
        cell.setAttribute("aria-sort", down ? "descending" : "ascending");
        drawRows(holder);
      });
      cell.append(button);
    }
    line.append(cell);
  }
  const head = made("thead");
  head.append(line);
  return head;
}

// Missing values come first, then numbers, then texts.
function compared(one, other) {
  const rank = (value) => (value === null ? 0 : typeof value === "number" ? 1 : 2);
  if (rank(one) !== rank(other)) return rank(one) - rank(other);
  return one < other ? -1 : Number(one > other);
}

// Numbers of tasks by state as one bar.
function bar(states, words) {
  const total = states.reduce((sum, [, count]) => sum + count, 0) || 1;
  let from = 0;
  const parts = states.filter(([, count]) => count).map(([state, count]) => {
    const width = (100 * count) / total;
    from += width;
    return svg("rect", { class: state, x: from - width, y: 0, width, height: 10 });
  });
  return svg("svg", { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none",
    role: "img", "aria-label": shown(words) }, ...parts);
}

// Rows of one page, and buttons to the others below `holder`; `draw` is called for another page.
function paged(holder, rows, length, draw) {
  const pages = Math.max(1, Math.ceil(rows.length / length));
  const page = Math.min(Number(holder.dataset.page || 0), pages - 1);
  holder.dataset.page = String(page);
  let pager = holder.querySelector(":scope > .pager");
  if (pages === 1) {
    if (pager) pager.remove();
    return rows;
  }
  if (!pager) {
    pager = made("p", undefined, "pager");
    const turn = (step) => () => {
      holder.dataset.page = String(Number(holder.dataset.page) + step);
      draw();
    };
    const [back, on] = [made("button", "Previous"), made("button", "Next")];
    back.addEventListener("click", turn(-1));
    on.addEventListener("click", turn(1));
    pager.append(back, " ", on, " ", made("span"));
    holder.append(pager);
  }
  const [back, on, words] = pager.children;
  back.disabled = page === 0;
  on.disabled = page === pages - 1;
  const first = page * length;
  words.textContent = `${first + 1} to ${Math.min(first + length, rows.length)} of ${rows.length}`;
  return rows.slice(first, first + length);
}

// Progress ----------------------------------------------------------------------------------------

function drawHead() {
  at("name").textContent = shown(last.name);
  document.title = `${short(last.name, 40)} - scalable`;
  at("state").className = last.state.look;
  at("state").textContent = shown(last.state.text);
  at("error").hidden = !last.error;
  at("error").textContent = shown(last.error || "");
  const { percent, text, states, facts } = last.progress;
  at("percent").textContent = percent;
  at("count").textContent = text;
  at("bar").replaceChildren(bar(states, text));
  at("states").replaceChildren(...states.map(([state, count, words]) => {
    const entry = legend(svg("svg", { class: "key", viewBox: "0 0 10 10", "aria-hidden": "true" },
      svg("rect", { class: state, width: 10, height: 10 })), words);
    Object.assign(entry.dataset, { state, count });
    return entry;
  }));
  at("facts").replaceChildren(...factList(facts).children);
}

// Charts ------------------------------------------------------------------------------------------

// A pool has two charts: slots (or workers), and queued tasks, each with its own axis and legend.
function drawCharts() {
  const charts = last.live ? liveCharts() : last.charts;
  at("charts-part").hidden = !charts.length;
  place(at("charts"), charts.map(chartOf));
}

function liveCharts() {
  const now = { at: last.at, pools: last.sample };
  const samples = [...seen.samples.filter((sample) => sample.at < last.at), now];
  const since = (sample) => Math.max(0, sample.at - last.start);
  return Object.keys(last.sample).sort().slice(0, 20).flatMap((tag) => {
    const points = samples.filter((sample) => tag in sample.pools);
    const column = (number) => points.map((sample) => [since(sample), sample.pools[tag][number] ?? 0]);
    return last.charts.map(({ title, unit, series }) => ({ pool: tag, title, unit,
      series: series.map(([name, number]) => [name, column(number)]) }));
  });
}

function chartOf({ pool, title, unit, series }) {
  const [width, height, left, top, bottom] = [480, 150, 44, 24, 20];
  const points = series.flatMap(([, values]) => values);
  const most = Math.max(1, ...points.map(([, value]) => value));
  const step = Math.max(1, roundStep(most, 4));
  const highest = step * Math.ceil(most / step);
  const end = Math.max(1e-3, ...points.map(([time]) => time));
  const x = (time) => left + (time / end) * (width - left - 8);
  const y = (value) => top + (1 - value / highest) * (height - top - bottom);
  const parts = [];
  for (let value = 0; value <= highest; value += step) {
    parts.push(svg("path", { class: "grid", d: `M${left} ${y(value)}H${width - 8}` }),
      svg("text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" }, String(value)));
  }
  const [moments, apart] = ticks(0, end, 5);
  for (const moment of moments) {
    parts.push(svg("text", { x: x(moment), y: height - 4, "text-anchor": x(moment) > width - 40
      ? "end" : "middle" }, tickText(moment, apart)));
  }
  series.forEach(([, values], number) => {
    const line = values.map(([time, value], index) =>
      `${index ? "L" : "M"}${x(time).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    if (!number) {
      const area = `${line}L${x(end).toFixed(1)} ${y(0)}L${x(values[0][0]).toFixed(1)} ${y(0)}Z`;
      parts.push(svg("path", { class: "area", d: area }));
    }
    parts.push(svg("path", { class: `line line-${number}`, d: line }));
  });
  const figure = made("figure");
  const caption = made("figcaption", `${pool || "(no tag)"}: ${title}`);
  const keys = made("p", undefined, "dim");
  keys.append(...series.map(([name, values], number) => legend(
    svg("svg", { class: "sample", viewBox: "0 0 24 8", "aria-hidden": "true" },
      svg("path", { class: `line line-${number}`, d: "M0 4H24" })),
    `${name}${last.live ? `: ${values[values.length - 1][1]}` : ""}`)));
  figure.append(caption, svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`,
    role: "img", "aria-label": `${title} of ${short(pool, 40)} in ${unit} over time` }, ...parts,
  svg("text", { x: 4, y: 13 }, unit)), keys);
  return figure;
}

// Failures ----------------------------------------------------------------------------------------

function drawFailures() {
  const groups = new Map();
  for (const failure of last.live ? seen.failures : last.failures) {
    const group = groups.get(failure.cause) || { count: 0, tasks: [] };
    groups.delete(failure.cause);
    groups.set(failure.cause, { ...failure, count: group.count + failure.count,
      tasks: [...failure.tasks, ...group.tasks] });
  }
  const all = last.live ? [...groups.values()].reverse() : [...groups.values()];
  const rows = paged(at("failures-pages"), all, ROWS, drawFailures);
  const pieces = rows.map(({ count, summary, pieces: more, tasks, open: opened }) => ({
    details: `${count} x ${short(summary, 240)}`, open: opened,
    pieces: [more[0], ...(tasks.length ? [{ tasks }] : []), ...more.slice(1)] }));
  if (last.other_failures) pieces.push({ text: last.other_failures });
  if (!pieces.length) pieces.push({ text: "no failures", look: "good" });
  drawPieces(at("failures"), "failures", pieces,
    pieces.map((_, index) => (rows[index] ? rows[index].cause : index)));
}

// The whole page ----------------------------------------------------------------------------------

// What has the focus may be drawn again; its successor gets the focus.
function focused() {
  const element = document.activeElement;
  if (element.matches("a[href^='#call/']")) return `a[href="${CSS.escape(element.hash)}"]`;
  const cause = element.parentElement && element.parentElement.dataset.cause;
  return cause ? `details[data-cause="${CSS.escape(cause)}"] > summary` : null;
}

function draw() {
  if (!last) return;
  drawHead();
  if (callOfAddress()) return; // the rest is not seen
  const focus = focused();
  drawParts();
  if (focus && document.activeElement === document.body) {
    const successor = document.querySelector(focus);
    if (successor) successor.focus({ preventScroll: true });
  }
}

function drawParts() {
  const parts = { ...last.parts };
  if (last.live) {
    parts.decisions = [{ table: { ...last.decisions, rows: [...seen.decisions].reverse() } }];
    parts.running = [...parts.running, endedPiece()];
  }
  for (const name of PARTS) {
    const pieces = parts[name] || [];
    at(`${name}-part`).hidden = !pieces.length;
    drawPieces(at(`${name}-pieces`), name, pieces);
  }
  at("failures-part").hidden = false;
  drawFailures();
  drawTimeline();
  drawCharts();
  for (const link of document.querySelectorAll("nav a[href^='#']")) {
    link.hidden = at(link.hash.slice(1)).hidden;
  }
}

function endedPiece() {
  const timeline = timelineOf();
  const tasks = timeline.bars.filter((bar) => !bar.runs).slice(-ENDED).reverse()
    .map((bar) => [described(bar, timeline.rows[bar.row]), bar.key, null]);
  return { details: "Recently finished tasks", pieces: tasks.length ? [{ tasks }] : [] };
}

function take(answer) {
  const { events, page } = answer;
  const another = seen.started !== null && seen.started !== page.started;
  seen.started = page.started;
  seen.seq = another ? 0 : events.seq; // what another scheduler numbered is requested again
  for (const kind of Object.keys(KEPT)) {
    seen[kind] = another ? [] : [...seen[kind], ...events[kind]].slice(-KEPT[kind]);
  }
  last = page;
  // Without a recorded start, time is counted from the first event.
  last.start = page.started ?? Math.min(page.at, ...seen.spans.slice(0, 1000).map((span) => span[2]));
  at("pages-of-dask").hidden = !answer.pages_of_dask;
  Object.assign(colours, answer.colours);
  if (Object.keys(colours).length > 5000) colours = answer.colours;
}

async function answered(address) {
  const answer = await fetch(address, { signal: AbortSignal.timeout(20000), cache: "no-store" });
  if (!answer.ok) throw new Error(answer.status === 403 ? "token" : String(answer.status));
  return answer.json();
}

async function look() {
  const connection = at("connection");
  try {
    take(await answered(`overview.json?since=${seen.seq}`));
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

// The page of one task: #call/KEY, or #call/KEY/POSITION for a task of an executor's bundle --------

let timer = null;
let asked = 0;

function callOfAddress() {
  const match = /^#call\/([^/]+)(?:\/(\d{1,9}))?$/.exec(location.hash);
  if (!match) return null;
  try {
    return { key: decodeURIComponent(match[1]), position: match[2] ?? null };
  } catch {
    return null; // not the address of a task
  }
}

async function ask(number) {
  const call = callOfAddress();
  if (!call) return;
  const query = new URLSearchParams({ key: call.key });
  if (call.position !== null) query.set("position", call.position);
  let ended = false;
  try {
    const told = await answered(`call.json?${query}`);
    if (number !== asked) return; // another task was opened meanwhile
    at("call-state").className = told.look;
    at("call-state").textContent = told.state;
    at("call").replaceChildren(...told.pieces.map((piece) => drawPiece("call", piece)));
    ended = told.ended;
  } catch {
    if (number === asked) at("call-state").textContent = "the scheduler does not answer";
  }
  if (!ended && number === asked) timer = setTimeout(ask, EVERY_MS, number);
}

// Show the task that the address names, or the overview.
function showAddress() {
  const call = callOfAddress();
  clearTimeout(timer);
  asked += 1;
  at("call-part").hidden = !call;
  document.body.classList.toggle("one-call", Boolean(call));
  if (!call) return;
  at("call").replaceChildren();
  at("call-title").textContent = `Task ${short(call.key, 120)}`;
  at("call-title").title = short(call.key, 2000);
  at("call-state").textContent = "waiting for the scheduler";
  at("call-part").focus();
  window.scrollTo(0, 0);
  ask(asked);
}

listenToTimeline();
window.addEventListener("resize", draw);
const embedded = at("data");
if (embedded) {
  last = JSON.parse(embedded.textContent);
  last.timeline = unpacked(last.timeline);
  draw();
  window.addEventListener("beforeprint", () => {
    for (const one of document.querySelectorAll("details")) one.open = true;
  });
} else {
  window.addEventListener("hashchange", () => {
    showAddress();
    draw();
  });
  showAddress();
  look();
}
