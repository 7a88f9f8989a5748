-- Delete every message of the queue, including leased ones; settings, pause and deduplication ids stay.
-- KEYS: stream. Returns the number of messages.

local stream, base = KEYS[1], base_of(KEYS[1])
local count = tonumber(redis.call('HGET', base .. ':queue', 'ready') or 0)
count = count + redis.call('XLEN', stream) + redis.call('ZCARD', base .. ':delayed')
for _, tag in ipairs(redis.call('LRANGE', base .. ':ring', 0, -1)) do
  redis.call('UNLINK', base .. ':ready' .. tag)
end
redis.call('UNLINK', base .. ':ring', base .. ':delayed', base .. ':wake')
if redis.call('EXISTS', stream) == 1 then
  -- Its ids continue after the last one: no old receipt handle may match a new delivery, even within a millisecond.
  local last = redis.call('XADD', stream, '*', 'purged', '')
  redis.call('UNLINK', stream)
  redis.call('XADD', stream, last, 'purged', '')
  redis.call('XDEL', stream, last)
end
if redis.call('EXISTS', base .. ':queue') == 1 then
  redis.call('HDEL', base .. ':queue', 'ready')
  redis.call('HSET', base .. ':queue', 'front', 0)
end
return count
