-- Takes back a change that the replicas did not acknowledge: puts the earlier entry back, if it is
-- still live and no other session has taken its value. A later change by another process of the
-- session stays.
-- ARGV: request, field, session, text that the change wrote, text of the earlier entry.
-- Answer: {'done', the earlier entry is back}, {'late'}.
local number, field, session = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local known = remembered(number)
if known then
  return known
end
if redis.call('HGET', key, field) ~= ARGV[4] then
  return remember(number, { 'done', '0' })
end
local holders = {}
local fields = redis.call('HGETALL', key)
for at = 1, #fields, 2 do
  local name = fields[at]
  if string.match(name, '^[es]:') and session_of(name) ~= session then
    local entry = live(fields[at + 1])
    if entry then
      holders[entry.data] = true
    end
  end
end
local earlier = live(ARGV[5])
local is_back = earlier and not holders[earlier.data]
if is_back then
  redis.call('HSET', key, field, ARGV[5])
else
  redis.call('HDEL', key, field)
end
changed()
return remember(number, { 'done', is_back and '1' or '0' })
