-- KEYS: record, messages, the new names of a damaged record and its messages
-- ARGV: 1 to keep the damaged keys under their new names, ttl, and for an expiry the age in
--       milliseconds that the last save must have, otherwise '' and the incarnation to delete
-- Returns 1 if the agent was deleted.
if ARGV[3] ~= '' then
  local changed = redis.call('HGET', KEYS[1], 'changed')
  local now = redis.call('TIME')
  local age = changed and now[1] * 1000 + math.floor(now[2] / 1000) - tonumber(changed)
  if not changed or age < tonumber(ARGV[3]) or redis.call('HEXISTS', KEYS[1], 'stamp') == 0 then
    return 0
  end
end
-- A key of another type has no incarnation.
local incarnation = redis.pcall('HGET', KEYS[1], 'incarnation')
incarnation = type(incarnation) == 'string' and incarnation or ''
if ARGV[4] and incarnation ~= ARGV[4] then
  return 0
end
local stored = redis.pcall('HMGET', KEYS[1], 'floor', 'epoch')
local floor, epoch = stored[1] or '0', stored[2] or '0'
-- Compared as text: Lua numbers are doubles, which are not exact beyond 2^53.
if #epoch > #floor or (#epoch == #floor and epoch > floor) then
  floor = epoch
end
if ARGV[1] == '1' then
  if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('RENAME', KEYS[1], KEYS[3]) end
  if redis.call('EXISTS', KEYS[2]) == 1 then redis.call('RENAME', KEYS[2], KEYS[4]) end
end
redis.call('DEL', KEYS[1], KEYS[2])
if floor ~= '0' then
  redis.call('HSET', KEYS[1], 'floor', floor)
  if ARGV[2] ~= '0' then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
end
return 1
