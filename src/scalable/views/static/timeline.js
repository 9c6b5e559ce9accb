// The timeline of the page: its first part, before page.js, whose functions it uses.

// Time axes ---------------------------------------------------------------------------------------

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200,
  86400];

// Round moments, in seconds since the start, of which at most `most` are between two moments.
function ticks(from, to, most) {
  const span = Math.max(to - from, 1e-6);
  let step = STEPS.find((each) => span / each <= most);
  if (span < most) step = roundStep(span, most);
  if (step === undefined) step = 86400 * Math.ceil(span / most / 86400);
  const found = [];
  for (let number = Math.ceil(from / step - 1e-9); number * step <= to + span * 1e-9; number += 1) {
    found.push(number * step);
  }
  return [found, step];
}

// 1, 2 or 5 times a power of ten.
function roundStep(span, most) {
  const power = 10 ** Math.floor(Math.log10(span / most));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => span / each <= most + 1e-9);
}

function tickText(seconds, step = 1) {
  if (step < 1) return `${seconds.toFixed(Math.ceil(-Math.log10(step)))} s`;
  const left = Math.round(seconds);
  const parts = [[Math.floor(left / 86400), "d"], [Math.floor(left / 3600) % 24, "h"],
    [Math.floor(left / 60) % 60, "m"], [left % 60, "s"]].filter(([count]) => count);
  return parts.map(([count, unit]) => `${count} ${unit}`).join(" ") || "0 s";
}

// Timeline ----------------------------------------------------------------------------------------

const ROW = 18;
const LEFT = 150;
const TOP = 14;
let drawn = { bars: [], from: 0, seconds: 1, width: 1, top: TOP };
let chosen = null; // the bar that the keyboard has chosen

// All times are seconds since the start. A bar: row, begin, end, name, colour, failed, share of
// the time with tasks, key, tasks that it stands for, and whether they still run.
function timelineOf() {
  if (!last.live) return last.timeline;
  const spans = [...seen.spans, ...last.running];
  const rows = [...new Set(spans.map((span) => span[0]))].sort();
  const numbers = new Map(rows.map((name, number) => [name, number]));
  const bars = spans.map(([worker, name, began, ended, failed, count, key]) =>
    ({ row: numbers.get(worker), begin: began - last.start, end: (ended ?? last.at) - last.start,
      name, colour: colours[name] ?? -1, failed, share: 1, key, count, runs: ended === null }));
  const decisions = seen.decisions.map((row) => [row.at - last.start, row.grows]);
  return { rows, bars, decisions, marks: [], present: [], lost: [], end: last.at - last.start };
}

// The run's bars are sent in columns of the timeline, each row's in one list of numbers.
function unpacked(told) {
  const bars = [];
  told.cells.forEach((numbers, row) => {
    for (let place = 0; place < numbers.length; place += 5) {
      const [begin, width, name, failed, shade] = numbers.slice(place, place + 5);
      const [words, colour] = told.names[name];
      bars.push({ row, begin: begin * told.unit, end: (begin + width) * told.unit, name: words,
        colour, failed: failed > 0, share: shade / told.shades, key: null, count: failed || 1 });
    }
  });
  return { ...told, bars };
}

function drawTimeline() {
  const timeline = timelineOf();
  at("timeline-part").hidden = !last.live && !timeline.rows.length;
  const canvas = at("timeline");
  canvas.style.width = `${100 * Number(at("zoom").value)}%`;
  const wanted = Number(at("window").value) || Infinity;
  const from = Math.max(0, timeline.end - wanted);
  const seconds = Math.max(timeline.end - from, 1e-3);
  const inside = timeline.bars.filter((bar) => bar.end >= from);
  const busy = new Set(inside.map((bar) => bar.row));
  const present = timeline.present.filter((each) => each[2] >= from);
  for (const [row] of present) busy.add(row);
  const rows = paged(at("timeline-pages"), [...busy].sort((a, b) => a - b), WORKERS, drawTimeline);
  const lineOf = new Map(rows.map((row, line) => [row, line]));
  const width = canvas.clientWidth || 800;
  const left = Math.min(LEFT, width / 4);
  const bottom = TOP + Math.max(1, rows.length) * ROW;
  const scale = Math.min(window.devicePixelRatio || 1, 16000 / width);
  canvas.style.height = `${bottom + 20}px`;
  canvas.width = width * scale;
  canvas.height = (bottom + 20) * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const style = getComputedStyle(document.documentElement);
  const known = new Map();
  const colour = (name) => {
    if (!known.has(name)) known.set(name, style.getPropertyValue(name).trim());
    return known.get(name);
  };
  const x = (time) => left + ((time - from) / seconds) * (width - left);
  pen.font = "11px system-ui, sans-serif";
  drawAxis(pen, colour, x, { from, to: timeline.end, bottom, most: (width - left) / 90, width });
  pen.save();
  pen.beginPath();
  pen.rect(left, 0, width - left, bottom);
  pen.clip();
  pen.fillStyle = colour("--line");
  for (const [row, begin, end] of present) {
    if (!lineOf.has(row)) continue;
    pen.fillRect(x(begin), TOP + lineOf.get(row) * ROW + 10, Math.max(1, x(end) - x(begin)), 2);
  }
  drawn = { bars: [], lineOf, from, seconds, width, left };
  const used = new Map();
  let [failures, running] = [false, false];
  for (const bar of inside) {
    if (!lineOf.has(bar.row)) continue;
    drawn.bars.push(bar);
    used.set(bar.name, bar.colour);
    failures ||= bar.failed;
    running ||= bar.runs;
    drawBar(pen, colour, bar, x(bar.begin), x(bar.end), TOP + lineOf.get(bar.row) * ROW);
  }
  for (const [row, moment] of timeline.marks) {
    if (!lineOf.has(row)) continue;
    failures = true;
    drawMark(pen, colour, x(moment), TOP + lineOf.get(row) * ROW);
  }
  pen.fillStyle = colour("--bad");
  for (const [row, moment] of timeline.lost) {
    if (lineOf.has(row)) pen.fillRect(x(moment) - 2, TOP + lineOf.get(row) * ROW + 1, 4, ROW - 2);
  }
  const decisions = timeline.decisions.filter(([moment]) => moment >= from);
  drawDecisions(pen, colour, decisions, x, bottom);
  pen.restore();
  pen.textAlign = "right";
  pen.fillStyle = colour("--text");
  for (const [row, line] of lineOf) {
    pen.fillText(short(timeline.rows[row], Math.floor(left / 6.5)), left - 6, TOP + line * ROW + 14);
  }
  const [lost, changes] = [timeline.lost.length > 0, decisions.length > 0];
  drawLegend(used, { failures, running, lost, decisions: changes });
  at("timeline-note").textContent = inside.length
    ? [rows.length < busy.size && `${busy.size} rows`, last.running_shown,
      last.live && "open a task with a click, or with the arrow keys and Enter"]
      .filter(Boolean).join("; ")
    : "no task has run in this time";
}

function drawAxis(pen, colour, x, { from, to, bottom, most, width }) {
  const [moments, step] = ticks(from, to, Math.max(2, most));
  for (const moment of moments) {
    pen.fillStyle = colour("--line");
    pen.fillRect(x(moment), TOP, 1, bottom - TOP + 4);
    pen.fillStyle = colour("--dim");
    const words = tickText(moment, step);
    const half = pen.measureText(words).width / 2;
    pen.fillText(words, Math.min(x(moment) - half, width - 2 * half), bottom + 16);
  }
}

// Red on a task's colour would not be seen: a failed task is hatched on the ground of the page,
// with an outline, a strip of the task's colour, and a mark above. A running task's bar is open: it
// has an outline without an end.
function drawBar(pen, colour, bar, begin, end, top) {
  const wide = Math.max(1, end - begin);
  const fill = colour(`--task-${bar.colour < 0 ? "other" : bar.colour}`);
  pen.fillStyle = fill;
  if (bar.runs) {
    pen.fillRect(begin, top + 5, wide, 1.5);
    pen.fillRect(begin, top + ROW - 3.5, wide, 1.5);
    pen.fillRect(begin, top + 5, Math.min(2, wide), ROW - 7);
  } else if (!bar.failed) {
    pen.globalAlpha = 0.25 + 0.75 * bar.share;
    pen.fillRect(begin, top + 5, wide, ROW - 7);
    pen.globalAlpha = 1;
  } else {
    const [mark, under] = [colour("--bad"), colour("--panel")];
    pen.fillStyle = under;
    pen.fillRect(begin, top + 5, wide, ROW - 7);
    pen.fillStyle = fill;
    pen.fillRect(begin, top + ROW - 5, wide, 3);
    pen.strokeStyle = mark;
    pen.lineWidth = 1.5;
    pen.save();
    pen.beginPath();
    pen.rect(begin, top + 5, wide, ROW - 10);
    pen.clip();
    pen.beginPath();
    for (let slope = begin - 10; slope < end; slope += 5) {
      pen.moveTo(slope, top + ROW - 5);
      pen.lineTo(slope + 8, top + 5);
    }
    pen.stroke();
    pen.restore();
    pen.strokeRect(begin + 0.75, top + 5.75, Math.max(0.5, wide - 1.5), ROW - 8.5);
    drawMark(pen, colour, begin + wide / 2, top);
  }
  if (chosen && sameBar(bar, chosen)) {
    pen.strokeStyle = colour("--link");
    pen.lineWidth = 2;
    pen.strokeRect(begin - 1, top + 4, Math.max(4, wide + 2), ROW - 5);
  }
}

function drawMark(pen, colour, middle, top) {
  pen.fillStyle = colour("--bad");
  drawTriangle(pen, middle, 3.5, top, top + 4.5);
}

function drawTriangle(pen, middle, half, base, tip) {
  pen.beginPath();
  pen.moveTo(middle - half, base);
  pen.lineTo(middle + half, base);
  pen.lineTo(middle, tip);
  pen.fill();
}

function drawDecisions(pen, colour, decisions, x, bottom) {
  pen.fillStyle = colour("--text");
  for (const [moment, grows] of decisions) {
    const place = x(moment);
    pen.globalAlpha = 0.35;
    pen.fillRect(place, TOP, 1, bottom - TOP);
    pen.globalAlpha = 1;
    const ends = [TOP - 2, TOP - 9];
    drawTriangle(pen, place, 4, ...(grows ? ends : ends.reverse()));
  }
}

function drawLegend(used, marks) {
  const entry = (className, words) => legend(made("span", "", `key ${className}`), words);
  const named = [...used].filter(([, colour]) => colour >= 0).sort().slice(0, 30)
    .map(([name, colour]) => entry(`c${colour}`, short(name, 40)));
  if ([...used].some(([, colour]) => colour < 0)) named.push(entry("other", "other task names"));
  if (marks.running) named.push(entry("open", "running"));
  if (marks.failures) named.push(entry("hatched", "failed"));
  if (marks.lost) named.push(entry("lost", "worker lost"));
  if (marks.decisions) named.push(entry("change", "change of a worker count"));
  place(at("legend"), named);
}

const sameBar = (one, other) => one.row === other.row && one.key === other.key
  && (one.begin === other.begin || (one.runs && other.runs));

function described(bar, row) {
  const words = `${short(bar.name, 40)} on ${short(row, 40)}, at ${tickText(Math.floor(bar.begin))}, `
    + `${bar.runs ? "running for " : ""}${duration(bar.end - bar.begin)}`;
  if (bar.runs) return `${words}${bar.count > 1 ? `, ${bar.count} tasks of an executor` : ""}`;
  if (bar.failed) return `${words}, ${bar.count > 1 ? `${bar.count} tasks ` : ""}failed`;
  if (bar.share < 1) return `${words}, ${Math.round(100 * bar.share)} % busy`;
  return `${words}${bar.count > 1 ? `, the last of ${bar.count} short tasks` : ""}`;
}

function open(bar) {
  if (bar && bar.key) location.hash = callAddress(bar.key);
}

function barAt(event) {
  const box = at("timeline").getBoundingClientRect();
  const line = Math.floor((event.clientY - box.top - TOP) / ROW);
  const perPoint = drawn.seconds / (drawn.width - drawn.left);
  const time = drawn.from + (event.clientX - box.left - drawn.left) * perPoint;
  const near = 3 * perPoint; // three points beside a thin bar still hit it
  const there = drawn.bars.filter((bar) => drawn.lineOf.get(bar.row) === line
    && bar.begin - near <= time && time <= bar.end + near);
  return there.find((bar) => bar.begin <= time && time <= bar.end) ?? there[there.length - 1];
}

function moved(key) {
  const all = drawn.bars;
  if (!all.length) return null;
  if (!chosen || !drawn.lineOf.has(chosen.row)) return all[all.length - 1];
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const line = all.filter((bar) => bar.row === chosen.row).sort((a, b) => a.begin - b.begin);
    const now = line.findIndex((bar) => sameBar(bar, chosen));
    return line[Math.max(0, Math.min(line.length - 1, now + (key === "ArrowLeft" ? -1 : 1)))];
  }
  const next = drawn.lineOf.get(chosen.row) + (key === "ArrowUp" ? -1 : 1);
  const line = all.filter((bar) => drawn.lineOf.get(bar.row) === next);
  if (!line.length) return chosen;
  return line.reduce((best, bar) =>
    (Math.abs(bar.begin - chosen.begin) < Math.abs(best.begin - chosen.begin) ? bar : best));
}

function listenToTimeline() {
  const canvas = at("timeline");
  const rowOf = (bar) => timelineOf().rows[bar.row];
  canvas.addEventListener("click", (event) => open(barAt(event)));
  canvas.addEventListener("mousemove", (event) => {
    const bar = barAt(event);
    canvas.title = bar ? described(bar, rowOf(bar)) : "";
    canvas.style.cursor = bar && bar.key ? "pointer" : "default";
  });
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter") open(chosen);
    if (!event.key.startsWith("Arrow")) return;
    event.preventDefault();
    chosen = moved(event.key);
    at("timeline-chosen").textContent = chosen ? described(chosen, rowOf(chosen)) : "";
    drawTimeline();
  });
  at("zoom").addEventListener("input", drawTimeline);
  at("window").addEventListener("change", drawTimeline);
}

