// The story: starts every scene, and plays the one that the reader looks at.

import { bucket } from "./bucket.js";
import { Chat } from "./chat.js";
import { edge } from "./edge.js";
import { log } from "./log.js";
import { several, waiting } from "./more.js";
import { Replicas } from "./replicas.js";
import { Tape } from "./tape.js";
import { weighted } from "./weighted.js";
import { epoch, ready } from "./world.js";

const still = matchMedia("(prefers-reduced-motion: reduce)");
const scenes = {};

// A scene begins to play when much of it comes into view for the first time, unless the reader
// prefers reduced motion. It pauses when it leaves the view.
const watch = new IntersectionObserver((entries) => {
  for (const { target, intersectionRatio, intersectionRect, rootBounds } of entries) {
    const scene = scenes[target.id];
    if (intersectionRatio < 0.4 && intersectionRect.height < rootBounds.height / 2) scene.pause();
    else if (!still.matches && !scene.begun) {
      scene.begun = true;
      if (!new URLSearchParams(location.search).has("still")) (scene.start ?? scene.play).call(scene);
    }
  }
}, { threshold: [0, 0.1, 0.2, 0.3, 0.4] });

function show(id, scene) {
  scenes[id] = scene;
  watch.observe(document.getElementById(id));
}

async function tell() {
  await ready();
  document.getElementById("loading").remove();
  show("chat", new Chat());
  const first = performance.now();
  for (const scene of [edge, log, weighted, bucket, waiting, several]) {
    await new Promise((next) => setTimeout(next)); // meanwhile the browser paints the scene before
    show(scene.id, new Tape(scene));
  }
  const replicas = new Replicas();
  await replicas.ready;
  show("replicas", replicas);
  globalThis.playground = { first, ready: performance.now(), scenes, epoch }; // for tests
}

tell().catch((e) => {
  document.getElementById("loading").textContent = `The pictures cannot be drawn. ${e.message}`;
});
