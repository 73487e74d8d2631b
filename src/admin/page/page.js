// Fetches the page every few seconds and exchanges what has changed: no flicker, and a selection stays.
"use strict";
const EVERY = 3000;
const lost = document.getElementById("lost");

async function refresh() {
  try {
    const answer = await fetch("status", { cache: "no-store", signal: AbortSignal.timeout(10000) });
    if (!answer.ok) throw new Error(answer.statusText);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    const main = document.querySelector("main");
    if (next && getSelection().isCollapsed) {
      [...next.children].forEach((section, n) => {
        const before = main.children[n];
        if (!before) main.append(section.cloneNode(true));
        else if (!before.isEqualNode(section)) before.replaceWith(section.cloneNode(true));
      });
      while (main.children.length > next.children.length) main.lastElementChild.remove();
    }
    lost.hidden = true;
  } catch {
    lost.hidden = false;
  }
  setTimeout(refresh, EVERY);
}
setTimeout(refresh, EVERY);
