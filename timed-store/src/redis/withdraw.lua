-- Takes back a change that the replicas did not acknowledge: puts the earlier entry back, if it is
-- still live and no other session has taken its value.
-- ARGV: request, field, session, token, text of the earlier entry.
local number, field, session = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local known = remembered(number)
if known then
  return known
end
local entries = load()
local own, holders = nil, {}
for _, entry in ipairs(entries) do
  if entry.field == field then
    own = entry
  elseif session_of(entry.field) ~= session then
    holders[entry.data] = true
  end
end
if own and own.token == tonumber(ARGV[4]) then
  local earlier = parse(ARGV[5])
  if earlier and left(earlier) >= 0 and not holders[earlier.data] then
    redis.call('HSET', key, field, ARGV[5])
  else
    redis.call('HDEL', key, field)
  end
  changed()
end
return remember(number, { 'done' })
