-- KEYS: record, messages
local record = redis.call('HMGET', KEYS[1], 'stamp', 'floor', 'state', 'head', 'view')
local messages = {}
-- Counted from the end, so that no number is larger than the view.
if record[5] and record[5] ~= '0' then
  messages = redis.call('LRANGE', KEYS[2], '-' .. record[5], -1)
end
return {record[1] or '', record[2] or '0', record[3] or '', record[4] or '', messages}
