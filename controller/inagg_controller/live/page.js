// SPDX-License-Identifier: Apache-2.0
"use strict";
// Shows the overviews that GET /events sends once a second (docs/controller-api.md). Rates are differences between two
// of them, a few seconds apart.

const WINDOW_S = 4; // over which rates are measured
const KEPT = 60; // values of a sparkline
const LOG_LINES = 500;
const COLOURS = 8;
const CELLS = 512; // of a switch's slots, in rows of 64
const ROW = 64;
const SVG = "http://www.w3.org/2000/svg";
const ENDED = ["failed", "finished"];
const NOT_THE_TOKEN = "This is not the operator's token, which is in the controller's --token-file.";

const at = (id) => document.getElementById(id);
const seen = []; // overviews of the last seconds
const sparks = new Map(); // job -> goodputs
let paused = false;
let lastAt = 0; // when the last event came, performance.now()
let error = "";

// --- building

function element(tag, attributes = {}, ...children) {
  const made = ["svg", "g", "rect", "line", "path", "polyline", "text", "title"].includes(tag)
    ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** Give an element these children. Those that stay as they are keep the selection and the focus. */
function fill(parent, children) {
  children.forEach((child, n) => {
    const there = parent.childNodes[n];
    if (there === undefined) parent.append(child);
    else if (!there.isEqualNode(child)) there.replaceWith(child);
  });
  while (parent.childNodes.length > children.length) parent.lastChild.remove();
}

function row(cells) {
  return element("tr", {}, ...cells.map((cell) => {
    const [text, kind] = Array.isArray(cell) ? cell : [cell, ""];
    return element("td", kind ? { class: kind } : {}, text);
  }));
}

const number = (value, digits = 1) => value === null || value === undefined || !Number.isFinite(value) ? "–"
  : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const milliseconds = (seconds) => number(seconds === null ? null : 1000 * seconds);
const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString("en-GB");
const colour = (job) => `j${job % COLOURS}`;
const titled = (job) => (job.name ? `job ${job.id} (${job.name})` : `job ${job.id}`);

// --- rates

/** What `find` gives for now and for some seconds ago: [before, now, seconds]; null if there is no such past. */
function past(find) {
  const last = seen[seen.length - 1];
  const before = seen.find((each) => each !== last && find(each) !== null && find(each) !== undefined);
  const now = find(last);
  return before === undefined || now === null || now === undefined ? null : [find(before), now, last.at - before.at];
}

/** A counter's rate; null without a past, or if the counter has begun anew. */
function rate(find) {
  const found = past(find);
  return found === null || found[1] < found[0] || found[2] <= 0 ? null : (found[1] - found[0]) / found[2];
}

const portOf = (overview, switch_, port) => overview.ports.find((each) => each.switch === switch_ && each.port === port);
const rankOf = (overview, job, rank) => overview.jobs.find((each) => each.id === job)?.ranks[rank];

/** Mbit/s that a switch gets from a port, and sends results to it. */
function portRates(end) {
  const [name, port] = [end.slice(0, end.lastIndexOf(":")), Number(end.slice(end.lastIndexOf(":") + 1))];
  // Zero before the first packet, so that the rate of the first packets is known.
  const field = (key) => (overview) => overview.ports.some((each) => each.switch === name)
    ? portOf(overview, name, port)?.[key] ?? 0 : null;
  const bits = (key) => { const found = rate(field(key)); return found === null ? null : (found * 8) / 1e6; };
  return { received: bits("received"), sent: bits("results_sent") };
}

/** A rank's figures of the last seconds. */
function rankFigures(job, rank) {
  const of = (find) => (overview) => { const found = rankOf(overview, job.id, rank); return found ? find(found) : null; };
  const ratio = (above, below) => { const part = rate(above), whole = rate(below); return part === null || !whole ? null : part / whole; };
  const sums = of((each) => each.waits?.sums), waited = of((each) => each.waits?.waited_s);
  const chunks = rate(of((each) => each.traffic?.chunks));
  return {
    sums: rate(sums),
    waited: ratio(waited, sums),
    loss: ratio(of((each) => each.traffic?.retransmits), of((each) => each.traffic?.packets)),
    goodput: chunks === null ? null : (chunks * job.payload_bytes * 8) / 1e6,
  };
}

/** Adds to the ranks' figures how late they begin their sums: how much less they wait than the rank that waits most. */
function addLateness(figures) {
  const waits = figures.map((each) => each.waited);
  const known = waits.length > 1 && waits.every((each) => each !== null);
  figures.forEach((each) => { each.late = known ? Math.max(...waits) - each.waited : null; });
}

// --- fabric

function showFabric(overview) {
  const { switches, links } = overview.health;
  const wires = [
    ...links.map((link) => ({ ends: link.ends, state: link.state, reason: link.reason })),
    ...overview.hosts.map((host) => ({ ends: [host.at], host, state: "up", reason: "" })),
  ];
  const level = levels(switches, links, overview.hosts);
  const top = Math.max(0, ...level.values());
  const tiers = Array.from({ length: top + 1 }, (_, n) => switches.filter((each) => (level.get(each.name) ?? 0) === top - n));
  const hosts = [...overview.hosts].sort((one, other) => order(switches, one.at) - order(switches, other.at));
  const width = Math.max(320, 84 * Math.max(hosts.length, ...tiers.map((tier) => 1.6 * tier.length)));
  const height = 110 * (tiers.length + (hosts.length ? 1 : 0)) - (hosts.length ? 30 : 50);
  const svg = element("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Switches, hosts and the links between them" });
  const place = new Map();
  tiers.forEach((tier, n) => tier.forEach((each, k) => place.set(each.name, [((k + 0.5) * width) / tier.length, 28 + 110 * n])));
  hosts.forEach((host, k) => place.set(host.name, [((k + 0.5) * width) / hosts.length, 28 + 110 * tiers.length]));
  const rows = [];
  const drawn = [];
  for (const wire of wires) {
    const [lower, upper] = oriented(wire, level);
    const [x1, y1] = place.get(wire.host ? wire.host.name : nameOf(lower)) ?? [0, 0], [x2, y2] = place.get(nameOf(upper)) ?? [0, 0];
    const up = portRates(upper).received;
    const down = wire.host ? portRates(upper).sent : portRates(lower).received;
    const figures = [`${number(up)} ↑`, `${number(down)} ↓`], text = figures.join(" ");
    const label = wire.host ? `${wire.host.name} – ${upper}` : `${lower} – ${upper}`;
    const kind = wire.state === "down" ? "wire down" : (up || 0) + (down || 0) > 0.01 ? "wire busy" : "wire";
    const thick = 1.5 + Math.min(5, Math.log2(1 + Math.max(up || 0, down || 0)));
    svg.append(element("line", { x1, y1, x2, y2, class: kind, "stroke-width": thick }, element("title", {}, `${label}: ${text}${wire.reason ? `, ${wire.reason}` : ""}`)));
    // Below a host there is room; between switches near the lower one, where links are apart.
    const [x, y] = wire.host ? [x1, y1 + 30] : [x1 + 0.36 * (x2 - x1), y1 + 0.36 * (y2 - y1) - 4];
    figures.forEach((line, n) => drawn.push(element("text", { x, y: y + 14 * n, "text-anchor": "middle", class: "halo" }, line)));
    rows.push(row([label, [wire.state + (wire.reason ? `: ${wire.reason}` : ""), wire.state === "down" ? "bad" : ""], [number(up), "number"], [number(down), "number"]]));
  }
  svg.append(...drawn);
  for (const each of switches) svg.append(node(place.get(each.name), each.name, each.state === "connected" ? "" : each.state));
  for (const host of hosts) svg.append(node(place.get(host.name), host.name, ""));
  fill(at("fabric"), [svg]);
  fill(at("links").tBodies[0], rows);
  const troubles = [
    ...switches.filter((each) => each.state !== "connected").map((each) => `switch ${each.name}: ${each.state}${each.error ? `: ${each.error}` : ""}`),
    ...links.filter((each) => each.state === "down").map((each) => `link ${each.ends.join(" – ")}: ${each.reason}`),
    ...switches.flatMap((each) => each.refusals.map((port) => `port ${each.name}:${port.port} refuses packets of its host: ${Object.keys(port.packets).join(", ")}`)),
  ];
  fill(at("troubles"), troubles.map((text) => element("li", {}, text)));
  if (!switches.length) fill(at("fabric"), [element("p", { class: "about" }, "This controller has no switch.")]);
}

const nameOf = (end) => end.slice(0, end.lastIndexOf(":"));
const order = (switches, end) => 1000 * switches.findIndex((each) => each.name === nameOf(end)) + Number(end.slice(end.lastIndexOf(":") + 1));

/** Switch -> how many links it is above the leaves: the switches with no fewer hosts than links, because a single host
 * at a spine, such as the controller's, makes it no leaf; or those with the most hosts, or with the fewest links. */
function levels(switches, links, hosts) {
  const level = new Map();
  const names = switches.map((each) => each.name);
  const linked = (name) => links.filter((link) => link.ends.some((end) => nameOf(end) === name)).length;
  const housed = (name) => hosts.filter((host) => nameOf(host.at) === name).length;
  const most = Math.max(0, ...names.map(housed)), fewest = Math.min(...names.map(linked));
  let next = names.filter((name) => housed(name) > 0 && housed(name) >= linked(name));
  if (!next.length) next = names.filter((name) => (most ? housed(name) === most : linked(name) === fewest));
  for (let n = 0; next.length; n += 1) {
    next.forEach((name) => level.set(name, n));
    next = [...new Set(links.flatMap((link) => {
      const [one, other] = link.ends.map(nameOf);
      return [level.get(one) === n ? other : null, level.get(other) === n ? one : null];
    }))].filter((name) => name !== null && !level.has(name));
  }
  return level;
}

/** The two ends of a wire, the lower one first. */
function oriented(wire, level) {
  if (wire.host) return [wire.host.name, wire.ends[0]];
  const [one, other] = wire.ends;
  return (level.get(nameOf(one)) ?? 0) <= (level.get(nameOf(other)) ?? 0) ? [one, other] : [other, one];
}

function node([x, y], name, state) {
  return element("g", {},
    element("rect", { x: x - 32, y: y - 15, width: 64, height: 30, rx: 5, class: state ? "node away" : "node" }),
    element("text", { x, y: y + 4, "text-anchor": "middle" }, name.length > 9 ? `${name.slice(0, 8)}…` : name),
    element("title", {}, state ? `${name}: ${state}` : name));
}

// --- slots

function showSlots(overview) {
  const parts = [];
  const jobs = overview.jobs.filter((job) => job.leases.length);
  for (const each of overview.health.switches) {
    const shared = overview.health.shared_slots, pool = each.slot_versions;
    const versions = pool + 2 * shared;
    if (!versions) continue;
    const cells = Math.min(CELLS, versions), rows = Math.ceil(cells / ROW);
    const svg = element("svg", { viewBox: `0 0 ${ROW * 10} ${rows * 10}`, role: "img", "aria-label": `Slot versions of ${each.name}` });
    for (let cell = 0; cell < cells; cell += 1) {
      const first = Math.floor((cell * versions) / cells), last = Math.floor(((cell + 1) * versions) / cells) - 1;
      const owner = jobs.find((job) => job.leases.some((lease) => lease.switch === each.name && lease.first <= last && lease.first + lease.count > first));
      const kind = owner ? `cell ${colour(owner.id)}${owner.state === "running" ? "" : " waiting"}` : first >= pool ? "cell shared" : "cell";
      const what = owner ? `${titled(owner)}, ${owner.state}` : first >= pool ? "shared by jobs" : "free";
      svg.append(element("rect", { x: 10 * (cell % ROW) + 0.5, y: 10 * Math.floor(cell / ROW) + 0.5, width: 9, height: 9, class: kind },
        element("title", {}, `${first} to ${last}: ${what}`)));
    }
    const used = pool - each.free_slot_versions;
    const text = `${each.name}: ${used.toLocaleString("en")} of ${pool.toLocaleString("en")} slot versions leased${shared ? `, ${shared.toLocaleString("en")} slots shared` : ""}`;
    parts.push(element("div", { class: "slots" }, text, svg, ...jobs.map((job) => heat(job, each.name))));
  }
  at("slots-part").hidden = !parts.length;
  fill(at("slots"), parts);
  const square = (kind) => element("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, element("rect", { width: 10, height: 10, class: kind }));
  const entries = jobs.map((job) => [`cell ${colour(job.id)}${job.state === "running" ? "" : " waiting"}`, `${titled(job)}: ${job.state}`]);
  entries.push(["cell", "free"]);
  if (overview.health.shared_slots) entries.push(["cell shared", "shared by jobs"]);
  fill(at("slots-legend"), entries.map(([kind, text]) => element("li", {}, square(kind), text)));
}

/** What some of a job's slot versions in a switch hold; null if it is not known. */
function heat(job, name) {
  const lease = job.leases.find((each) => each.switch === name);
  if (!lease?.contributions.length) return null;
  const { contributions, members } = lease;
  const count = (test) => contributions.filter(test).length;
  const svg = element("svg", { viewBox: `0 0 ${ROW * 10} ${Math.ceil(contributions.length / ROW) * 10}`, role: "img", "aria-label": `What slots of ${titled(job)} hold in ${name}` },
    ...contributions.map((each, n) => element("rect", {
      x: 10 * (n % ROW) + 0.5, y: 10 * Math.floor(n / ROW) + 0.5, width: 9, height: 9,
      class: each ? `cell ${colour(job.id)}` : "cell", "fill-opacity": each ? (0.15 + 0.85 * (each / members) ** 2).toFixed(2) : "1",
    }, element("title", {}, `${each} of ${members} contributions`))));
  const texts = [`${count((each) => each === members)} complete`, `${count((each) => each > 0 && each < members)} summing`, `${count((each) => !each)} not used yet`];
  return element("div", { class: "heat" }, `${titled(job)}, ${contributions.length} of ${lease.count} versions: ${texts.join(", ")}`, svg);
}

// --- jobs

const HEADER = ["rank", "host", "at", "state", "heard", "sums/s", "waits ms", "late ms", "RTT ms", "window", "sent again", "Mbit/s"];

function card(job) {
  const found = at(`job-${job.id}`);
  if (found !== null) return found;
  const heads = HEADER.map((name, n) => element("th", n > 3 ? { class: "number" } : {}, name));
  const made = element("article", { class: "job", id: `job-${job.id}` },
    element("h3"), element("p", { class: "what" }), element("p", { class: "change bad" }),
    element("dl", { class: "figures" }),
    element("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": `Ranks of ${titled(job)}` },
      element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody"))),
    element("details", { class: "history", open: "" }, element("summary", {}, "What has summed for it"), element("ol", { class: "ways" })));
  at("jobs").append(made);
  return made;
}

function showJobs(overview) {
  at("jobs-part").hidden = false;
  at("no-jobs").hidden = overview.jobs.some((job) => !ENDED.includes(job.state));
  const known = new Set(overview.jobs.map((job) => `job-${job.id}`));
  for (const each of [...at("jobs").children]) if (!known.has(each.id)) each.remove();
  overview.jobs.forEach((job) => showJob(job, card(job), overview.at));
}

function showJob(job, made, now) {
  const over = ENDED.includes(job.state);
  made.classList.toggle("ended", over);
  made.querySelector("h3").textContent = `${titled(job)}: ${job.state}`;
  const priority = job.priority ? `, priority ${job.priority}` : "", tenant = job.tenant ? `, tenant ${job.tenant}` : "";
  made.querySelector(".what").textContent = `${job.workers} ranks, ${job.slots} slots, on ${job.title}${tenant}${priority}`;
  made.querySelector(".change").textContent = job.changing ? `Looks for another way: ${job.changing}` : job.reason ?? "";
  const figures = job.ranks.map((each) => rankFigures(job, each.rank));
  addLateness(figures);
  const late = job.late.map((each) => `rank ${each.rank}${job.ranks[each.rank].host ? ` (${job.ranks[each.rank].host})` : ""}: ${each.cause}`);
  const known = figures.map((each) => each.goodput).filter((each) => each !== null);
  const goodput = known.length ? Math.min(...known) : null;
  const values = sparks.get(job.id) ?? [];
  sparks.set(job.id, [...values, goodput ?? 0].slice(-KEPT));
  const rates = figures.map((each) => each.sums).filter((each) => each !== null);
  const sums = rates.length ? Math.min(...rates) : null;
  const shown = [["goodput", `${number(goodput)} Mbit/s`, spark(sparks.get(job.id))], ["sums", `${number(sums)} /s`],
    ["late", late.length ? late.join(", ") : "nobody"]];
  fill(made.querySelector(".figures"), over ? [] : shown.map(([name, text, more]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, text), more ?? null)));
  made.querySelector(".scroll").hidden = over;
  fill(made.querySelector("tbody"), job.ranks.map((each, n) => rankRow(each, figures[n], job.late.some((late) => late.rank === each.rank))));
  made.querySelector(".history").hidden = !job.ways.length;
  fill(made.querySelector(".ways"), job.ways.map((way) => element("li", {}, `${clock(now - way.ago_s)} ${way.title}${
    way.reason ? `, after ${number(way.taken_s)} s: ${way.reason}` : ""}`)));
}

function rankRow(rank, figures, late) {
  const traffic = rank.traffic;
  const state = rank.reason ? `${rank.state}: ${rank.reason}` : rank.state;
  const age = rank.heartbeat_age_s;
  const rtt = traffic?.rtt_s || rank.waits?.rtt_s || null;
  return row([
    String(rank.rank), rank.host || rank.ip || "–", rank.at ?? "–", [state, rank.state === "lost" ? "bad reason" : ""],
    [age === null ? "–" : `${number(age)} s`, age > 1.5 ? "number warn" : "number"], [number(figures.sums), "number"],
    [milliseconds(figures.waited), "number"], [milliseconds(figures.late), late ? "number late" : "number"],
    [milliseconds(rtt), "number"], [traffic ? `${traffic.window} of ${traffic.window_limit}` : "–", "number"],
    [figures.loss === null ? "–" : `${number(100 * figures.loss, 2)}%`, figures.loss > 0.001 ? "number warn" : "number"],
    [number(figures.goodput), "number"],
  ]);
}

function spark(values) {
  const most = Math.max(1e-9, ...values);
  const points = values.map((value, n) => `${(118 * (n + KEPT - values.length)) / (KEPT - 1) + 1},${23 - (22 * value) / most}`);
  return element("svg", { class: "spark", viewBox: "0 0 120 24", role: "img", "aria-label": "goodput of the last minute" },
    element("polyline", { points: points.join(" ") }));
}

// --- servers, log

function showServers(overview) {
  const { servers } = overview.health;
  at("servers-part").hidden = !servers.length;
  const mebibytes = (count) => [number(count / (1 << 20)), "number"];
  fill(at("servers").tBodies[0], servers.map((each) => row([
    each.name, `${each.ip}:${each.udp_port}`, [String(each.jobs), "number"], mebibytes(each.memory - each.free_memory), mebibytes(each.memory)])));
}

function addLog(lines) {
  const list = at("log"); // the last line is on top
  const kinds = { warning: "warn", error: "bad", critical: "bad" };
  list.prepend(...lines.toReversed().map((line) => element("li", kinds[line.level] ? { class: kinds[line.level] } : {}, element("time", {}, clock(line.at)), ` ${line.text}`)));
  while (list.children.length > LOG_LINES) list.lastChild.remove();
}

// --- events

function show(overview) {
  at("login").hidden = overview.operators;
  for (const id of ["jobs-part", "log-part"]) at(id).hidden = !overview.operators;
  seen.push(overview);
  while (seen.length > 2 && overview.at - seen[1].at >= WINDOW_S) seen.shift();
  addLog(overview.log);
  if (paused) return;
  showFabric(overview);
  showServers(overview);
  showSlots(overview);
  if (overview.operators) showJobs(overview);
}

function showStatus() {
  const status = at("status");
  const silent = (performance.now() - lastAt) / 1000;
  const lost = !lastAt || silent > 4;
  status.classList.toggle("lost", lost);
  const last = seen[seen.length - 1];
  const text = error || (lost ? "no answer from the controller" : `inagg ${last.version}, ${clock(last.at)}${paused ? ", paused" : ""}`);
  if (status.textContent !== text) status.textContent = text;
}

const secret = () => sessionStorage.getItem("inagg-token") ?? "";

/** Use a token from now on. One that a header cannot carry is refused: fetch would fail as without a network. */
function take(token) {
  const possible = /^[\x21-\x7e]*$/.test(token);
  if (possible) sessionStorage.setItem("inagg-token", token);
  else sessionStorage.removeItem("inagg-token");
  at("refused").textContent = possible ? "" : NOT_THE_TOKEN;
}

/** Listen until the stream ends. */
async function listen() {
  const headers = secret() ? { Authorization: `Bearer ${secret()}` } : {};
  const answer = await fetch("/events", { headers, cache: "no-store" });
  if (answer.status === 401 || answer.status === 403) {
    sessionStorage.removeItem("inagg-token");
    at("refused").textContent = NOT_THE_TOKEN;
    return;
  }
  if (!answer.ok) throw new Error(`the controller answers ${answer.status}`);
  error = "";
  seen.length = 0;
  at("log").replaceChildren();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  stop = () => reader.cancel();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
      if (!data.length) continue;
      lastAt = performance.now();
      show(JSON.parse(data.join("\n")));
      showStatus();
    }
  }
}

let stop = () => {};

async function listenForEver() {
  for (;;) {
    try {
      await listen();
    } catch (failure) {
      error = failure instanceof TypeError ? "" : failure.message;
    }
    showStatus();
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

function pause() {
  paused = !paused;
  at("pause").setAttribute("aria-pressed", String(paused));
  showStatus();
}

at("pause").addEventListener("click", pause);
document.addEventListener("keydown", (event) => {
  if (event.key === "p" && !event.ctrlKey && !event.metaKey && !event.altKey && !["INPUT", "TEXTAREA"].includes(event.target.tagName)) pause();
});
at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  take(at("token").value.trim());
  at("token").value = "";
  stop();
});
// A link may carry the token behind #, which browsers do not send.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given !== null) {
  take(given);
  window.history.replaceState(null, "", location.pathname);
}
setInterval(showStatus, 1000);
listenForEver();
