// The scene of this tab. The library runs it in this page; a scene in Redis is
// run by the server, which tells of it in a stream.

import { problem } from "./dom.js";
import { library, served } from "./library.js";

export const scene = {
  now: undefined,    // as it was announced last
  frame: undefined,  // the latest
  arrived: 0,        // when it did, in ms
  // speed is that of its clock. Redis' has its own.
  get speed() { return this.now.settings.redis ? 1 : this.now.settings.speed; },
};

let on;               // what to do with each event
let ask, close;       // of the scene that is open
let link;             // of the scene, as it was asked for

// listen says what is done with events, and opens the scene of a link.
export async function listen(query, handlers) {
  on = handlers;
  await library();
  connect(query);
}

// connect opens a scene in place of the one there is.
export function connect(query) {
  close?.();
  link = query;
  const wanted = new URLSearchParams(query);
  if (wanted.get("store") === "redis" && !served) {
    problem("This page has no server, and so no Redis: go run ./_examples/playground has. Memory keeps the counts.");
    wanted.delete("store");
  }
  (wanted.get("store") === "redis" ? stream : local)(wanted);
}

// command asks the scene for something. Commands arrive in the order in which
// they were given.
let commands = Promise.resolve();
export function command(what, params) {
  if (what === "set" && (params.store === "redis") !== scene.now.settings.redis) {
    connect(new URLSearchParams(params).toString());
    return commands;
  }
  const body = new URLSearchParams(params);
  body.set("do", what);
  return commands = commands.then(() => ask(body)).catch(() => {}); // the stream says so too
}

// answers are what the latest request of an algorithm was answered.
export async function answers(algorithm) {
  if (!scene.now.settings.redis) return JSON.parse((await library()).answers(algorithm));
  const response = await fetch(`scenes/${scene.now.id}/answers/${algorithm}`);
  return response.ok ? response.json() : [];
}

async function local(query) {
  const weir = await library();
  const mistake = weir.open(query.toString());
  if (mistake) {
    refused(`This link is not a scene. ${mistake}.`);
    return;
  }
  const tell = () => { for (const { name, data } of JSON.parse(weir.events()) ?? []) take[name](data); };
  const timer = setInterval(tell, 100);
  close = () => clearInterval(timer);
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

// What a scene tells.
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
