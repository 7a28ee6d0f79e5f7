// The page of a Keytide cluster: asks the admin API every second and shows what it says. No libraries, nothing from elsewhere.
"use strict";

const INTERVAL_MS = 1000;
const SPARK_POINTS = 60;
const MAPS = 6;            // at most; each is asked for every so often, one at a time
const MAP_EVERY_MS = 30000;
const STATES = {
  READY: "good", LIVE: "good", BUILDING: "busy", BACKFILL: "busy", CATCHUP: "busy", QUEUED: "warn", PAUSED: "warn",
  DROPPING: "warn", FAILED: "bad", lost: "bad", live: "good", draining: "busy", drained: "warn",
};
const HEALTH = { ok: ["all is well", "good"], degraded: ["degraded", "warn"], failing: ["failing", "bad"] };
const FINISHED = ["READY", "FAILED", "CANCELLED"];
const shown = {};          // section -> what it shows, as JSON: a section that has not changed is left alone
const staleness = {};      // keyspace -> last values, for its line
const samples = {};        // spatial index -> a sample of it, or why there is none, and when that was asked for
let events = [], eventsTerm = 0;

// --- small builders: text only ever goes in as text --------------------------------------------------------------------

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== "") element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const number = (value) => (value === null || value === undefined ? "–" : Number(value).toLocaleString("en-GB"));

function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${at && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  const hours = Math.floor(seconds / 3600);
  return hours < 48 ? `${hours} h ${Math.round((seconds % 3600) / 60)} min` : `${Math.floor(hours / 24)} days`;
}

const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");  // every time is the coordinator's, none the browser's
const state = (word, past = false) => make("span", { class: `state ${(!past && STATES[word]) || ""}` }, word);
const sub = (text, kind = "") => (text ? make("span", { class: `sub ${kind}` }, text) : null);

function table(columns, rows) {
  const head = columns.map(([name, kind]) => make("th", { class: kind, scope: "col" }, name));
  const body = rows.map((cells) => make("tr", {}, ...cells.map((cell, at) => {
    const [name, kind] = columns[at];
    return make("td", { class: kind, "data-name": name }, ...[cell].flat());
  })));
  return make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
}

function show(id, facts, render) {
  const text = JSON.stringify(facts);
  if (shown[id] === text) return;
  shown[id] = text;
  document.getElementById(id).replaceChildren(...[render()].flat());
}

function spark(values) {
  const space = "http://www.w3.org/2000/svg";
  const top = Math.max(...values, 1);
  const points = values.map((value, at) => `${at ? "L" : "M"}${(at * 100) / (SPARK_POINTS - 1)} ${24 - (value / top) * 22}`);
  const drawing = document.createElementNS(space, "svg");
  drawing.setAttribute("class", "spark");
  drawing.setAttribute("viewBox", "0 0 100 26");
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("role", "img");
  drawing.setAttribute("aria-label", `staleness over the last minute, at most ${duration(top)}`);
  const line = document.createElementNS(space, "path");
  line.setAttribute("d", points.join(" "));
  drawing.append(line);
  return drawing;
}

// --- sections ----------------------------------------------------------------------------------------------------------

function glance({ indexes, builds, nodes, stability }) {
  const ready = indexes.filter((one) => one.state === "READY").length;
  const failed = indexes.filter((one) => one.state === "FAILED").length;
  const expected = nodes.filter((one) => one.live || one.drain !== "drained");  // (the others may go, or have gone)
  const live = expected.filter((one) => one.live).length;
  const running = builds.filter((one) => !FINISHED.includes(one.state)).length;
  const keyspaces = Object.values(stability.keyspaces).filter((one) => one.issuing);
  const stale = keyspaces.map((one) => one.staleness_ms).filter((one) => one !== null);
  const oldest = stale.length ? Math.max(...stale) : null;
  const lag = keyspaces.reduce((sum, one) => sum + one.lag_documents, 0);
  const entries = indexes.reduce((sum, one) => sum + one.entries, 0);
  const tiles = [
    ["Indexes ready", ready, `of ${indexes.length}`, failed ? "bad" : ""],
    ["Entries", number(entries), "", ""],
    ["Snapshots are behind", duration(oldest), "", oldest > 5000 ? "warn" : ""],
    ["Documents to come", number(lag), "", lag > 100000 ? "warn" : ""],
    ["Nodes live", live, `of ${expected.length}`, live < expected.length || !live ? "bad" : ""],
    ["Builds under way", running, "", ""],
  ];
  show("glance", tiles, () => tiles.map(([name, value, more, mood]) => make("div", { class: `tile ${mood}` },
    make("dt", {}, name), make("dd", {}, String(value), more ? make("small", {}, ` ${more}`) : ""))));
}

// The coordinator's verdict, in its own words: `keytide status` and `keytide doctor` show the same.
function healthPart({ health }) {
  const [word, kind] = HEALTH[health.status];
  const pill = document.getElementById("health");
  pill.textContent = word;
  pill.className = `pill ${kind}`;
  document.getElementById("reasons-part").hidden = !health.reasons.length;
  show("reasons", health, () => make("ul", {}, ...health.reasons.map((one) => make("li", { class: HEALTH[one.status][1] },
    make("strong", {}, one.subject), ` ${one.status === "ok" ? "" : `(${one.status}) `}`, one.reason,
    make("span", { class: "sub" }, `What to do: ${one.next_step}`)))));
}

function partitions(index) {
  const each = index.partition_slices || Array(index.slices).fill(1);
  const alike = new Set(each).size === 1;
  const of = !alike ? `of ${each.join(", ")} slices` : each[0] === 1 ? "a slice each" : `${each[0]} slices each`;
  return `${each.length} ${each.length === 1 ? "partition" : "partitions"} by ${index.partition_by}, ${of}`;
}

function structure(index) {
  const systems = { 0: "a plane", 4326: "longitude and latitude" };
  const srid = index.srid === null || index.srid === undefined ? "" : `, srid ${index.srid} (${systems[index.srid] || "another system"})`;
  return `USING ${index.structure}${srid}`;
}

function slices(byIndex) {
  return Object.entries(byIndex).map(([name, lost]) => `slice${lost.length > 1 ? "s" : ""} ${lost.join(", ")} of ${name}`).join(" and ");
}

function oneBuild(build) {
  const over = FINISHED.includes(build.state);
  const past = build.current === false;  // its indexes are dropped, or were built again since
  const mood = build.state === "READY" ? "done" : build.state === "FAILED" && !past ? "bad" : "";
  const parts = build.documents_total || over ? [`${number(build.documents_done)} of ${number(build.documents_total)} documents`] : [];
  if (build.rate) parts.push(`${number(Math.round(build.rate))} per second`);
  if (build.phase) parts.unshift(build.phase.replaceAll("-", " "));
  if (build.rate_limit) parts.push(`at most ${number(build.rate_limit)} per second`);
  if (build.slices) parts.unshift(`rebuilds ${slices(build.slices)}`);
  if (build.eta_s !== null) parts.push(`${duration(build.eta_s * 1000)} to go`);
  if (over && build.finished_at) parts.push(`took ${duration(build.finished_at - build.started_at)}`);
  const waits = build.paused ? `pauses: ${build.paused}` : !over && build.waiting_for ? `waits for ${build.waiting_for}` : "";
  const steering = { QUEUED: "pause", BACKFILL: "pause", PAUSED: "resume" }[build.state];
  const ways = steering ? [build.paused ? "resume" : steering, "cancel"] : over ? [] : ["cancel"];
  const filled = make("i");
  filled.style.width = `${build.percent}%`;
  const bar = make("div", { class: `bar ${mood}`, role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100,
    "aria-valuenow": build.percent, "aria-label": `build ${build.id}` }, filled);
  return make("article", { class: "build", "data-build": build.id },
    make("div", { class: "build-head" },
      make("span", {}, make("strong", {}, build.indexes.join(", ")), make("span", { class: "quiet" }, ` ${build.id} on ${build.keyspace}`)),
      make("span", {}, state(build.state, past), build.state === "QUEUED" ? "" : ` ${build.percent} %`)),
    bar, parts.length ? make("p", {}, parts.join(" · ")) : "",
    waits ? make("p", { class: "wait" }, waits) : "", build.error ? make("p", { class: past ? "" : "error" }, build.error) : "",
    ways.length ? make("p", { class: "quiet sub" }, ...ways.flatMap((way, n) => [n ? " · " : "", make("code", {}, `keytide build ${way} ${build.id}`)])) : "");
}

function buildsPart({ builds }) {
  const newestFirst = [...builds].reverse();
  const under = newestFirst.filter((one) => !FINISHED.includes(one.state));
  const over = newestFirst.filter((one) => FINISHED.includes(one.state));
  show("builds", builds, () => {
    if (!builds.length) return make("p", { class: "empty card" }, "There were no builds yet.");
    const before = document.querySelector("#builds details");
    const first = under.length ? [] : over.slice(0, 1);
    const rest = over.slice(first.length);
    const more = make("details", { open: before && before.open ? "open" : null },
      make("summary", {}, `${rest.length} earlier ${rest.length === 1 ? "build" : "builds"}`), ...rest.slice(0, 20).map(oneBuild));
    return [...under.map(oneBuild), ...first.map(oneBuild), ...(rest.length ? [more] : [])];
  });
}

function leftOut(index) {
  const words = { "leading-key-missing": "without the leading key", "nothing-to-unnest": "with nothing to unnest",
    "where-not-true": "for which the condition is not true" };
  const reasons = Object.entries(index.left_out_by_build || {});
  const told = reasons.map(([reason, count]) => `${number(count)} documents ${words[reason] || `(${reason})`}`);
  return told.length ? `not in it when it was built: ${told.join(", ")}` : "";
}

function copies(index) {
  const { wanted, serving, filling, leaving } = index.copies || {};
  const moves = filling || leaving;
  if (index.state !== "READY" || (!moves && (!index.replicas || serving >= wanted))) return null;
  const parts = [filling ? `${filling} being filled` : "", leaving ? `${leaving} LEAVING` : ""].filter(Boolean);
  return sub([`${serving} of ${wanted} copies serve`, ...parts].join(", "), serving < wanted ? "error" : "");
}

function layouts(index) {
  return (index.layouts || []).map((one) => sub(one.replaced
    ? `old layout ${one.id} (${one.slices} slices) waits for ${one.waits_for || "its end"}`
    : `new layout ${one.id} (${one.slices} slices) is ${one.state}${one.build ? `, by build ${one.build}` : ""}${one.reason ? `: ${one.reason}` : ""}`,
  one.state === "FAILED" ? "error" : ""));
}

function hot(index) {
  const told = (index.hot || []).map((one) => sub(
    `slice ${one.slice} is hot: ${one.reason}; what helps: keytide index load ${index.name}`));
  return index.auto_split_does ? [...told, sub(`auto_split: ${index.auto_split_does}`)] : told;
}

function indexesPart({ indexes }) {
  const columns = [["Index", ""], ["State", ""], ["Entries", "number"], ["Size", "number"], ["Behind", "number"],
    ["Snapshot", "number"], ["Skipped", "number"]];
  show("indexes", indexes, () => {
    if (!indexes.length) {
      return make("p", { class: "empty" }, "There are no indexes. Make one: ",
        make("code", {}, 'keytide sql "CREATE INDEX by_city ON people (city)"'));
    }
    return table(columns, indexes.map((one) => [
      [make("strong", {}, one.name), sub(`on ${one.keyspace}, ${one.slices} slices${one.replicas ? `, ${one.replicas + 1} copies of each` : ""}`),
        sub(structure(one)), sub(partitions(one)), sub(one.reason, "error"),
        one.lost.length ? sub(`${slices({ [one.name]: one.lost })}: data lost, ${one.rebuilds.length ? `rebuilt by ${one.rebuilds.join(", ")}` : "to be rebuilt"}`, "error") : null,
        copies(one), ...layouts(one), ...hot(one), sub(leftOut(one)),
        one.foreign_partition_ids ? sub(`${number(one.foreign_partition_ids)} ids seen in two source partitions`, "error") : null],
      state(one.state), number(one.entries), bytes(one.bytes), one.lag_documents === null ? "–" : number(one.lag_documents),
      number(one.snapshot), number(one.skipped),
    ].map((cell) => [cell].flat().filter(Boolean))));
  });
}

const withMaps = (indexes) => indexes.filter((one) => typeof one.srid === "number" && one.state === "READY");

function mapsPart({ indexes }) {
  const spatial = withMaps(indexes);
  const facts = spatial.slice(0, MAPS).map((one) => ({ name: one.name, srid: one.srid, entries: one.entries, ...samples[one.name] }));
  document.getElementById("maps-part").hidden = !spatial.length;
  show("maps", [facts.map(({ name, boxes, problem }) => [name, boxes, problem]), spatial.length], () => [
    ...facts.map((one) => (one.boxes ? mapOf(one) : make("figure", { class: "map card" }, make("h3", {}, one.name),
      make("p", { class: "empty" }, one.problem ? `There is no map: ${one.problem}` : "loading")))),
    ...(spatial.length > MAPS ? [make("p", { class: "quiet" }, `There are ${spatial.length - MAPS} more spatial indexes.`)] : []),
  ]);
}

// One map at a time is asked for anew, and none while nobody looks. A node that cannot be asked costs its map only.
async function askMap(indexes) {
  const now = performance.now();
  const next = withMaps(indexes).slice(0, MAPS).find((one) => !samples[one.name] || now - samples[one.name].asked > MAP_EVERY_MS);
  if (!next || (document.hidden && samples[next.name])) return;
  try {
    const { boxes } = await ask(`indexes/${encodeURIComponent(next.name)}/map?limit=500`);
    samples[next.name] = { boxes, asked: now };
  } catch (error) {
    if (error instanceof NeedsToken) throw error;
    samples[next.name] = { problem: error.detail || error.message, asked: now };
  }
}

function stabilityPart({ stability }) {
  const columns = [["Keyspace", ""], ["Newest number", "number"], ["Age", "number"], ["Behind the source", "number"],
    ["To come", "number"], ["Last minute", ""]];
  const rows = Object.entries(stability.keyspaces);
  for (const [name, one] of rows) {
    if (!one.issuing || one.staleness_ms === null) { delete staleness[name]; continue; }
    staleness[name] = [...(staleness[name] || []), one.staleness_ms].slice(-SPARK_POINTS);
  }
  show("stability", [rows, staleness], () => {
    if (!rows.length) return make("p", { class: "empty" }, "No keyspace has an index yet.");
    return table(columns, rows.map(([name, one]) => [
      [make("strong", {}, name), sub(`${one.partitions} partitions`),
        one.examining ? sub(`timestamps wait, its history is examined: ${one.examining}`, "error") : null,
        one.last_rollback ? sub(`rolled back ${one.rollbacks === 1 ? "once" : `${one.rollbacks} times`}, last on ${new Date(one.last_rollback.at).toLocaleString("en-GB")}`) : null,
        one.lagging.length ? sub(`${one.lagging.length} slices lag, timestamps do not wait for them`, "error") : null,
        one.partitions_reported < one.partitions && one.issuing
          ? sub(`${one.partitions - one.partitions_reported} not reported by a projector`, "error") : null].filter(Boolean),
      number(one.snapshot), one.issuing ? duration(one.issued_ms_ago) : "idle", duration(one.issuing ? one.staleness_ms : null),
      number(one.lag_documents), staleness[name] ? [spark(staleness[name])] : "–",
    ]));
  });
}

function nodesPart({ nodes }) {
  const columns = [["Node", ""], ["State", ""], ["Slices", "number"], ["Entries", "number"], ["Memory", "number"],
    ["Disk free", "number"], ["Heard", "number"]];
  show("nodes", nodes, () => {
    if (!nodes.length) return make("p", { class: "empty" }, "No indexer node has been heard. Start one: ", make("code", {}, "python -m indexer"));
    return table(columns, nodes.map((one) => [
      [make("strong", {}, one.id), sub(one.url), one.zone ? sub(`zone ${one.zone}`) : null,
        sub(`protocol ${one.protocol}`),
        one.roles.length < 2 ? sub(`role ${one.roles.join()}`) : null, one.stopped ? sub(`${one.stopped} slices have stopped`, "error") : null,
        one.lost ? sub(`${one.lost} slices have lost their data`, "error") : null].filter(Boolean),
      [state(one.live || one.drain === "drained" ? one.drain || "live" : "lost"), one.live ? null : sub(one.drain),
        one.leaving ? sub(`${one.leaving} of its copies are LEAVING`) : null].filter(Boolean),
      number(one.slices), number(one.entries), bytes(one.memory), bytes(one.disk_free),
      one.heard_ms_ago === null ? "never" : `${duration(one.heard_ms_ago)} ago`,
    ]));
  });
}

function eventsPart() {
  show("events", events, () => {
    if (!events.length) return make("p", { class: "empty" }, "Nothing yet.");
    return make("ol", {}, ...[...events].reverse().map((one) => make("li", { class: one.level },
      make("time", { datetime: new Date(one.at).toISOString(), title: new Date(one.at).toLocaleString() },
        clock(one.at)), make("span", {}, one.text))));
  });
}

// --- asking ------------------------------------------------------------------------------------------------------------

class NeedsToken extends Error {}

async function ask(path) {
  const token = sessionStorage.getItem("token");
  const answer = await fetch(`v1/${path}`, { headers: token ? { Authorization: `Bearer ${token}` } : {}, cache: "no-store" });
  if (answer.status === 401 || answer.status === 403) throw new NeedsToken();
  if (!answer.ok && !(path === "health" && answer.status === 503)) {
    const { detail } = await answer.json().catch(() => ({}));
    throw Object.assign(new Error(`the coordinator answered ${answer.status} to /v1/${path}`), { detail });
  }
  return answer.json();
}

async function askEvents(term) {
  if (term !== eventsTerm) { events = []; eventsTerm = term; }
  const after = events.length ? events[events.length - 1].number : 0;
  events = [...events, ...(await ask(`events?after=${after}&limit=200`))].slice(-200);
}

function trouble(text) {
  const place = document.getElementById("trouble");
  place.textContent = text;
  place.hidden = !text;
}

async function refresh() {
  try {
    const [health, cluster, indexes, builds, nodes, stability] = await Promise.all(
      ["health", "cluster", "indexes", "builds", "nodes", "stability"].map(ask));
    await askEvents(cluster.term);
    await askMap(indexes);
    const facts = { health, indexes, builds, nodes, stability };
    document.getElementById("cluster").textContent = `${cluster.cluster}, term ${cluster.term}`;
    for (const part of [healthPart, glance, buildsPart, indexesPart, mapsPart, stabilityPart, nodesPart, eventsPart]) part(facts);
    document.getElementById("updated").textContent = `as of ${clock(cluster.now)}, by the coordinator's clock`;
    document.getElementById("token").hidden = true;
    trouble("");
    document.body.dataset.loaded = "yes";
  } catch (error) {
    const health = document.getElementById("health");
    health.className = "pill bad";
    if (error instanceof NeedsToken) {
      health.textContent = "token needed";
      document.getElementById("token").hidden = false;
    } else {
      health.textContent = "no answer";
      trouble(`The coordinator does not answer (${error.message}). What is below may be out of date; scans go on without it.`);
    }
  }
  setTimeout(refresh, document.hidden ? 5 * INTERVAL_MS : INTERVAL_MS);
}

document.getElementById("token").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", document.getElementById("token-value").value);
});
refresh();
