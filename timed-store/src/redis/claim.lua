-- Claims one of several values; the rules are those of store/decision.rs.
-- ARGV: request, field, session, ttl, owner, identity for a new store, 'join' or 'barge', ticket or
-- '', life of a ticket, owner that is known to run, values…
-- Answer: {'granted', index from 0, token, identity, text of the earlier entry, text of the new one},
-- {'check', text of the own entry},
-- {'busy', key of the holder, time left, ticket, field and text of each holder with an owner…},
-- {'queued', ticket}, {'exhausted'}, {'late'}.
local number, field, session = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local ttl, owner, is_join, ticket = ARGV[4], ARGV[5], ARGV[7] == 'join', ARGV[8]
local FIRST = 11
local known = remembered(number)
if known then
  return known
end
local wanted = {}
for at = FIRST, #ARGV do
  wanted[ARGV[at]] = true
end

-- `others`: the live entries of other sessions with a wanted value. `ahead`: the values that earlier
-- waiters want. Other entries are not taken apart, because every claim looks at all of them.
local own, others, ahead, meta = nil, {}, {}, {}
local fields = redis.call('HGETALL', key)
for at = 1, #fields, 2 do
  local name, text = fields[at], fields[at + 1]
  local kind = string.sub(name, 1, 2)
  if name == field then
    own = live(text)
  elseif kind == 'e:' or kind == 's:' then
    local data = string.sub(text, 1, (string.find(text, '\n', 1, true) or 1) - 1)
    if wanted[data] and session_of(name) ~= session then
      local entry = live(text)
      if entry then
        entry.field = name
        local holders = others[data] or {}
        holders[#holders + 1] = entry
        others[data] = holders
      else
        -- If the clock is set back later, it must not be a second holder.
        redis.call('HDEL', key, name)
      end
    end
  elseif kind == 'w:' then
    if is_join and (ticket == '' or name < ticket) then
      local expiry, values = string.match(text, '^(%d+)\n(.*)$')
      if expiry and tonumber(expiry) >= now then
        for value in string.gmatch(values, '[^\n]+') do
          ahead[value] = true
        end
      else
        redis.call('HDEL', key, name)
      end
    end
  else
    meta[name] = text
  end
end

if own and wanted[own.data] and must_check(own, ARGV[10]) then
  return { 'check', own.text }
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
  local is_renewal = own and own.data == value and own.token > 0
  local token = is_renewal and own.token or math.max(tonumber(meta.token or '0'), now) + 1
  if token > LARGEST then
    return remember(number, { 'exhausted' })
  end
  local id = meta.id or ARGV[6]
  if is_renewal then
    -- Another process of the session may keep this lease: it is never shortened.
    ttl = int(math.max(own.ttl, tonumber(ttl)))
    owner = own.owner == owner and owner or ''
  end
  local entry = format(now, ttl, token, owner, value)
  if is_renewal then
    redis.call('HSET', key, field, entry, 'id', id)
  else
    local version = int(tonumber(meta.version or '0') + 1)
    redis.call('HSET', key, field, entry, 'id', id, 'token', int(token), 'version', version)
    redis.call('PUBLISH', key, '')
  end
  if ticket ~= '' then
    redis.call('HDEL', key, ticket)
  end
  sweep(meta.swept)
  local text = own and own.text or ''
  return remember(number, { 'granted', int(free - FIRST), int(token), id, text, entry })
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
