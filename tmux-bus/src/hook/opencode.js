// Stores the events of an opencode session as files in the folder that the environment names. A file is written
// under a name with a dot and then renamed, so a reader never sees a part of it.
import fs from "node:fs"
import path from "node:path"

const folder = process.env.TMUX_BUS_HOOKS
const cap = 8 * 1024 * 1024
let n = 0

function store(event, value) {
  try {
    let json = JSON.stringify(value)
    if (Buffer.byteLength(json) >= cap) {
      const rest = { ...value, text: undefined, prompt: undefined }
      json = JSON.stringify({ ...rest, too_long: json.length })
    }
    if (Buffer.byteLength(json) >= cap) {
      // Something else than the text is long: only ids and other short values are left.
      const short = Object.entries(value).filter(([, field]) => typeof field === "string" && field.length <= 256)
      const error = value.error ? true : undefined
      json = JSON.stringify({ ...Object.fromEntries(short.slice(0, 64)), error, too_long: json.length })
    }
    const name = `${event}.${process.pid}.${n++}`
    const part = path.join(folder, "." + name)
    fs.writeFileSync(part, json, { mode: 0o600, flag: "wx" })
    fs.renameSync(part, path.join(folder, name + ".json"))
  } catch {
    // A session that has ended removes the folder. The agent must not fail because of it.
  }
}

// Synthetic parts are what opencode itself adds, such as the contents of a mentioned file.
const text = (parts) => (parts ?? []).filter((part) => part.type === "text" && !part.synthetic).map((part) => part.text).join("")

export const TmuxBus = async ({ client }) => {
  if (!folder) return {}
  store("load", { pid: process.pid })
  return {
    "chat.message": async (input, output) => {
      store("prompt", { session: input.sessionID, message: output.message?.id, text: text(output.parts) })
    },
    event: async ({ event }) => {
      const properties = event.properties ?? {}
      if (event.type === "session.idle") {
        const answer = await client.session.messages({ path: { id: properties.sessionID } })
        const last = (answer.data ?? []).at(-1)
        store("idle", {
          session: properties.sessionID,
          parent: last?.info.parentID,
          role: last?.info.role,
          finish: last?.info.finish,
          error: last?.info.error,
          text: text(last?.parts),
        })
      } else if (/^(permission|question|session\.error)/.test(event.type)) {
        store(event.type, properties)
      }
    },
  }
}
