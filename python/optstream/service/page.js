"use strict";
// Shows what the service has released, and asks again every few seconds. Nothing is fetched from elsewhere.
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 480, HEIGHT = 160, LEFT = 4, BOTTOM = 16;
const EVERY = 3000;
const chosen = {};

function make(name, content, parent, attributes = {}, space = null) {
  const made = space ? document.createElementNS(space, name) : document.createElement(name);
  if (content !== null) made.textContent = content;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

function number(value) {
  return Number(value.toPrecision(4)).toLocaleString("en");
}

function duration(seconds) {
  if (seconds === null) return "no clock";
  if (seconds < 0) return "ahead of the clock";
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const [size, unit] = units.find(([size]) => seconds >= size) || [1, "s"];
  return `${Math.floor(seconds / size)} ${unit}`;
}

function chart(period, node, parent) {
  const of = (series) => (Array.isArray(series) ? series : series[node]);
  const values = of(period.values);
  const known = [...values, ...of(period.band.lower), ...of(period.band.upper)].filter((value) => value !== null);
  const least = Math.min(...known), most = Math.max(...known);
  // Where nothing is known yet the band has no end.
  const lower = of(period.band.lower).map((end) => end ?? least), upper = of(period.band.upper).map((end) => end ?? most);
  const spread = most - least || 1, count = values.length;
  const x = (step) => LEFT + (WIDTH - 2 * LEFT) * (count > 1 ? step / (count - 1) : 0.5);
  const y = (value) => 4 + (HEIGHT - BOTTOM - 8) * (1 - (value - least) / spread);
  const line = (series) => series.map((value, step) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`);
  const words = `Period ${period.period}: ${count} private values from ${number(Math.min(...values))} to ` +
    `${number(Math.max(...values))}, with bands of ${100 * period.band.level} %`;
  const picture = make("svg", null, parent, { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": words }, SVG);
  const around = [...line(upper), ...line(lower).reverse()].join(" ");
  make("polygon", null, picture, { class: "band", points: around }, SVG);
  make("polyline", null, picture, { class: "values", points: line(values).join(" ") }, SVG);
  make("text", `${number(least)} to ${number(most)}`, picture, { class: "axis", x: LEFT, y: HEIGHT - 3 }, SVG);
  const start = typeof period.start === "number" ? `step ${period.start}` : period.start;
  make("text", `from ${start}`, picture, { class: "axis", x: WIDTH - LEFT, y: HEIGHT - 3, "text-anchor": "end" }, SVG);
}

function choose(stream, parent) {
  const nodes = Object.keys(stream.last.values);
  if (!nodes.includes(chosen[stream.name])) chosen[stream.name] = nodes[0];
  const select = make("select", null, parent, { "aria-label": `Part of ${stream.name}` });
  for (const node of nodes) make("option", node, select, node === chosen[stream.name] ? { selected: "" } : {});
  select.addEventListener("change", () => { chosen[stream.name] = select.value; refresh(); });
  return chosen[stream.name];
}

function card(stream, parent) {
  const article = make("article", null, parent, { "data-stream": stream.name });
  make("h2", stream.name, article);
  if (stream.last === null) make("p", "Nothing is released yet.", article);
  else chart(stream.last, Array.isArray(stream.last.values) ? null : choose(stream, article), article);
  const list = make("dl", null, article);
  const row = (name, value, look = "") => {
    make("dt", name, list);
    make("dd", value, list, look ? { class: look } : {});
  };
  const allowed = stream.budget.policy.epsilon, left = stream.budget.least;
  row("last period", stream.released === null ? "none" : String(stream.released));
  row("open steps", `${stream.open_steps} of ${stream.w}`);
  row("behind the clock", duration(stream.lag_seconds));
  row("budget left", `${number(left.decimal)} of ${number(allowed.decimal)}`, left.decimal < 0 ? "low" : "");
  make("meter", null, article, {
    min: 0, max: allowed.decimal, value: Math.max(0, left.decimal), "aria-label": `budget left of ${stream.name}`,
  });
}

function tell(words, look) {
  const health = document.getElementById("health");
  health.textContent = words;
  health.className = look;
}

async function refresh() {
  const token = sessionStorage.getItem("token");
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  let answer;
  try {
    answer = await fetch("overview", { headers });
  } catch {
    tell("the service does not answer", "bad");
    return;
  }
  if (answer.status === 401) {
    sessionStorage.removeItem("token");
    document.getElementById("streams").replaceChildren();
    tell("the token is not known", "bad");
    return;
  }
  if (!answer.ok) {
    tell(`the service answers ${answer.status}`, "bad");
    return;
  }
  const content = await answer.json();
  const ok = content.health.status === "ok";
  tell(ok ? "the ledger is well" : `the ledger is not well: ${content.health.status}`, ok ? "ok" : "bad");
  if (document.activeElement && document.activeElement.tagName === "SELECT") return;
  const page = document.createDocumentFragment();
  for (const stream of content.streams) card(stream, page);
  if (!content.streams.length) make("p", "No stream may be read without a token.", page);
  document.getElementById("streams").replaceChildren(page);
  document.body.dataset.loaded = "yes";
}

document.getElementById("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", document.getElementById("token").value.trim());
  document.getElementById("token").value = "";
  refresh();
});
refresh();
setInterval(() => { if (!document.hidden) refresh(); }, EVERY);
