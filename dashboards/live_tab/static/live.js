// The tab "KV cache" of Locust's page.
import { CHARTS, Chart } from "./chart.js";
import { Table } from "./contexts.js";
import { markDownloads } from "./downloads.js";
import { el, tip } from "./elements.js";
import { ask, state } from "./feed.js";
import { Timeline } from "./timeline.js";

const TITLE = "KV cache";

const warnings = el("div"), about = el("dl", { class: "kv-about" });
const charts = CHARTS.map((spec) => new Chart(spec));
const timeline = new Timeline(), table = new Table();
const parts = [timeline, ...charts, table];
const tab = el("section", { id: "kvswarm-live", "aria-label": TITLE }, warnings, about,
  el("div", { class: "kv-grid" }, ...parts.map((part) => part.node)), tip);

/** One node for each item, made anew only where they have changed: alerts are read aloud. */
function show(place, items, nodeOf) {
  const now = JSON.stringify(items);
  if (place.dataset.shown === now) return;
  place.dataset.shown = now;
  place.replaceChildren(...items.map(nodeOf));
}

/** Draw what the last answer has changed: an hour of rows is dear to draw. */
function draw(everything) {
  const said = [...(state.last ? state.last.warnings : []), state.trouble].filter(Boolean);
  show(warnings, said, (text) => el("p", { class: "kv-warning", role: "alert" }, text));
  if (!state.last) return;
  show(about, state.last.about, ([name, value]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, value)));
  if (everything || state.hasNewMarks) timeline.draw();
  if (everything || state.hasNewRows) for (const chart of charts) chart.draw();
  table.draw();
}

function isOpen() {
  const chosen = document.querySelector('[role="tab"][aria-selected="true"]');
  return Boolean(chosen) && chosen.textContent === TITLE;
}

/** Put the tab's content where Locust's own stands, or take it away. */
function place() {
  markDownloads();
  if (!isOpen()) return tab.remove();
  const home = document.querySelector('[role="tablist"]').closest(".MuiContainer-root");
  if (home && tab.parentNode !== home) {
    home.append(tab);
    for (const part of [timeline, ...charts]) part.hold(); // the pointer has come another way
    draw(true);
    refresh();
  }
  return undefined;
}

let asking = false, timer = 0;
async function refresh() {
  if (asking) return;
  clearTimeout(timer);
  if (tab.isConnected && !document.hidden) {
    asking = true;
    await ask();
    asking = false;
    if (tab.isConnected) draw(false);
  }
  timer = setTimeout(refresh, 1000);
}

document.head.append(el("link", { rel: "stylesheet", href: "./kvswarm/static/live.css" }));
new MutationObserver(place).observe(document.getElementById("root"),
  { childList: true, subtree: true, attributes: true, attributeFilter: ["aria-selected"] });
window.addEventListener("resize", () => { if (tab.isConnected) draw(true); });
place();
