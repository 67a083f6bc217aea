// Charts of lines: the swarm's figures over its whole time.
import { SERIES_COLOURS, clock, el, figure, hideTip, showTip, swatch } from "./elements.js";
import { state } from "./feed.js";

export const CHARTS = [
  { title: "Time to first token", unit: "ms",
    few: true, lines: { ttft_p50_ms: "p50", ttft_p95_ms: "p95", ttft_p99_ms: "p99" } },
  { title: "Inter-token latency", unit: "ms",
    few: true, lines: { itl_p50_ms: "p50", itl_p95_ms: "p95", itl_p99_ms: "p99" } },
  { title: "Requests", unit: "/s", lines: { requests_per_s: "served", failed_per_s: "failed" } },
  { title: "Output tokens", unit: "/s", lines: { output_tokens_per_s: "tokens" } },
  { title: "Users", unit: "", lines: { users: "users" } },
  { title: "Requests within the objective", unit: "%", scale: 100, top: 100, objective: true,
    lines: { goodput_share: "" } },
  { title: "Prompt tokens from cache", unit: "%", scale: 100, top: 100, engine: true,
    lines: { hit_rate: "prefix cache", external_hit_rate: "external cache",
      told_hit_rate: "as the replies tell" } },
  { title: "KV cache in use", unit: "%", scale: 100, top: 100, engine: true, gauge: true,
    lines: { kv_cache_usage: "of the engine's blocks" } },
  { title: "Requests in the engine", unit: "", engine: true, gauge: true,
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
    this.cursor = el("line", { class: "kv-cursor", y1: TOP, y2: HEIGHT - BOTTOM });
    this.plot.addEventListener("mousemove", (event) => this.hold(event));
    this.plot.addEventListener("keydown", (event) => this.step(event));
    for (const end of ["mouseleave", "blur"]) this.plot.addEventListener(end, () => this.hold());
  }

  draw() {
    const { columns, engine_note: note, engine_age_s: age, slo } = state.last;
    this.node.hidden = Boolean(this.spec.objective && !slo);
    if (this.node.hidden) return;
    const lines = this.lines(columns);
    const shown = lines.filter((line) => line.values.some((value) => value !== null));
    this.plot.replaceChildren();
    this.legend.replaceChildren();
    this.shown = null;
    if (!shown.length) {
      const why = (this.spec.engine && note) || "Nothing measured yet.";
      this.plot.append(el("p", { class: "kv-empty" }, why));
      if (this.held) this.hold();
      return;
    }
    for (const line of shown) this.legend.append(
      swatch(line.colour, line.name, figure(line.values[line.values.length - 1])));
    if (this.spec.few && !shown[2]) this.legend.append("p95: 20 or more in 5 s, p99: 100");
    if (this.spec.gauge && age) this.legend.append(`the engine told nothing new for ${age} s`);
    this.frame(columns, shown);
    this.tell();
  }

  lines(columns) {
    const { lines, scale = 1 } = this.spec;
    const all = Object.entries(lines).map(([column, name], index) => {
      const at = columns.indexOf(column);
      const values = state.rows.map((row) => (row[at] === null ? null : row[at] * scale));
      return { name: name || state.last.slo, values, colour: SERIES_COLOURS[index] };
    });
    // Replies speak of the same cache: heard where the engine is silent.
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
    const yStep = Math.max(roundStep(top, 4), this.spec.unit ? 0 : 1); // halves of users are none
    top = this.spec.top || Math.ceil(top / yStep) * yStep;
    const start = times[0], span = Math.max(times[times.length - 1] - start, 10);
    this.x = (time) => LEFT + ((time - start) / span) * (width - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
    const svg = el("svg", { width, height: HEIGHT, "aria-hidden": true });
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
    this.plot.append(svg);
    this.shown = { times, lines };
    for (const [name, value] of Object.entries({ tabindex: 0, role: "slider",
      "aria-label": this.spec.title, "aria-valuemin": 0, "aria-valuemax": times.length - 1,
      "aria-valuenow": times.length - 1, "aria-valuetext": this.told(times.length - 1).join(", ") })) {
      this.plot.setAttribute(name, value);
    }
  }

  /** An arrow key goes on to the next point. */
  step({ key }) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[key];
    if (!by || !this.shown) return;
    const last = this.shown.times.length - 1;
    this.hold({ at: Math.min(Math.max((this.held?.at ?? last) + by, 0), last) });
  }

  /** Tell of the point below the pointer, or of that which the keys have reached, from now on. */
  hold(place) {
    this.held = place;
    if (place) return this.tell();
    this.cursor.remove();
    return hideTip();
  }

  tell() {
    if (!this.held || !this.shown) return;
    const { times } = this.shown, { left, top, width } = this.plot.getBoundingClientRect();
    let { at = 0, clientX, clientY } = this.held;
    at = Math.min(at, times.length - 1);
    if (clientX === undefined) [clientX, clientY] = [left + this.x(times[at]), top + TOP];
    const x = Math.min(Math.max(clientX - left, LEFT), width - RIGHT);
    times.forEach((time, index) => {
      if (Math.abs(this.x(time) - x) < Math.abs(this.x(times[at]) - x)) at = index;
    });
    for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, x);
    this.plot.firstChild.append(this.cursor);
    this.plot.setAttribute("aria-valuenow", at);
    this.plot.setAttribute("aria-valuetext", this.told(at).join(", "));
    showTip({ clientX, clientY }, this.told(at));
  }

  told(at) {
    return [clock(this.shown.times[at]), ...this.shown.lines.map((line) =>
      `${line.name} ${figure(line.values[at])} ${this.spec.unit}`)];
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
