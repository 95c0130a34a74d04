-- Claims one of several values; the rules are those of store/decision.rs.
-- ARGV: request, field, session, ttl, owner, identity for a new store, 'join' or 'barge', ticket or
-- '', life of a ticket, values…
-- Answer: {'granted', index from 0, token, identity, text of the earlier entry},
-- {'busy', key of the holder, time left, ticket, field and text of each holder with an owner…},
-- {'queued', ticket}, {'exhausted'}, {'late'}.
local number, field, session = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local ttl, owner, is_join, ticket = ARGV[4], ARGV[5], ARGV[7] == 'join', ARGV[8]
local FIRST = 10
local known = remembered(number)
if known then
  return known
end
local entries, waiters, meta = load()

local own, others = nil, {}
local last_token = math.max(tonumber(meta.token or '0'), now)
for _, entry in ipairs(entries) do
  last_token = math.max(last_token, entry.token)
  if entry.field == field then
    own = entry
  end
  if session_of(entry.field) ~= session then
    local holders = others[entry.data] or {}
    holders[#holders + 1] = entry
    others[entry.data] = holders
  end
end

-- The values that earlier waiters want.
local ahead = {}
if is_join then
  for _, waiter in ipairs(waiters) do
    if ticket == '' or waiter.field < ticket then
      for value in string.gmatch(waiter.values, '[^\n]+') do
        ahead[value] = true
      end
    end
  end
end

local order = {}
for at = FIRST, #ARGV do
  if own and own.data == ARGV[at] then
    table.insert(order, 1, at)
  else
    order[#order + 1] = at
  end
end

local free, is_queued, soonest = nil, false, nil
for _, at in ipairs(order) do
  local value = ARGV[at]
  local last = nil
  for _, entry in ipairs(others[value] or {}) do
    if not last or left(entry) > left(last) then
      last = entry
    end
  end
  if last then
    if not soonest or left(last) < left(soonest) then
      soonest = last
    end
  elseif ahead[value] and not (own and own.data == value) then
    is_queued = true
  else
    free = at
    break
  end
end

if free then
  local value = ARGV[free]
  local token
  if own and own.data == value and own.token > 0 then
    token = own.token
  else
    token = last_token + 1
    if token > LARGEST then
      return remember(number, { 'exhausted' })
    end
    redis.call('HSET', key, 'token', int(token))
  end
  local id = meta.id
  if not id then
    id = ARGV[6]
    redis.call('HSET', key, 'id', id)
  end
  redis.call('HSET', key, field, format(now, ttl, token, owner, value))
  if ticket ~= '' then
    redis.call('HDEL', key, ticket)
  end
  -- A renewal frees no value and takes none.
  if not (own and own.data == value and own.token == token) then
    changed()
  end
  local text = own and own.text or ''
  return remember(number, { 'granted', int(free - FIRST), int(token), id, text })
end

if is_join then
  if ticket == '' then
    ticket = 'w:' .. string.format('%020.0f', redis.call('HINCRBY', key, 'waiters', 1))
  end
  local values = {}
  for at = FIRST, #ARGV do
    values[#values + 1] = ARGV[at]
  end
  redis.call('HSET', key, ticket, int(now + tonumber(ARGV[9])) .. '\n' .. table.concat(values, '\n'))
end
local answer
if is_queued then
  answer = { 'queued', ticket }
else
  answer = { 'busy', string.sub(soonest.field, 3), int(left(soonest)), ticket }
end
for _, at in ipairs(order) do
  for _, entry in ipairs(others[ARGV[at]] or {}) do
    if entry.owner ~= '' then
      answer[#answer + 1] = entry.field
      answer[#answer + 1] = entry.text
    end
  end
end
return remember(number, answer)
