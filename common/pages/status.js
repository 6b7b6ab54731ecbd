// Shows /status.json, again and again. Text is always set as text, so nothing that a name or an error holds is markup.
"use strict";

const EVERY_MS = 2000;
const BEYOND = 8; // rows kept ready above and below those in sight
const FEW_STREAMS = 8;
const LEVELS = ["error", "warning", null]; // the worst first
const STATES = ["held", "waiting", "paused", "behind", "flushing", "well"];
const stateText = (state) => (state === "well" ? "healthy" : state);
const find = (id) => document.getElementById(id);
const many = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

let status = null;
let rows = [];
let offsetMs = 0; // of the service's clock from this one
let heardMs = 0;

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function put(id, text) {
  const place = find(id);
  if (place.textContent !== text) place.textContent = text;
}

// Words for numbers.

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.max(0, seconds);
  if (whole < 1) return whole === 0 ? "0 s" : "< 1 s";
  if (whole < 60) return `${Math.floor(whole)} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${Math.floor(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

function took(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  return seconds < 10 ? `${seconds.toFixed(1)} s` : duration(seconds);
}

function bytes(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let index = 0;
  for (; size >= 1024 && index < units.length - 1; index += 1) size /= 1024;
  return `${size >= 100 || index === 0 ? Math.round(size) : size.toFixed(1)}\u00a0${units[index]}`; // on one line
}

function count(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) < 1e7 ? many.format(value) : short.format(value);
}

const nowMs = () => Date.now() + offsetMs;
const clock = (ms) => new Date(ms).toLocaleString([], { dateStyle: "medium", timeStyle: "medium" });

function figureText(figure) {
  if (figure.value === null) return "–";
  switch (figure.unit) {
    case "count": return count(figure.value);
    case "bytes": return bytes(figure.value);
    case "since": return `${duration((nowMs() - figure.value) / 1000)} ago`;
    case "until": return figure.value <= nowMs() ? "now" : `in ${duration((figure.value - nowMs()) / 1000)}`;
    default: return String(figure.value);
  }
}

// The parts of the page.

function showVerdict() {
  const errors = status.problems.filter((one) => one.level === "error").length;
  const level = errors ? "error" : status.problems.length ? "warning" : status.is_known ? "ok" : "early";
  document.body.dataset.level = level;
  const number = status.problems.length;
  const early = status.state.charAt(0).toUpperCase() + status.state.slice(1);
  const problems = (noun) => (number === 1 ? `One ${noun}` : `${number} ${noun}s`);
  const headline = { ok: "Healthy", early, warning: problems("warning"), error: `${errors === 1 ? "One problem" : `${errors} problems`} to fix` };
  put("headline", headline[level]);
  put("verdict", status.verdict);
  put("service", status.service);
  put("version", status.version);
  put("state", status.state);
  document.title = `${{ ok: "✓", early: "…" }[level] ?? `(${number})`} ${status.service}`;
}

function showFigures() {
  find("figures").replaceChildren(...status.figures.map((figure) => {
    const value = element("dd", {}, figureText(figure));
    if (figure.of !== null) value.append(" ", element("small", {}, `of ${figure.unit === "bytes" ? bytes(figure.of) : count(figure.of)}`));
    const box = element("div", {}, element("dt", {}, figure.label), value);
    if (figure.of !== null) {
      const share = Math.min(1, (figure.value ?? 0) / Math.max(1, figure.of));
      const inner = element("i");
      inner.style.width = `${share * 100}%`;
      value.append(element("div", { class: "meter", "aria-hidden": "true" }, inner));
    }
    return box;
  }));
}

function commands(text) {
  // What stands in backquotes is a command when it has a space, and a name when it has none.
  return [...text.matchAll(/`([^`]+ [^`]+)`/g)].map((match) => match[1]);
}

// The words around them: “stage them again with (1), or give them up with (2)”.
function withoutCommands(text) {
  const several = commands(text).length > 1;
  let number = 0;
  const short = text.replace(/`[^`]+ [^`]+`/g, () => { number += 1; return several ? `(${number})` : "this"; });
  return short === "this" ? "" : short.replaceAll("`", "");
}

function commandLine(command, index, all) {
  const code = element("code", { tabindex: "0" }, command);
  const button = element("button", { type: "button" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(command);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  button.setAttribute("aria-label", `Copy: ${command}`);
  const number = all.length > 1 ? element("span", { class: "quiet" }, `(${index + 1})`) : null;
  return element("div", { class: "command" }, number, code, button);
}

function showProblems() {
  const place = find("problems");
  place.hidden = status.problems.length === 0;
  keyed(place.querySelector("ul"), status.problems, (one) => JSON.stringify(one), (one) => {
    const level = one.level === "error" ? "to fix" : "warning";
    const title = element("h3", {}, one.title, element("span", { class: "tag", "data-level": one.level }, level));
    if (one.also) title.append(element("span", { class: "quiet" }, `and ${count(one.also)} more of this kind`));
    return element("li", { class: "problem", "data-level": one.level }, title,
      element("p", {}, one.problem.replaceAll("`", "")),
      element("p", { class: "quiet" }, withoutCommands(one.remedy)),
      ...commands(one.remedy).map(commandLine));
  });
}

// Makes children again only where what they show has changed: a command that is being copied stays.
function keyed(place, items, keyOf, make) {
  const before = new Map([...place.children].map((child) => [child.dataset.key, child]));
  const wanted = items.map((item) => {
    const key = keyOf(item);
    const child = before.get(key) ?? make(item);
    child.dataset.key = key;
    return child;
  });
  if (wanted.length !== place.children.length || wanted.some((child, index) => place.children[index] !== child)) {
    place.replaceChildren(...wanted);
  }
}

function behind(lag) {
  return lag.records === null ? "unknown" : lag.records === 0 ? "up to date" : `${count(lag.records)} behind`;
}

function showStreams() {
  const place = find("streams");
  place.hidden = status.streams.length === 0;
  // Many streams are a line each, except those with a problem, so the partitions below stay within reach.
  const isLong = status.streams.length > FEW_STREAMS;
  const streams = [...status.streams].sort((one, other) => LEVELS.indexOf(one.level) - LEVELS.indexOf(other.level));
  keyed(place.querySelector("ul"), streams, (one) => JSON.stringify([isLong, one, Math.floor(nowMs() / 1000)]), (one) => {
    const header = element("header", {}, element("h3", {}, one.app_id));
    if (one.level) header.append(element("span", { class: "tag", "data-level": one.level }, one.held ? `${count(one.held)} held` : "see above"));
    header.append(element("span", { class: "quiet" }, one.way));
    if (one.valid_through_ms !== null) {
      header.append(element("span", { class: "through" }, "complete through ",
        element("time", { datetime: new Date(one.valid_through_ms).toISOString() }, clock(one.valid_through_ms)),
        element("span", { class: "quiet" }, ` (${duration((nowMs() - one.valid_through_ms) / 1000)} ago)`)));
    }
    if (isLong && !one.level) {
      const lags = one.stops.filter((stop) => stop.lag).map((stop) => `${stop.name}: ${behind(stop.lag)}`);
      header.append(element("span", { class: "quiet" }, lags.join(" · ")));
      return element("li", { class: "stream" }, header);
    }
    const flow = element("div", { class: "flow" });
    for (const stop of one.stops) {
      if (stop.lag) {
        flow.append(element("div", { class: "way", "data-behind": String(Boolean(stop.lag.records)) },
          element("b", {}, behind(stop.lag)), element("span", {}, stop.lag.records === 0 ? "" : duration(stop.lag.seconds))));
      }
      flow.append(element("div", { class: "stop" }, element("b", {}, stop.name), element("span", {}, stop.note)));
    }
    return element("li", { class: "stream", "data-level": one.level }, header, element("p", { class: "place quiet" }, one.table), flow);
  });
}

// The partitions: only the rows in sight exist.

function outstanding(row) {
  const known = row.positions.filter((position) => position !== null);
  return known.length ? Math.max(...known) - (row.positions[0] ?? Math.min(...known)) : 0;
}

function chooseRows() {
  const words = find("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  rows = status.partitions.filter((row) => {
    const text = `${row.stream} ${row.topic}/${row.partition} ${stateText(row.state)} ${row.note}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  if (find("order").value === "worst") {
    const worse = (row) => [STATES.indexOf(row.state), -(row.lag.seconds ?? 0), -(row.lag.records ?? 0)];
    const ranked = rows.map((row, index) => [worse(row), index, row]);
    ranked.sort((a, b) => a[0][0] - b[0][0] || a[0][1] - b[0][1] || a[0][2] - b[0][2] || a[1] - b[1]);
    rows = ranked.map((one) => one[2]);
  }
}

function rowOf(row, index, scale) {
  const chain = element("span", { class: "chain", role: "cell" });
  const words = [];
  const whole = outstanding(row);
  const length = whole > 0 ? 75 * Math.sqrt(whole / scale) : 0; // so that one that is far behind hides no other
  let last = null;
  row.positions.forEach((position, part) => {
    if (position === null) return;
    if (last !== null && position > last) {
      const inner = element("i", { class: `part-${part}` });
      inner.style.width = `${Math.max(1.5, length * (position - last) / whole)}%`;
      chain.append(inner);
      words.push(`${count(position - last)} ${status.stops[part].toLowerCase()}`);
    }
    last = position;
  });
  const inner = element("i", { class: "part-0" });
  inner.style.flex = "1";
  chain.prepend(inner);
  const positions = status.stops.map((stop, part) => `${stop} to ${count(row.positions[part])}`).join(", ");
  chain.title = positions;
  chain.append(element("span", { class: "hidden" }, words.join(", ") || "nothing waiting"));
  const name = `${row.topic}/${row.partition}`;
  const made = element("div", { class: "row", role: "row", "data-state": row.state, "aria-rowindex": index + 2, title: row.note || null },
    // The number is what tells rows apart, so a long name is cut before it: one of several topics has all of their names.
    element("span", { role: "cell", class: "place", title: `${name} (${row.stream})` },
      element("span", {}, row.topic), element("span", {}, `/${row.partition}`)),
    element("span", { class: "tag", role: "cell", "data-state": row.state }, stateText(row.state)),
    chain,
    element("span", { role: "cell", class: "number" }, count(row.lag.records)),
    element("span", { role: "cell", class: "number" }, row.lag.records === 0 ? "0 s" : duration(row.lag.seconds)));
  return made;
}

function showRows() {
  const place = find("rows");
  const inner = find("window");
  const height = parseFloat(getComputedStyle(place).getPropertyValue("--row"));
  const head = place.querySelector(".head").offsetHeight;
  const first = Math.max(0, Math.floor((place.scrollTop - head) / height) - BEYOND);
  const last = Math.min(rows.length, first + Math.ceil(place.clientHeight / height) + 2 * BEYOND);
  const scale = Math.max(1, ...rows.map(outstanding));
  const made = [];
  for (let index = first; index < last; index += 1) {
    const row = rowOf(rows[index], index, scale);
    row.style.top = `${index * height}px`;
    made.push(row);
  }
  inner.style.height = `${rows.length * height}px`;
  place.setAttribute("aria-rowcount", String(rows.length + 1));
  if (rows.length === 0) {
    inner.style.height = "auto";
    made.push(element("p", { class: "nothing" }, "No partition matches."));
  }
  inner.replaceChildren(...made);
}

function showPartitions() {
  find("partitions").hidden = status.partitions.length === 0;
  const total = status.partitions.length;
  put("shown", rows.length === total ? count(total) : `${count(rows.length)} of ${count(total)}`);
  const key = status.stops.join();
  if (find("legend").dataset.key !== key) {
    find("legend").dataset.key = key;
    const names = status.stops.map((stop, part) => element("li", {}, element("i", { class: `part-${part}` }), stop));
    find("legend").replaceChildren(...names, element("li", {}, element("i", { class: "held" }), "Held"));
  }
  showRows();
}

function showEvents() {
  find("events").hidden = status.events.length === 0;
  put("events-title", status.events_title);
  find("events").querySelector("tbody").replaceChildren(...status.events.map((event) => element("tr", {},
    element("td", {}, element("time", { datetime: new Date(event.time_ms).toISOString(), title: clock(event.time_ms) },
      `${duration((nowMs() - event.time_ms) / 1000)} ago`)),
    element("td", {}, event.stream), element("td", {}, event.note ? `${event.what} (${event.note})` : event.what),
    element("td", { class: "number" }, count(event.rows)), element("td", { class: "number" }, count(event.files)),
    element("td", { class: "number" }, bytes(event.size_bytes)),
    element("td", { class: "number" }, took(event.seconds)))));
}

function showDeadLetters() {
  const place = find("dead-letters");
  place.hidden = status.dead_letters.length === 0;
  keyed(place.querySelector("ul"), status.dead_letters, (one) => JSON.stringify(one), (one) => element("li", {},
    element("header", {}, element("b", {}, one.error_class), element("span", { class: "quiet" }, one.stream),
      element("span", { class: "number" }, count(one.count))),
    ...one.samples.map((sample) => element("p", {}, element("span", { class: "quiet" }, sample.place), element("code", {}, sample.text)))));
}

function showViolations() {
  const place = find("violations");
  place.hidden = status.violations.length === 0;
  keyed(place.querySelector("ul"), status.violations, (one) => JSON.stringify(one), (one) => element("li", {},
    element("header", {}, element("b", {}, one.rule), element("span", { class: "quiet" }, one.stream),
      element("span", { class: "number" }, count(one.count)))));
}

function show() {
  showVerdict();
  showFigures();
  showProblems();
  showStreams();
  chooseRows();
  showPartitions();
  showEvents();
  showDeadLetters();
  showViolations();
}

async function look() {
  try {
    const answer = await fetch("status.json", { cache: "no-store", signal: AbortSignal.timeout(10000) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    status = await answer.json();
    heardMs = Date.now();
    offsetMs = status.now_ms - heardMs;
    show();
  } catch (error) {
    document.body.dataset.level = "away";
    put("headline", "The service does not answer");
    put("verdict", heardMs ? "The data below is from its last answer." : "It may be starting or stopped.");
    document.title = `? ${status ? status.service : "kafka-delta-express"}`;
  }
  tick();
}

function tick() {
  put("age", heardMs ? `updated ${duration(Math.floor((Date.now() - heardMs) / 1000))} ago` : "");
}

async function run() {
  for (;;) {
    if (!document.hidden) await look();
    await new Promise((resume) => { setTimeout(resume, EVERY_MS); });
  }
}

find("filter").addEventListener("input", () => { if (status) { find("rows").scrollTop = 0; chooseRows(); showPartitions(); } });
find("order").addEventListener("change", () => { if (status) { chooseRows(); showPartitions(); } });
find("rows").addEventListener("scroll", () => requestAnimationFrame(() => status && showRows()), { passive: true });
addEventListener("resize", () => status && showRows());
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
setInterval(tick, 1000);
run();
