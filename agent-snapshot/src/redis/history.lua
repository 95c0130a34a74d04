-- KEYS: record, messages
-- ARGV: the first number in the stream as the caller knows it, first and last index
local record = redis.call('HMGET', KEYS[1], 'stamp', 'start')
if not record[1] then
  return {'', {}}
end
if record[2] ~= ARGV[1] then
  return {record[1], false}
end
return {record[1], redis.call('LRANGE', KEYS[2], ARGV[2], ARGV[3])}
