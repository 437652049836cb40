// Starts the first picture, which needs no library at first, before the other scripts are loaded.

import { Gates } from "./gates.js";

async function begin() {
  while (!document.querySelector("#gate .why")) await new Promise((next) => requestAnimationFrame(next));
  const gate = new Gates();
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches || new URLSearchParams(location.search).has("still") || location.hash.includes("?");
  if (!still) gate.play();
  return { gate, at: performance.now() };
}

export const first = begin();
