-- Removes the oldest messages if the stored stamp is the expected one.
-- KEYS: record, messages
-- ARGV: expected stamp, new stamp, new start, number of messages to remove
if redis.call('HGET', KEYS[1], 'stamp') ~= ARGV[1] then
  return 0
end
local freed = 0
for _, json in ipairs(redis.call('LRANGE', KEYS[2], 0, ARGV[4] - 1)) do
  freed = freed + #json
end
redis.call('LTRIM', KEYS[2], ARGV[4], -1)
local bytes = tonumber(redis.call('HGET', KEYS[1], 'bytes') or '0')
redis.call('HSET', KEYS[1], 'stamp', ARGV[2], 'start', ARGV[3],
  'bytes', string.format('%.0f', math.max(bytes - freed, 0)))
return 1
