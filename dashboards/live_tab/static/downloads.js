// On Locust's page of downloads, what of ours holds nothing is no link and says why. Beside the
// report stands the directory of its run.
import { el } from "./elements.js";

const LINKS = 'a[href^="./kvswarm/"], a[data-kv-href]';
const REPORT = "./kvswarm/report.html";
let busy = false;

export async function markDownloads() {
  const links = [...document.querySelectorAll(LINKS)];
  if (busy || !links.length) return;
  busy = true;
  try {
    const [missing, last] = await Promise.all([ask("tables"), ask("finished")]);
    for (const link of links) {
      const href = link.dataset.kvHref || link.getAttribute("href");
      if (href === REPORT) mark(link, href, last.report, last.directory && `of ${last.directory}`);
      else mark(link, href, missing[href.split("/").pop().slice(0, -".csv".length)] || "");
    }
  } catch {
    // Without an answer they stay as they are: whoever follows one is told.
  }
  setTimeout(() => {
    busy = false;
    markDownloads();
  }, 1000);
}

async function ask(name) {
  return (await fetch(`./kvswarm/${name}`)).json();
}

function mark(link, href, why, note = "") {
  const said = why || note;
  if (said === (link.dataset.kvSaid || "") && Boolean(why) !== link.hasAttribute("href")) return;
  Object.assign(link.dataset, { kvHref: href, kvSaid: said });
  link.querySelector("i")?.remove();
  link.setAttribute("aria-disabled", Boolean(why));
  if (why) link.removeAttribute("href");
  else link.setAttribute("href", href);
  if (said) link.append(el("i", {}, ` – ${said}`));
}
