-- Reads, and writes nothing.
-- ARGV: a field, or '' for all.
-- Answer: {now, version, field, text, field, text…}
local answer = { int(now), redis.call('HGET', key, 'version') or '0' }
if ARGV[1] ~= '' then
  answer[3], answer[4] = ARGV[1], redis.call('HGET', key, ARGV[1]) or ''
  return answer
end
local fields = redis.call('HGETALL', key)
for at = 1, #fields, 2 do
  local kind = string.sub(fields[at], 1, 2)
  if kind == 'e:' or kind == 's:' then
    answer[#answer + 1] = fields[at]
    answer[#answer + 1] = fields[at + 1]
  end
end
return answer
