// Reserves tokens with weir serve before a call of a language model, and settles what it has used.
//
// node reserve.mjs, with the address of -auth-addr in WEIR.
const weir = process.env.WEIR ?? 'http://localhost:9090'

// Limited is thrown if the units are not available. retryAfter is in seconds, or null if waiting does
// not help.
class Limited extends Error {
  constructor(retryAfter) {
    super(`limited, retry after ${retryAfter} s`)
    this.retryAfter = retryAfter && Number(retryAfter)
  }
}

async function call(path, body) {
  const response = await fetch(weir + path, { method: 'POST', body: JSON.stringify(body), signal: AbortSignal.timeout(2000) })
  if (response.status === 429) throw new Limited(response.headers.get('Retry-After'))
  if (!response.ok) throw new Error(`${response.status} ${await response.text()}`)
  return response.json()
}

// reserved calls f with a reservation, which has draw and units, and settles the units that f returns.
async function reserved(rule, key, units, f) {
  const r = await call('/reserve', { rule, key, units })
  r.draw = async (more) => Object.assign(r, await call('/draw', { id: r.id, units: more }))
  let used
  try {
    used = await f(r)
  } finally {
    for (let attempt = 0; attempt < 3; attempt++) { // a settlement may come twice, but counts once
      try {
        await call('/settle', { id: r.id, used: used ?? r.units })
        break
      } catch {
        await new Promise((done) => setTimeout(done, 1000 * attempt))
      }
    }
  }
}

await reserved('tokens', 'acme', 60, async (r) => {
  await r.draw(20)
  return 50 // as the model's answer says
})
await reserved('tokens', 'acme', 50, async () => 50)
try {
  await reserved('tokens', 'acme', 1, async () => 1)
} catch (e) {
  console.log('reserved 60 and 20, used 50; reserved 50, used 50; then limited:', e.retryAfter !== null)
}
