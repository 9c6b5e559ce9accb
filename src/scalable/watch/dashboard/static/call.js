// The page of one call: #call/KEY, or #call/KEY/POSITION for a call of an executor's bundle.

import { at, bytes, clock, duration, factList, made, short } from "./shown.js";

const AGAIN_MS = 2000;
let timer = null;
let asked = 0;

export function callOfAddress() {
  const match = /^#call\/([^/]+)(?:\/(\d{1,9}))?$/.exec(location.hash);
  if (!match) return null;
  try {
    return { key: decodeURIComponent(match[1]), position: match[2] ?? null };
  } catch {
    return null; // not the address of a call
  }
}

const time = (seconds) => {
  if (seconds === null) return null;
  return `${new Date(seconds * 1000).toLocaleDateString()} ${clock(seconds)}`;
};

function facts(call) {
  return [["Task", call.name || null], ["Pool", call.tag],
    ["Worker", call.worker], ["Attempts", call.tries || null], ["Ran again because of", call.again],
    ["Started", time(call.began)], ["Finished", time(call.ended)],
    ["Running time", call.duration_s === null ? null : duration(call.duration_s)],
    ["Queue", call.queued_s === null ? null : duration(call.queued_s)],
    ["Transfer", call.transfer_s ? duration(call.transfer_s) : null],
    ["CPU time", call.cpu_s === null ? null : duration(call.cpu_s)],
    ["Peak memory", call.peak_memory === null ? null : bytes(call.peak_memory)],
    ["Result", call.result_bytes === null ? null : bytes(call.result_bytes)],
    ["Bundle", call.calls ? `${call.calls} tasks of an executor` : null],
    ["Position in the bundle", call.position]];
}

function draw(call) {
  const texts = [["Arguments", call.arguments],
    ["Error", call.failure_class && `${call.failure_class}: ${call.message}`],
    ["Where", call.frame], ["Traceback", call.traceback], ["Standard error of a child process", call.stderr],
    ["Last output of the worker's process", call.output]];
  const parts = [factList(facts(call))];
  if (call.sentence) {
    parts.push(made("p", call.advice ? `${call.sentence}; ${call.advice}` : call.sentence));
  }
  for (const [label, value] of texts) {
    if (value) parts.push(made("h3", label), made("pre", value));
  }
  for (const note of call.notes) parts.push(made("p", note, "dim"));
  at("call-title").textContent = `Task ${short(call.key, 120)}`;
  at("call-state").className = call.state === "failed" ? "bad" : "dim";
  at("call-state").textContent = call.state;
  at("call").replaceChildren(...parts);
}

async function ask(number) {
  const call = callOfAddress();
  if (!call) return;
  const query = new URLSearchParams({ key: call.key });
  if (call.position !== null) query.set("position", call.position);
  let ended = false;
  try {
    const answer = await fetch(`call.json?${query}`,
      { signal: AbortSignal.timeout(20000), cache: "no-store" });
    if (number !== asked) return; // another call was opened meanwhile
    if (!answer.ok) throw new Error(String(answer.status));
    const told = await answer.json();
    if (number !== asked) return;
    draw(told);
    ended = told.state !== "running" && told.state !== "waiting" && told.state !== "unknown";
  } catch {
    if (number === asked) at("call-state").textContent = "the scheduler does not answer";
  }
  if (!ended && number === asked) timer = setTimeout(ask, AGAIN_MS, number);
}

// Show the call that the address names, or the overview.
export function showAddress() {
  const call = callOfAddress();
  clearTimeout(timer);
  asked += 1;
  at("call-part").hidden = !call;
  document.body.classList.toggle("one-call", Boolean(call));
  if (!call) return;
  at("call").replaceChildren();
  at("call-title").textContent = `Task ${short(call.key, 120)}`;
  at("call-state").textContent = "waiting for the scheduler";
  at("call-part").focus();
  window.scrollTo(0, 0);
  ask(asked);
}
