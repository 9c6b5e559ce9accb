// The timeline of workers. A click, or Enter, opens the call under the mouse, or the one that the
// arrow keys have chosen.

import { at, callAddress, clock, duration, made, paged, short, shown } from "./shown.js";

const ROW = 14;
const WORKERS = 60;
let drawn = { spans: [], rows: new Map(), from: 0, seconds: 1, width: 1 };
let chosen = null; // the span that the keyboard has chosen

const colourOf = (colours, name) => (colours[name] === undefined ? "other" : String(colours[name]));

export function drawTimeline(now, seen, colours, again) {
  const canvas = at("timeline");
  const seconds = Number(at("window").value);
  const from = now.at - seconds;
  const spans = seen.spans.filter((span) => span[3] >= from);
  const workers = [...new Set(spans.map((span) => span[0]))].sort();
  const rows = paged(at("timeline-pages"), workers, WORKERS, again);
  const rowOf = new Map(rows.map((name, row) => [name, row]));
  const width = canvas.clientWidth || 800;
  const scale = window.devicePixelRatio || 1;
  const height = Math.max(1, rows.length) * ROW + 18;
  canvas.style.height = `${height}px`;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const style = getComputedStyle(document.documentElement);
  const known = new Map();
  const colour = (name) => {
    if (!known.has(name)) known.set(name, style.getPropertyValue(name).trim());
    return known.get(name);
  };
  const x = (time) => ((time - from) / seconds) * width;
  const used = new Set();
  drawn = { spans: [], rows: rowOf, from, seconds, width };
  for (const span of spans) {
    const [worker, name, began, ended, failed] = span;
    const row = rowOf.get(worker);
    if (row === undefined) continue;
    used.add(name);
    drawn.spans.push(span);
    pen.fillStyle = colour(`--task-${colourOf(colours, name)}`);
    const wide = Math.max(1, x(ended) - x(began));
    pen.fillRect(x(began), row * ROW + 2, wide, ROW - 4);
    if (failed) {
      pen.fillStyle = colour("--bad");
      pen.fillRect(x(began), row * ROW + ROW - 5, wide, 3);
    }
  }
  pen.fillStyle = colour("--text");
  for (const decision of seen.decisions.filter((d) => d.timestamp >= from)) {
    pen.fillRect(x(decision.timestamp), 0, 1, rows.length * ROW);
  }
  if (chosen && rowOf.has(chosen[0])) {
    pen.strokeStyle = colour("--link");
    pen.lineWidth = 2;
    const wide = Math.max(4, x(chosen[3]) - x(chosen[2]));
    pen.strokeRect(x(chosen[2]), rowOf.get(chosen[0]) * ROW + 1, wide, ROW - 2);
  }
  pen.fillStyle = colour("--dim");
  pen.font = "11px sans-serif";
  const marks = width < 500 ? 3 : 5;
  for (let mark = 0; mark < marks; mark += 1) {
    const words = clock(from + (seconds * mark) / marks);
    pen.fillText(words, (width * mark) / marks + 2, rows.length * ROW + 14);
  }
  at("timeline-note").textContent = spans.length
    ? `${workers.length} workers with tasks that ended; lines are changes of worker counts; `
      + "open a task with a click, or with the arrow keys and Enter"
    : "no task has ended in this time";
  at("legend").replaceChildren(...[...used].sort().slice(0, 30).map((name) => {
    const entry = made("span", undefined, "legend");
    entry.append(made("span", "", `key c${colourOf(colours, name)}`), ` ${shown(short(name, 40))}`);
    return entry;
  }));
}

export const described = ([worker, name, began, ended, failed, count]) =>
  `${short(name, 40)} on ${short(worker, 40)}, ${clock(began)}, ${duration(ended - began)}`
  + `${failed ? ", failed" : ""}${count > 1 ? `, the last of ${count} short tasks` : ""}`;

function open(span) {
  if (span && span[6]) location.hash = callAddress(span[6]);
}

function spanAt(event) {
  const box = at("timeline").getBoundingClientRect();
  const row = Math.floor((event.clientY - box.top) / ROW);
  const time = drawn.from + ((event.clientX - box.left) / drawn.width) * drawn.seconds;
  const near = (drawn.seconds / drawn.width) * 3; // three points beside a thin line still hit it
  const there = drawn.spans.filter((span) => drawn.rows.get(span[0]) === row
    && span[2] - near <= time && time <= span[3] + near);
  return there.find((span) => span[2] <= time && time <= span[3]) ?? there[there.length - 1];
}

function moved(key) {
  const all = drawn.spans;
  if (!all.length) return null;
  if (!chosen || !drawn.rows.has(chosen[0])) return all[all.length - 1];
  const row = drawn.rows.get(chosen[0]);
  const order = (a, b) => a[2] - b[2];
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const line = all.filter((span) => span[0] === chosen[0]).sort(order);
    const place = line.findIndex((span) => span[6] === chosen[6] && span[2] === chosen[2]);
    return line[Math.max(0, Math.min(line.length - 1, place + (key === "ArrowLeft" ? -1 : 1)))];
  }
  const next = row + (key === "ArrowUp" ? -1 : 1);
  const line = all.filter((span) => drawn.rows.get(span[0]) === next);
  if (!line.length) return chosen;
  return line.reduce((best, span) =>
    (Math.abs(span[2] - chosen[2]) < Math.abs(best[2] - chosen[2]) ? span : best));
}

export function listenToTimeline(again) {
  const canvas = at("timeline");
  canvas.addEventListener("click", (event) => open(spanAt(event)));
  canvas.addEventListener("mousemove", (event) => {
    const span = spanAt(event);
    canvas.title = span ? described(span) : "";
    canvas.style.cursor = span ? "pointer" : "default";
  });
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter") open(chosen);
    if (!event.key.startsWith("Arrow")) return;
    event.preventDefault();
    chosen = moved(event.key);
    at("timeline-chosen").textContent = chosen ? described(chosen) : "";
    again();
  });
}
