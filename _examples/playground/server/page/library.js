// The library, compiled to WebAssembly: an object with the functions that wasm/main.go lists.

export let served = false; // whether the program of the playground serves this page; it has Redis

let loading;
export function library() { return loading ??= load(); }

// load fails with a sentence for the reader, and the console has the reason.
async function load() {
  let advice = "This browser is too old for it.";
  try {
    const unpacked = new DecompressionStream("gzip"); // the file is compressed, and no header field says so
    const { instantiateStreaming } = WebAssembly;
    advice = "Reload the page. If that does not help, something between the server and this page keeps weir.bin or wasm_exec.js back.";
    const script = import("./wasm_exec.js"), response = await fetch("weir.bin");
    script.catch(() => {}); // it is awaited below
    served = response.headers.has("Playground-Redis");
    if (served && !response.ok) advice = "The server could not compile it. Its log has the reason.";
    if (!response.ok) throw new Error(`weir.bin: status ${response.status}`);
    await script;
    const go = new Go();
    const { instance } = await instantiateStreaming(new Response(response.body.pipeThrough(unpacked), { headers: { "Content-Type": "application/wasm" } }), go.importObject);
    go.run(instance);
    globalThis.weir.memory = () => /** @type {any} */ (instance.exports.mem).buffer.byteLength; // for tests
    return globalThis.weir;
  } catch (cause) {
    console.error(cause);
    throw new Error(advice, { cause });
  }
}
