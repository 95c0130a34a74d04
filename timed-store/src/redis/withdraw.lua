-- Takes back a change that the replicas did not acknowledge: puts the earlier entry back, if it is
-- still live and no other session has taken its value.
-- ARGV: request, field, session, token, text of the earlier entry.
local number, field, session = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local known = remembered(number)
if known then
  return known
end
local own, holders = nil, {}
local fields = redis.call('HGETALL', key)
for at = 1, #fields, 2 do
  local name = fields[at]
  if name == field then
    own = live(fields[at + 1])
  elseif string.match(name, '^[es]:') and session_of(name) ~= session then
    local entry = live(fields[at + 1])
    if entry then
      holders[entry.data] = true
    end
  end
end
if own and own.token == tonumber(ARGV[4]) then
  local earlier = live(ARGV[5])
  if earlier and not holders[earlier.data] then
    redis.call('HSET', key, field, ARGV[5])
  else
    redis.call('HDEL', key, field)
  end
  changed()
end
return remember(number, { 'done' })
