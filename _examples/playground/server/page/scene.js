// The scene that the server has for this tab.

import { problem } from "./dom.js";

export const scene = {
  now: undefined,    // as it was announced last
  frame: undefined,  // the latest
  arrived: 0,        // when it did, in ms
  // speed is that of its clock. Redis' has its own.
  get speed() { return this.now.settings.redis ? 1 : this.now.settings.speed; },
};

let stream, lost = false;

// connect opens a scene in place of the one there is. on has what to do with
// each event.
export function connect(query, on) {
  stream?.close();
  stream = new EventSource("scenes?" + query);
  const listen = (name, f) => stream.addEventListener(name, (e) => f(JSON.parse(e.data)));
  listen("scene", (announced) => {
    if (lost) problem("");
    lost = false;
    const before = scene.now;
    scene.now = announced;
    if (announced.fresh) scene.frame = undefined;
    if (before?.link !== announced.link) history.replaceState(null, "", announced.link ? "#" + announced.link : location.pathname);
    on.scene(announced);
  });
  listen("frame", (frame) => {
    scene.frame = frame;
    scene.arrived = performance.now();
    on.frame(frame);
  });
  listen("problem", problem);
  listen("refused", (text) => {
    stream.close();
    problem(text);
    if (query) connect("", on);
  });
  stream.onerror = () => {
    stream.close();
    lost = true;
    problem("The server is gone. Trying again.");
    setTimeout(() => connect(scene.now?.link ?? query, on), 1500);
  };
}

// command asks the server for something. Commands arrive in the order in which
// they were given.
let commands = Promise.resolve();
export function command(what, params) {
  commands = commands.then(async () => {
    const body = new URLSearchParams(params);
    body.set("do", what);
    const response = await fetch(`scenes/${scene.now.id}`, { method: "POST", body });
    if (!response.ok) problem(await response.text());
  }).catch(() => {}); // the stream says so too
  return commands;
}
