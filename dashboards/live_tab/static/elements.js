// Pieces that all parts of the tab are made of. What others have named (contexts, errors) is only
// ever set as text. Text and lines have the page's own colour, so that its theme needs no notice.
import { state } from "./feed.js";

export const CONTEXT_COLOURS = [
  "#3876ee", "#cd7a00", "#00a27e", "#df60b2", "#d13904", "#3a98cf", "#7f5ab2", "#55771b",
  "#b93f63", "#249aa4", "#a86649", "#585cd5", "#44a11f", "#ea5c76", "#b15098", "#779458",
];
const NO_CONTEXT_COLOUR = "#848d97";
export const SERIES_COLOURS = ["#3876ee", "#cd7a00", "#00a27e"];

const SVG = new Set(["svg", "path", "line", "text", "rect"]);
export function el(name, attributes = {}, ...children) {
  const node = SVG.has(name)
    ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

export function swatch(colour, name, value = "") {
  const box = el("span", { class: "kv-swatch", style: `background:${colour}` });
  return el("span", { class: "kv-key" }, box, name, el("b", {}, value));
}

export function colourOf(number) {
  return state.names.get(number) === "" ? NO_CONTEXT_COLOUR
    : CONTEXT_COLOURS[number % CONTEXT_COLOURS.length];
}

export function nameOf(number) {
  return state.names.get(number) || "no context";
}

export function figure(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 100) return String(Math.round(value));
  const short = +value.toPrecision(3);
  // A share short of the whole is not told as all.
  return String(short < 100 ? short : Math.min(+value.toFixed(2), 99.99));
}

export function clock(at_s) {
  const whole = Math.max(0, Math.round(at_s));
  const two = (value) => String(value).padStart(2, "0");
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

// The tip beside the pointer.
export const tip = el("div", { class: "kv-tip", hidden: "" });

export function showTip(event, lines) {
  tip.replaceChildren(...lines.map((line) => el("div", {}, line)));
  tip.hidden = false;
  tip.style.background = getComputedStyle(document.body).backgroundColor;
  const right = event.clientX + 14 + tip.offsetWidth > window.innerWidth;
  tip.style.left = `${right ? event.clientX - 14 - tip.offsetWidth : event.clientX + 14}px`;
  const low = event.clientY + 14 + tip.offsetHeight > window.innerHeight;
  tip.style.top = `${low ? event.clientY - 14 - tip.offsetHeight : event.clientY + 14}px`;
}

export function hideTip() {
  tip.hidden = true;
}
