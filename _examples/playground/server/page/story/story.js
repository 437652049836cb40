// The story: starts every scene, and plays the one that the reader looks at.

import "../boxes.js";
import { bucket } from "./bucket.js";
import { edge } from "./edge.js";
import { flights } from "./flights.js";
import { first } from "./first.js";
import { gcra } from "./gcra.js";
import { load } from "./load.js";
import { log } from "./log.js";
import { later } from "./later.js";
import { Outage } from "./outage.js";
import { light } from "./prose.js";
import { Replicas } from "./replicas.js";
import { retry } from "./retry.js";
import { Room } from "./room.js";
import { several } from "./several.js";
import { Tape } from "./tape.js";
import { waiting } from "./waiting.js";
import { weighted } from "./weighted.js";
import { attacked, Which } from "./which.js";
import { whose } from "./whose.js";
import { windows } from "./windows.js";
import { epoch } from "./world.js";

const still = matchMedia("(prefers-reduced-motion: reduce)");
const scenes = {};

// A scene begins to play when much of it comes into view for the first time, unless the reader
// prefers reduced motion. It pauses when it leaves the view, and goes on when it comes back if it
// played then.
const watch = new IntersectionObserver((entries) => {
  for (const { target, intersectionRatio, intersectionRect, rootBounds } of entries) {
    const scene = scenes[target.id];
    if (intersectionRatio < 0.4 && intersectionRect.height < rootBounds.height / 2) {
      scene.away ||= scene.playing;
      scene.pause();
    } else if (scene.away) {
      scene.away = false;
      scene.play();
    } else if (!still.matches && !scene.begun) {
      scene.begun = true;
      if (!new URLSearchParams(location.search).has("still") && !location.hash.includes("?")) scene.play();
    }
  }
}, { threshold: [0, 0.1, 0.2, 0.3, 0.4] });

function show(id, scene) {
  scenes[id] = scene;
  watch.observe(document.getElementById(id));
}

// loaded tells start.js that the library has been loaded, or why not.
const loaded = (why) => dispatchEvent(new CustomEvent("library", { detail: why }));

const pause = () => new Promise((next) => setTimeout(next)); // meanwhile the browser paints

async function tell() {
  const { gate, at, live } = await first;
  gate.begun = gate.playing;
  show("gate", gate);
  const usable = await live;
  loaded();
  document.getElementById("loading").remove();
  for (const scene of [edge, log, weighted, bucket, gcra, waiting, windows, whose, several, flights, retry, load]) {
    await pause();
    show(scene.id, new Tape(scene));
  }
  scenes.edge.won = (tape) => scenes.log.repeat(tape);
  await pause();
  show("chat", new Room());
  light(document.body);
  const rest = later(["replicas", "outage", "which"], (weir) => {
    show("replicas", new Replicas(weir));
    show("outage", new Outage(weir));
    playground.which = new Which(weir, { attack: attacked, yours: () => scenes.edge.requests.map((r) => r.t), clicks: () => scenes.gate.sent.map((t) => t - scenes.gate.sent[0]) });
    follow();
  });
  const follow = () => { // a link to a scene as its sender saw it
    const [id, query] = location.hash.slice(1).split("?"), { which } = playground, scene = /** @type {any} */ ({ ...scenes, which })[id];
    if (id === "which" && query && !which) rest();
    if (!query || !scene?.restore) return;
    scene.reset?.();
    scene.away = false;
    scene.restore();
    scene.root.scrollIntoView();
  };
  globalThis.playground = { first: at, usable, ready: performance.now(), scenes, epoch, rest }; // for tests
  addEventListener("hashchange", follow);
  follow();
}

tell().catch((e) => {
  console.error(e);
  loaded(e.message);
});
