// Starts the first picture, which needs no library at first, before the other scripts are loaded.

import { Gates } from "./gates.js";
import { ready } from "./world.js";

async function begin() {
  while (!document.querySelector("#gate .why")) await new Promise((next) => requestAnimationFrame(next));
  const gate = new Gates();
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches || new URLSearchParams(location.search).has("still") || location.hash.includes("?");
  if (!still) gate.play();
  const live = ready().then(() => { // before the other scripts are there
    gate.live();
    return performance.now();
  });
  live.catch(() => {}); // story.js says why
  return { gate, at: performance.now(), live };
}

export const first = begin();
