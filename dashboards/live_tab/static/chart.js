// Charts of lines: the swarm's figures over its whole time.
import { SERIES_COLOURS, clock, el, figure, hideTip, showTip, swatch } from "./elements.js";
import { state } from "./feed.js";

const NO_METRICS = "The host has no /metrics of vLLM: it tells nothing of its cache and queue.";
const SILENT = "The host's /metrics does not answer.";
export const CHARTS = [
  { title: "Time to first token", unit: "ms",
    lines: { ttft_p50_ms: "p50", ttft_p95_ms: "p95", ttft_p99_ms: "p99" } },
  { title: "Inter-token latency", unit: "ms",
    lines: { itl_p50_ms: "p50", itl_p95_ms: "p95", itl_p99_ms: "p99" } },
  { title: "Requests", unit: "/s", lines: { requests_per_s: "served", failed_per_s: "failed" } },
  { title: "Output tokens", unit: "/s", lines: { output_tokens_per_s: "tokens" } },
  { title: "Requests within the objective", unit: "%", scale: 100, top: 100, objective: true,
    lines: { goodput_share: "" } },
  { title: "Prompt tokens from cache", unit: "%", scale: 100, top: 100, engine: true,
    lines: { hit_rate: "prefix cache", external_hit_rate: "external cache",
      told_hit_rate: "as the replies tell" } },
  { title: "KV cache in use", unit: "%", scale: 100, top: 100, engine: true,
    lines: { kv_cache_usage: "of the engine's blocks" } },
  { title: "Requests in the engine", unit: "", engine: true,
    lines: { running: "running", waiting: "waiting" } },
  { title: "Lag of the load generator", unit: "ms", limit: true,
    lines: { loop_lag_p99_ms: "event loop, p99", send_lateness_p99_ms: "late sends, p99" } },
];

const HEIGHT = 150, LEFT = 42, RIGHT = 8, TOP = 8, BOTTOM = 18;

export class Chart {
  constructor(spec) {
    this.spec = spec;
    this.legend = el("div", { class: "kv-legend" });
    this.plot = el("div", { class: "kv-plot" });
    const unit = spec.unit ? ` (${spec.unit})` : "";
    this.node = el("figure", { class: "kv-chart", "data-chart": spec.title },
      el("figcaption", {}, spec.title + unit), this.legend, this.plot);
    this.plot.addEventListener("mousemove", (event) => this.point(event));
    this.plot.addEventListener("mouseleave", hideTip);
  }

  draw() {
    const { columns, server, slo } = state.last;
    this.node.hidden = Boolean(this.spec.objective && !slo);
    if (this.node.hidden) return;
    const lines = this.lines(columns);
    const known = lines.some((line) => line.values.some((value) => value !== null));
    this.plot.replaceChildren();
    this.legend.replaceChildren();
    if (!known) {
      const why = !this.spec.engine || server === "metrics" ? "Nothing measured yet."
        : server === "none" ? NO_METRICS : SILENT;
      this.plot.append(el("p", { class: "kv-empty" }, why));
      return;
    }
    const shown = lines.filter((line) => line.values.some((value) => value !== null));
    for (const line of shown) this.legend.append(swatch(line.colour, line.name,
      figure(line.values.findLast((value) => value !== null))));
    this.frame(columns, shown);
  }

  lines(columns) {
    const { lines, scale = 1 } = this.spec;
    const all = Object.entries(lines).map(([column, name], index) => {
      const at = columns.indexOf(column);
      const values = state.rows.map((row) => (row[at] === null ? null : row[at] * scale));
      return { name: name || state.last.slo, values, colour: SERIES_COLOURS[index] };
    });
    // The replies speak of the same cache: they are heard where the engine is silent.
    return lines.told_hit_rate && all[0].values.some((value) => value !== null)
      ? all.slice(0, 2) : all;
  }

  frame(columns, lines) {
    const width = Math.max(this.plot.clientWidth, 200);
    const at = columns.indexOf("at_s");
    const times = state.rows.map((row) => row[at]);
    const limit = this.spec.limit ? state.last.max_lag_ms : null;
    let top = this.spec.top || 0;
    if (!top) for (const { values } of lines) top = Math.max(top, ...values);
    top = top || 1;
    const yStep = roundStep(top, 4);
    top = this.spec.top || Math.ceil(top / yStep) * yStep;
    const start = times[0], span = Math.max(times[times.length - 1] - start, 10);
    this.x = (time) => LEFT + ((time - start) / span) * (width - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
    const svg = el("svg", { width, height: HEIGHT, role: "img", "aria-label": this.spec.title });
    for (let tick = 0; tick <= top * 1.0001; tick += yStep) {
      svg.append(el("line", { class: "kv-grid-line", x1: LEFT, x2: width - RIGHT,
        y1: y(tick), y2: y(tick) }));
      svg.append(el("text", { x: LEFT - 5, y: y(tick) + 3.5, "text-anchor": "end" },
        figure(+tick.toPrecision(6))));
    }
    const xStep = timeStep(span);
    for (let tick = Math.ceil(start / xStep) * xStep; tick <= start + span; tick += xStep) {
      svg.append(el("text", { x: this.x(tick), y: HEIGHT - 4, "text-anchor": "middle" },
        clock(tick)));
    }
    if (limit && limit <= top) svg.append(el("line", { class: "kv-limit", x1: LEFT,
      x2: width - RIGHT, y1: y(limit), y2: y(limit) }));
    for (const line of lines) svg.append(el("path", { class: "kv-line", stroke: line.colour,
      "data-line": line.name, d: path(times, line.values, this.x, y) }));
    this.cursor = el("line", { class: "kv-cursor", y1: TOP, y2: HEIGHT - BOTTOM });
    svg.append(this.cursor);
    this.plot.append(svg);
    this.shown = { times, lines };
  }

  point(event) {
    if (!this.shown || !this.plot.querySelector("svg")) return;
    const { times, lines } = this.shown;
    const x = event.clientX - this.plot.getBoundingClientRect().left;
    let near = 0;
    times.forEach((time, index) => {
      if (Math.abs(this.x(time) - x) < Math.abs(this.x(times[near]) - x)) near = index;
    });
    for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, this.x(times[near]));
    const told = lines.map((line) =>
      `${line.name} ${figure(line.values[near])} ${this.spec.unit}`);
    showTip(event, [clock(times[near]), ...told]);
  }
}

function path(times, values, x, y) {
  let d = "", pen = false;
  values.forEach((value, index) => {
    if (value !== null) {
      const here = `${x(times[index]).toFixed(1)} ${y(value).toFixed(1)}`;
      d += pen ? `L${here}` : `M${here}h0`;
    }
    pen = value !== null;
  });
  return d;
}

function roundStep(span, most) {
  const rough = span / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
}

function timeStep(span_s) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600];
  return steps.find((step) => span_s / step <= 6) || 3600 * Math.ceil(span_s / 6 / 3600);
}
