// The scene of this tab. The library runs the scene in this page, unless the scene uses Redis. A
// scene that uses Redis runs in the server, which sends its events in a stream.

import { problem } from "./dom.js";
import { lab, served } from "./library.js";

export const scene = {
  now: undefined,    // the latest announcement of the settings
  frame: undefined,  // the latest frame
  arrived: 0,        // when that frame arrived, in ms
  // speed is the speed of the scene's clock. The clock of Redis always has speed 1.
  get speed() { return this.now.settings.redis ? 1 : this.now.settings.speed; },
};

let on;               // the handlers of events
let ask, close;       // functions that send a command to the open scene, and close the scene
let link;             // the link with which the scene was opened

// listen sets the handlers of events, and opens the scene of a link.
export async function listen(query, handlers) {
  on = handlers;
  await lab();
  dispatchEvent(new Event("library")); // start.js hears it
  connect(query);
}

// connect closes the open scene, if there is one, and opens the scene of a link.
export function connect(query) {
  close?.();
  link = query;
  const wanted = new URLSearchParams(query);
  if (wanted.get("store") === "redis" && !served) {
    problem("This page has no server, and so no Redis. The counts are in memory. With go run -C _examples ./playground there is a Redis.");
    wanted.delete("store");
  }
  (wanted.get("store") === "redis" ? stream : local)(wanted);
}

// command sends a command to the scene. Commands arrive in the order of the calls.
let commands = Promise.resolve();
export function command(what, params) {
  if (what === "set" && (params.store === "redis") !== scene.now.settings.redis) {
    connect(new URLSearchParams(params).toString());
    return commands;
  }
  const body = new URLSearchParams(params);
  body.set("do", what);
  return commands = commands.then(() => ask(body)).catch(() => {}); // the stream reports the failure, too
}

// answers returns the HTTP responses that an algorithm gives to the latest request, one in each
// dialect.
export async function answers(algorithm) {
  if (!scene.now.settings.redis) return JSON.parse((await lab()).answers(algorithm));
  const response = await fetch(`scenes/${scene.now.id}/answers/${algorithm}`);
  return response.ok ? response.json() : [];
}

async function local(query) {
  const weir = await lab();
  const mistake = weir.open(query.toString());
  if (mistake) {
    refused(`This link is not a scene. ${mistake}.`);
    return;
  }
  const tell = () => { for (const { name, data } of JSON.parse(weir.events()) ?? []) take[name](data); };
  let timer;
  const end = new AbortController(), run = () => { // a hidden page decides nothing
    clearInterval(timer);
    if (!document.hidden) timer = setInterval(tell, 100);
  };
  document.addEventListener("visibilitychange", run, { signal: end.signal });
  run();
  close = () => {
    clearInterval(timer);
    end.abort();
  };
  ask = (body) => {
    const mistake = weir.do(body.toString());
    if (mistake) problem(mistake);
    tell();
  };
  tell();
}

let lost = false;
function stream(query) {
  const events = new EventSource("scenes?" + query);
  close = () => events.close();
  for (const name of Object.keys(take)) events.addEventListener(name, (e) => take[name](JSON.parse(e.data)));
  events.onerror = () => {
    close();
    lost = true;
    problem("The server is gone. Trying again.");
    setTimeout(() => connect(scene.now?.link ?? link), 1500);
  };
  ask = async (body) => {
    const response = await fetch(`scenes/${scene.now.id}`, { method: "POST", body });
    if (!response.ok) problem(await response.text());
  };
}

// What to do with each event of a scene.
const take = {
  scene(announced) {
    if (lost) problem("");
    lost = false;
    const before = scene.now;
    scene.now = announced;
    if (announced.fresh) scene.frame = undefined;
    if (before?.link !== announced.link) history.replaceState(null, "", announced.link ? "#" + announced.link : location.pathname);
    on.scene(announced);
  },
  frame(frame) {
    scene.frame = frame;
    scene.arrived = performance.now();
    on.frame(frame);
  },
  problem,
  refused,
};

function refused(text) {
  close?.();
  problem(text);
  if (link) connect("");
}
