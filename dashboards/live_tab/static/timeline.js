// Requests in the order of service, coloured by context.
import { CONTEXT_COLOURS, clock, colourOf, el, figure, hideTip, nameOf, showTip, swatch }
  from "./elements.js";
import { state } from "./feed.js";

const CELL_HEIGHT = 22, ROW_HEIGHT = 30, GUTTER = 48, MOST_ROWS = 16;
const CELL_WIDTHS = [28, 22, 18, 14, 11, 9];

export class Timeline {
  constructor() {
    this.same = el("span", { class: "kv-same" });
    this.key = el("div", { class: "kv-legend" });
    this.names = el("div", { class: "kv-legend", "data-part": "contexts" });
    this.plot = el("div", { class: "kv-plot kv-timeline" });
    this.node = el("figure", { class: "kv-chart kv-wide", "data-chart": "timeline" },
      el("figcaption", {}, "Requests in the order they were served", this.same),
      this.key, this.names, this.plot);
    this.plot.addEventListener("mousemove", (event) => this.hold(event));
    this.plot.addEventListener("mouseleave", () => this.hold());
  }

  draw() {
    for (const part of [this.same, this.key, this.names, this.plot]) part.replaceChildren();
    if (!state.marks.length) {
      this.plot.append(el("p", { class: "kv-empty" }, "No request has been served yet."));
      return;
    }
    this.layOut();
    this.drawKeys();
    this.drawNames();
    this.drawSame();
    this.drawCells();
    if (this.held) this.hold(this.held);
  }

  layOut() {
    const room = Math.max(this.plot.clientWidth, 300) - GUTTER;
    const batch = state.last.batch_size;
    const columnsOf = (width) => {
      const most = Math.floor(room / width);
      return batch && batch <= most ? most - (most % batch) : most;
    };
    this.width = CELL_WIDTHS.find(
      (width) => state.marks.length <= columnsOf(width) * MOST_ROWS / 2,
    ) || CELL_WIDTHS[CELL_WIDTHS.length - 1];
    this.columns = columnsOf(this.width);
    this.width = room / this.columns;
    // Rows begin at the same requests whatever was forgotten before them.
    const oldest = state.nextMark - state.marks.length;
    const least = Math.max(oldest, state.nextMark - MOST_ROWS * this.columns);
    this.first = Math.ceil(least / this.columns) * this.columns;
    this.shown = state.marks.slice(this.first - oldest);
  }

  drawKeys() {
    this.key.append(el("span", {}, "A box is a request:"));
    const untold = this.shown.some((mark) => mark[3] === null && !mark[5]);
    if (untold && this.shown.every((mark) => mark[3] === null)) {
      this.key.append("the host does not tell what came from its cache");
      return;
    }
    const told = [[0, "prompt computed anew"], [0.5, "half of it from cache"],
      [1, "all from cache"], ...(untold ? [[null, "not told"]] : [])];
    for (const [share, text] of told) {
      this.key.append(el("span", { class: "kv-key" }, glyph(share), text));
    }
  }

  drawNames() {
    const numbers = [...new Set(this.shown.map((mark) => mark[0]))].sort((a, b) => a - b);
    const most = CONTEXT_COLOURS.length;
    const named = numbers.slice(0, most).map((number) =>
      swatch(colourOf(number), nameOf(number)));
    this.names.append(el("span", {}, "Its context:"), ...named);
    if (numbers.length > most) this.names.append(el("span", {},
      `and ${numbers.length - most} more: colours return, a gap parts neighbours`));
  }

  drawSame() {
    const pairs = this.shown.length - 1;
    const same = this.shown.filter((mark, at) => at && mark[0] === this.shown[at - 1][0]).length;
    if (pairs > 0) this.same.append(
      `${Math.round((100 * same) / pairs)} % follow a request of the same context`);
  }

  drawCells() {
    const rows = Math.ceil(this.shown.length / this.columns);
    const svg = el("svg", { width: GUTTER + this.columns * this.width,
      height: rows * ROW_HEIGHT, role: "img", "aria-label": "context timeline" });
    for (let at = 0; at < this.shown.length; at += this.columns) {
      const y = (at / this.columns) * ROW_HEIGHT + CELL_HEIGHT / 2 + 5;
      svg.append(el("text", { x: GUTTER - 6, y, "text-anchor": "end" },
        clock(this.shown[at][1])));
    }
    for (const [number, { count, computed, cached, untold }] of this.outlines()) {
      const fill = colourOf(number);
      svg.append(el("path", { class: "kv-mark kv-computed", d: computed, fill, stroke: fill,
        "data-context": nameOf(number), "data-count": count }));
      svg.append(el("path", { class: "kv-cached", d: cached, fill }));
      svg.append(el("path", { class: "kv-untold", d: untold, fill }));
    }
    svg.append(el("path", { class: "kv-failed", d: this.crosses() }));
    this.plot.append(svg);
  }

  /** Of each context: how many boxes, their outlines, what is filled, what untold. */
  outlines() {
    const shapes = new Map();
    this.shown.forEach((mark, at) => {
      const [number, , , share, , outcome] = mark;
      const shape = shapes.get(number) || { count: 0, computed: "", cached: "", untold: "" };
      const [x, y, width] = this.place(at), high = CELL_HEIGHT * share;
      shape.count += 1;
      shape.computed += box(x, y, width, CELL_HEIGHT);
      if (high > 0) shape.cached += box(x, y + CELL_HEIGHT - high, width, high);
      if (share === null && !outcome) shape.untold += box(x, y, width, CELL_HEIGHT);
      shapes.set(number, shape);
    });
    return shapes;
  }

  crosses() {
    return this.shown.map((mark, at) => {
      const [x, y, width] = this.place(at);
      const inset = Math.min(2, width / 6), wide = width - 2 * inset;
      return mark[5] ? `M${x + inset} ${y + 6}l${wide} 10m0 -10l${-wide} 10` : "";
    }).join("");
  }

  /** Left, top and width of a box; it touches the next one where that has the same context. */
  place(at) {
    const [row, column] = [Math.floor(at / this.columns), at % this.columns];
    const next = column < this.columns - 1 ? this.shown[at + 1] : undefined;
    const gap = next && next[0] === this.shown[at][0] ? 0 : Math.min(4, this.width / 4);
    return [GUTTER + column * this.width, row * ROW_HEIGHT + 1, this.width - gap];
  }

  /** Tell of the box below the pointer, also once it is drawn anew. */
  hold(event) {
    this.held = event;
    if (!event) return hideTip();
    const { left, top } = this.plot.getBoundingClientRect();
    const column = Math.floor((event.clientX - left - GUTTER) / this.width);
    const row = Math.floor((event.clientY - top) / ROW_HEIGHT);
    const mark = column >= 0 && column < this.columns && this.shown
      ? this.shown[row * this.columns + column] : undefined;
    if (!mark) return hideTip();
    const [number, served_s, ttft_ms, share, id, outcome, error] = mark;
    const told = [nameOf(number), `request ${id}, served at ${clock(served_s)}`];
    if (ttft_ms !== null) told.push(`first token after ${figure(ttft_ms)} ms`);
    if (share !== null) told.push(`${figure(100 * share)} % of the prompt from cache`);
    if (outcome) told.push(outcome, error);
    return showTip(event, told);
  }
}

/** A box, filled as far as `share`. */
function glyph(share) {
  const svg = el("svg", { width: 16, height: 16, class: "kv-glyph" });
  svg.append(
    el("path", { class: "kv-computed", stroke: "currentColor", d: box(1, 1, 14, 14) }),
    el("path", share === null ? { class: "kv-untold", d: box(1, 1, 14, 14) }
      : { d: box(1, 15 - 14 * share, 14, 14 * share) }));
  return svg;
}

function box(x, y, width, height) {
  const [left, top, right, high] = [x, y, width, height].map((value) => +value.toFixed(1));
  return `M${left} ${top}h${right}v${high}h${-right}z`;
}
