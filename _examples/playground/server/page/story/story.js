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

// A scene plays once when it comes into view, unless the reader has asked for no
// motion. It stops when it leaves.
const watch = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const scene = scenes[target.id];
    if (!isIntersecting) scene.pause();
    else if (!still.matches && !scene.begun) {
      scene.begun = true;
      if (!new URLSearchParams(location.search).has("still")) (scene.start ?? scene.play).call(scene);
    }
  }
}, { threshold: 0.4 });

async function tell() {
  await ready();
  scenes.chat = new Chat();
  for (const scene of [edge, log, weighted, bucket, waiting, several]) scenes[scene.id] = new Tape(scene);
  scenes.replicas = new Replicas();
  await scenes.replicas.ready;
  document.documentElement.classList.add("ready");
  document.getElementById("loading").remove();
  for (const id of Object.keys(scenes)) watch.observe(document.getElementById(id));
  globalThis.playground = { ready: true, scenes, epoch }; // what a test reads
}

tell().catch((e) => {
  document.getElementById("loading").textContent = `The library does not run in this browser. ${e.message}`;
});
