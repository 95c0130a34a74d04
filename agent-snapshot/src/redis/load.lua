-- KEYS: record, messages
-- ARGV: how many messages are few
local record = redis.call('HMGET', KEYS[1], 'stamp', 'floor', 'state', 'head', 'view')
local view = tonumber(record[5]) or 0
local messages = {}
if view > tonumber(ARGV[1]) then
  messages = false
elseif view > 0 then
  messages = redis.call('LRANGE', KEYS[2], -view, -1)
end
return {record[1] or '', record[2] or '0', record[3] or '', record[4] or '', messages}
