-- Delete the consumers of dead workers: those without pending entries that were idle for that long. (XGROUP DELCONSUMER
-- would drop the pending entries of a consumer.)
-- KEYS: stream. ARGV: idle milliseconds. Returns their number.

local consumers = unless_gone(redis.pcall('XINFO', 'CONSUMERS', KEYS[1], GROUP))
if not consumers then
  return 0
end
local count = 0
for _, flat in ipairs(consumers) do
  local consumer = {}
  for at = 1, #flat, 2 do
    consumer[flat[at]] = flat[at + 1]
  end
  if consumer.pending == 0 and consumer.idle >= tonumber(ARGV[1]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], GROUP, consumer.name)
    count = count + 1
  end
end
return count
