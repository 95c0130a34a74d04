-- Removes entries whose owner process has ended, if they are unchanged.
-- ARGV: field, text, field, text…
local is_changed = false
for at = 1, #ARGV, 2 do
  if redis.call('HGET', key, ARGV[at]) == ARGV[at + 1] then
    redis.call('HDEL', key, ARGV[at])
    is_changed = true
  end
end
if is_changed then
  changed()
end
return {}
