// The library, compiled to WebAssembly: an object with the functions that wasm/main.go lists, one
// that has those of wasm/story.go as well, and one that also has those of wasm/lab.go.

export let served = false; // whether the program of the playground serves this page; it has Redis

/** @type {Record<string, Promise<any>>} */
const loading = {};
export function library() { return loading.weir ??= load("weir.bin"); }
export function more() { return loading.more ??= load("more.bin"); }
export function lab() { return loading.lab ??= load("lab.bin"); }

// load fails with a sentence for the reader, and the console has the reason.
async function load(file) {
  let advice = "This browser is too old for it.";
  try {
    new DecompressionStream("gzip"); // most servers send the file as it is, compressed
    const { instantiateStreaming } = WebAssembly;
    advice = `Reload the page. If that does not help, something between the server and this page keeps ${file} or wasm_exec.js back.`;
    const script = import("./wasm_exec.js"), response = await fetch(file);
    script.catch(() => {}); // it is awaited below
    served = response.headers.has("Playground-Redis");
    if (served && !response.ok) advice = "The server could not compile it. Its log has the reason.";
    if (!response.ok) throw new Error(`${file}: status ${response.status}`);
    await script;
    const go = new Go();
    const { instance } = await instantiateStreaming(new Response(await unpacked(response.body), { headers: { "Content-Type": "application/wasm" } }), go.importObject);
    go.run(instance);
    const functions = globalThis.weir;
    functions.memory = () => /** @type {any} */ (instance.exports.mem).buffer.byteLength; // for tests
    return functions;
  } catch (cause) {
    console.error(cause);
    throw new Error(advice, { cause });
  }
}

// unpacked returns the program that a body has, compressed by gzip or not: a server may send a smaller
// copy, which the browser has unpacked.
async function unpacked(body) {
  const [head, whole] = body.tee(), reader = head.getReader(), { value } = await reader.read();
  reader.cancel();
  return value?.[0] === 0x1f ? whole.pipeThrough(new DecompressionStream("gzip")) : whole;
}
