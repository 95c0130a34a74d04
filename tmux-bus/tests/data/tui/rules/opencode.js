// Stores the events of an opencode session as files: written under a dot name, then renamed.
import fs from "node:fs"
import path from "node:path"
const folder = process.env.TMUX_BUS_HOOKS
const cap = 8 * 1024 * 1024
let n = 0
function store(event, value) {
  try {
    const text = JSON.stringify(value)
    if (text.length > cap) return store(event, { ...value, text: undefined, too_long: text.length })
    const name = `${event}.${process.pid}.${n++}`
    const part = path.join(folder, "." + name)
    fs.writeFileSync(part, text, { mode: 0o600 })
    fs.renameSync(part, path.join(folder, name + ".json"))
  } catch {}
}
export const TmuxBus = async ({ client }) => {
  if (!folder) return {}
  store("load", { pid: process.pid })
  return {
    "chat.message": async (input, output) => {
      store("prompt", { session: input.sessionID, message: output.message?.id, text: output.parts.filter((p) => p.type === "text" && !p.synthetic).map((p) => p.text).join("") , parts: output.parts.map(p=>({type:p.type,synthetic:p.synthetic}))})
    },
    event: async ({ event }) => {
      const p = event.properties ?? {}
      if (process.env.TMUX_BUS_TRACE) store("trace", event)
      if (event.type === "session.idle") {
        const answer = await client.session.messages({ path: { id: p.sessionID } })
        const all = answer.data ?? []
        const last = all[all.length - 1]
        const user = all.filter((m) => m.info.role === "user").pop()
        const text = (m) => m?.parts.filter((x) => x.type === "text" && !x.synthetic).map((x) => x.text).join("")
        store("idle", { session: p.sessionID, parent: last?.info.parentID, user: user?.info.id, prompt: text(user), role: last?.info.role, finish: last?.info.finish, error: last?.info.error, text: text(last) })
      } else if (/^(permission|question|session\.(status|error|created))/.test(event.type)) store(event.type, p)
    },
  }
}
