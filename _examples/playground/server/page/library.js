// The library, compiled to WebAssembly: an object with the functions that wasm/main.go lists.

export let served = false; // whether the program of the playground serves this page; it has Redis

let loading;
export function library() { return loading ??= load(); }

async function load() {
  const script = import("./wasm_exec.js"), response = await fetch("weir.bin");
  if (!response.ok) throw new Error(await response.text());
  await script;
  served = response.headers.has("Playground-Redis");
  // The file is compressed, and no header field says so.
  const body = response.body.pipeThrough(new DecompressionStream("gzip"));
  const go = new Go();
  const { instance } = await WebAssembly.instantiateStreaming(new Response(body, { headers: { "Content-Type": "application/wasm" } }), go.importObject);
  go.run(instance);
  globalThis.weir.memory = () => /** @type {any} */ (instance.exports.mem).buffer.byteLength; // for tests
  return globalThis.weir;
}
