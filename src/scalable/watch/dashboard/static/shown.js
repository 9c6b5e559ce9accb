// Texts and elements. All texts of the cluster are put in by textContent, never as HTML.

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];

export const at = (id) => document.getElementById(id);

export function made(name, text, className) {
  const element = document.createElement(name);
  if (text !== undefined && text !== null) element.textContent = shown(text);
  if (className) element.className = className;
  return element;
}

// Control characters and marks of writing direction change what a reader sees around them.
export function shown(text) {
  const clean = String(text).replace(
    /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
  return clean.length > 4000 ? `${clean.slice(0, 4000)} ...` : clean;
}

export function short(text, length = 160) {
  const line = String(text ?? "").replace(/\s+/g, " ");
  return line.length > length ? `${line.slice(0, length)}...` : line;
}

export function svg(name, attributes, children = []) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// As in the terminal and in reports.
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  if (seconds < 0.00005) return "0 s";
  if (seconds < 0.1) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 1 ? 2 : 1)} s`;
  const whole = Math.round(seconds);
  const two = (value) => String(Math.floor(value)).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} m ${two(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two((whole % 3600) / 60)} m`;
  return `${Math.floor(whole / 86400)} d ${two((whole % 86400) / 3600)} h`;
}

// An amount of money: two decimals, and two digits of small amounts.
export function money(amount) {
  const digits = amount > 0 && amount < 0.1 ? 1 - Math.floor(Math.log10(amount)) : 2;
  return amount.toFixed(Math.min(20, Math.max(2, digits)));
}

export const clock = (seconds) =>
  new Date(seconds * 1000).toLocaleTimeString([], { hourCycle: "h23" });

export function fill(table, heads, rows) {
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

export const number = (text) => [text, "number"];
export const text = (name) => [name, "text"];

export function bytes(count) {
  if (count === null || count === undefined) return "-";
  let step = 0;
  for (; count >= 1024 && step < BYTES.length - 1; step += 1) count /= 1024;
  return `${step ? count.toFixed(1) : count} ${BYTES[step]}`;
}

// Address of a call's page: the key is one part of it, whatever characters it has.
export function callAddress(key, position) {
  const place = position === null || position === undefined ? "" : `/${position}`;
  return `#call/${encodeURIComponent(wellFormed(key))}${place}`;
}

const wellFormed = (key) => String(key).replace(/[\ud800-\udfff]/gu, "\ufffd");

export function callLink(key, position, words) {
  const link = made("a", short(words ?? key, 60));
  link.href = callAddress(key, position);
  return link;
}

export function factList(facts) {
  const list = made("dl");
  for (const [label, value] of facts.filter(([, told]) => told !== null && told !== undefined)) {
    const box = made("div");
    const told = value instanceof Node ? made("dd") : made("dd", value);
    if (value instanceof Node) told.append(value);
    box.append(made("dt", label), told);
    list.append(box);
  }
  return list;
}

// Rows of one page, and buttons to the others below `holder`; `draw` is called for another page.
export function paged(holder, rows, length, draw) {
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
