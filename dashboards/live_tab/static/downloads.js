// On Locust's page of downloads, a table of ours that holds nothing is no link and says why.
import { el } from "./elements.js";

const PATH = "./kvswarm/csv/";
let busy = false;

export async function markDownloads() {
  const links = [...document.querySelectorAll(`a[href^="${PATH}"], a[data-kv-href]`)];
  if (busy || !links.length) return;
  busy = true;
  try {
    const missing = await (await fetch("./kvswarm/tables")).json();
    for (const link of links) mark(link, missing);
  } catch {
    // Without an answer they stay as they are: whoever follows one is told.
  }
  setTimeout(() => {
    busy = false;
    markDownloads();
  }, 1000);
}

function mark(link, missing) {
  const href = link.dataset.kvHref || link.getAttribute("href");
  const why = missing[href.slice(PATH.length, -".csv".length)] || "";
  if (why === (link.dataset.kvWhy || "")) return;
  Object.assign(link.dataset, { kvHref: href, kvWhy: why });
  link.querySelector("i")?.remove();
  link.setAttribute("aria-disabled", Boolean(why));
  if (!why) return link.setAttribute("href", href);
  link.removeAttribute("href");
  return link.append(el("i", {}, ` – ${why}`));
}
