-- The first part of every script.
--
-- KEYS[1]  the hash of the store:
--   id, token, version    identity, last token, number of changes
--   swept                 when expired entries were last removed
--   e:<session>           an entry: "data\nupdated\nttl\ntoken\nowner"; token 0 is none
--   s:<session>#<slot>    the entry of a named slot
--   w:<number>, waiters   a waiter: "expiry\nvalue\nvalue…"; the last number
-- KEYS[2]  the last request of a client and its answer
--
-- Times are milliseconds of the server's clock.
local key, request = KEYS[1], KEYS[2]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local LARGEST = 9007199254740991

local function int(number)
  return string.format('%.0f', number)
end

local function parse(text)
  local data, updated, ttl, token, owner =
    string.match(text, '^([^\n]*)\n(%d+)\n(%d+)\n(%d+)\n(.*)$')
  if not data then
    return nil
  end
  return {
    updated = tonumber(updated), ttl = tonumber(ttl), token = tonumber(token),
    owner = owner, data = data, text = text,
  }
end

local function format(updated, ttl, token, owner, data)
  return data .. '\n' .. int(updated) .. '\n' .. ttl .. '\n' .. int(token) .. '\n' .. owner
end

-- The time until an entry expires; negative if it has.
local function left(entry)
  return entry.ttl - math.max(0, now - entry.updated)
end

-- The live entry in a text, or nil.
local function live(text)
  local entry = text and parse(text)
  if entry and left(entry) >= 0 then
    return entry
  end
  return nil
end

-- Whether the client must first look whether the owner process of the own entry runs. Only the client
-- can, and an entry whose owner has ended is gone. `running` is an owner that it has looked at.
local function must_check(own, running)
  return own.owner ~= '' and own.owner ~= running and running ~= '*'
end

-- The session of a field.
local function session_of(field)
  if string.sub(field, 1, 2) == 'e:' then
    return string.sub(field, 3)
  end
  return string.match(field, '^s:(.*)#[^#]*$')
end

local function changed()
  redis.call('HINCRBY', key, 'version', 1)
  redis.call('PUBLISH', key, '')
end

-- Removes expired entries and waiters, and sets a time ahead of the clock to now, because such an
-- entry would live too long. Operations do not count expired entries, so once a minute is enough.
local SWEEP = 60000

local function sweep(swept)
  swept = tonumber(swept or '0')
  if swept <= now and now < swept + SWEEP then
    return
  end
  redis.call('HSET', key, 'swept', int(now))
  local is_changed = false
  local fields = redis.call('HGETALL', key)
  for at = 1, #fields, 2 do
    local field, text = fields[at], fields[at + 1]
    local kind = string.sub(field, 1, 2)
    if kind == 'e:' or kind == 's:' then
      local entry = live(text)
      if not entry then
        redis.call('HDEL', key, field)
        is_changed = true
      elseif entry.updated > now then
        local moved = format(now, int(entry.ttl), entry.token, entry.owner, entry.data)
        redis.call('HSET', key, field, moved)
      end
    elseif kind == 'w:' then
      local expiry = tonumber(string.match(text, '^(%d+)\n') or '0')
      if expiry < now then
        redis.call('HDEL', key, field)
      end
    end
  end
  if is_changed then
    changed()
  end
end

-- A request is executed once. A repeated one gets the remembered answer; one that is older than the
-- last was given up by its client, and arrives late. A WAIT that follows a repeated one counts for
-- the first execution too: it asks for the state of the log at the last command of its connection.
local MEMORY = 3600000

local function remembered(number)
  local last = redis.call('GET', request)
  if not last then
    return nil
  end
  local last_number, answer = string.match(last, '^(%d+)\n(.*)$')
  last_number = tonumber(last_number)
  if last_number == number then
    return cmsgpack.unpack(answer)
  elseif last_number > number then
    return { 'late' }
  end
  return nil
end

local function remember(number, answer)
  redis.call('SET', request, int(number) .. '\n' .. cmsgpack.pack(answer), 'PX', MEMORY)
  return answer
end
