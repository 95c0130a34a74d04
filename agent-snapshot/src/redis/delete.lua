-- KEYS: record, messages, where to keep a damaged record, where to keep its messages
-- ARGV: whether to keep them, ttl
local stored = redis.pcall('HMGET', KEYS[1], 'floor', 'epoch')
local floor, epoch = stored[1] or '0', stored[2] or '0'
-- As text: whole numbers beyond 2^53 are not the same as doubles.
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
