-- KEYS: record, messages
-- ARGV: the first number of the stream that the caller assumes, first and last index
-- Returns the stamp, and the messages or false if the stream starts at another number.
local record = redis.call('HMGET', KEYS[1], 'stamp', 'start')
if not record[1] then
  return {'', {}}
end
if record[2] ~= ARGV[1] then
  return {record[1], false}
end
return {record[1], redis.call('LRANGE', KEYS[2], ARGV[2], ARGV[3])}
