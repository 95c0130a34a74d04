-- Removes a waiter. A free value may have waited for it.
-- ARGV: ticket.
if redis.call('HDEL', key, ARGV[1]) == 1 then
  redis.call('PUBLISH', key, '')
end
return {}
