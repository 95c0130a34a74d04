-- Changes the own entry.
-- ARGV: request, field, operation (store, remove, refresh, none), expected version or '', expected
-- token or '', ttl, owner, data, owner that is known to run or '*' for any.
-- Answer: {'done', there was an entry, its text, its new text}, {'check', text of the entry},
-- {'conflict'}, {'late'}.
local number, field, operation = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local known = remembered(number)
if known then
  return known
end
local stored = redis.call('HMGET', key, 'version', 'swept', field)
if ARGV[4] ~= '' and (stored[1] or '0') ~= ARGV[4] then
  return remember(number, { 'conflict' })
end
if operation == 'store' then
  sweep(stored[2])
end
local own = live(stored[3])
if ARGV[5] ~= '' and not (own and own.token == tonumber(ARGV[5])) then
  return remember(number, { 'done', '0', '', '' })
end
if own and (operation == 'remove' or operation == 'refresh') and must_check(own, ARGV[9]) then
  return { 'check', own.text }
end
local written = ''
if operation == 'store' then
  written = format(now, ARGV[6], 0, ARGV[7], ARGV[8])
  redis.call('HSET', key, field, written)
  changed()
elseif operation == 'remove' and own then
  redis.call('HDEL', key, field)
  changed()
elseif operation == 'refresh' and own then
  written = format(now, int(own.ttl), own.token, own.owner, own.data)
  redis.call('HSET', key, field, written)
end
return remember(number, { 'done', own and '1' or '0', own and own.text or '', written })
