-- Compare-and-swap: writes only if the stored stamp and floor are the expected ones.
-- KEYS: record, messages
-- ARGV: expected stamp, expected floor, expected length, stamp, state, head, view, epoch, start, replace,
--       ttl, labels, the id of a new incarnation, messages...
local stored = redis.call('HMGET', KEYS[1], 'stamp', 'floor')
local stamp, floor = stored[1] or '', stored[2] or '0'
if stamp ~= ARGV[1] or floor ~= ARGV[2] then
  return {'changed', stamp, floor}
end
-- The list has another length than the record says: messages are missing. A save must not
-- continue a damaged stream.
if tostring(redis.call('LLEN', KEYS[2])) ~= ARGV[3] then
  return {'damaged'}
end
local bytes = tonumber(redis.call('HGET', KEYS[1], 'bytes') or '0')
if ARGV[10] == '1' then
  redis.call('DEL', KEYS[2])
  bytes = 0
end
for i = 14, #ARGV do
  redis.call('RPUSH', KEYS[2], ARGV[i])
  bytes = bytes + #ARGV[i]
end
local head = ARGV[6] ~= '' and #ARGV[6] or redis.call('HSTRLEN', KEYS[1], 'head')
local now = redis.call('TIME')
redis.call('HSET', KEYS[1], 'stamp', ARGV[4], 'state', ARGV[5], 'view', ARGV[7],
  'epoch', ARGV[8], 'start', ARGV[9], 'labels', ARGV[12], 'bytes', string.format('%.0f', bytes),
  'body', #ARGV[5] + head,
  'changed', string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000)))
if ARGV[6] ~= '' then
  redis.call('HSET', KEYS[1], 'head', ARGV[6])
end
if stamp == '' then
  redis.call('HSET', KEYS[1], 'incarnation', ARGV[13])
end
if ARGV[11] ~= '0' then
  redis.call('PEXPIRE', KEYS[1], ARGV[11])
  redis.call('PEXPIRE', KEYS[2], ARGV[11])
end
return {'done'}
