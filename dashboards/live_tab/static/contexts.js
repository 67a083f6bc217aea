// The table of contexts.
import { colourOf, el, figure, swatch } from "./elements.js";
import { state } from "./feed.js";

const TABLE = ["Context", "Requests", "Failed", "TTFT p50 (ms)", "TTFT p95 (ms)", "From cache"];
const STORE = "kvswarm-sorted-by";
const FIELD = [0, 2, 3, 4, 5, 6]; // of a table row: where each column's value stands

export class Table {
  constructor() {
    [this.by, this.up] = JSON.parse(sessionStorage.getItem(STORE) || "[1, false]");
    this.heads = TABLE.map((title, column) => {
      const button = el("button", { type: "button" }, title);
      button.addEventListener("click", () => this.sort(column));
      return el("th", { scope: "col" }, button);
    });
    this.body = el("tbody");
    this.node = el("figure", { class: "kv-chart kv-wide", "data-chart": "contexts" },
      el("figcaption", {}, "Contexts"),
      el("table", { "aria-label": "Contexts" }, el("thead", {}, el("tr", {}, ...this.heads)), this.body));
  }

  sort(column) {
    this.up = this.by === column ? !this.up : column === 0;
    this.by = column;
    sessionStorage.setItem(STORE, JSON.stringify([this.by, this.up]));
    this.draw();
  }

  draw() {
    this.heads.forEach((head, column) => head.setAttribute("aria-sort",
      column !== this.by ? "none" : this.up ? "ascending" : "descending"));
    const rows = [...state.last.contexts].sort((one, other) => this.compare(one, other));
    this.body.replaceChildren(...rows.map((row) => this.row(row)));
  }

  compare(one, other) {
    if (one[0] === null || other[0] === null) return one[0] === null ? 1 : -1;
    const [a, b] = [one, other].map((row) => row[FIELD[this.by]]);
    if (a === null || b === null) return (a === null) - (b === null);
    return (a < b ? -1 : a > b ? 1 : 0) * (this.up ? 1 : -1);
  }

  row([name, number, requests, failed, p50, p95, share]) {
    const colour = number === null ? "transparent" : colourOf(number);
    const first = name === null ? "others" : name || "no context";
    const rest = [requests, failed, figure(p50), figure(p95),
      share === null ? "–" : `${figure(100 * share)} %`];
    return el("tr", {}, el("td", {}, swatch(colour, first)),
      ...rest.map((value) => el("td", {}, String(value))));
  }
}
