-- KEYS: stream. Returns 1 if the queue holds no message in any state, by the counts of stats.lua, else 0. It reads no
-- messages, so it costs the same however many there are.

local stream, base = KEYS[1], base_of(KEYS[1])
drop_expired(base, now_ms())
local summary = unless_gone(redis.pcall('XPENDING', stream, GROUP))
local pending = summary and summary[1] or 0
local ready = tonumber(redis.call('HGET', base .. ':queue', 'ready') or 0)
local delayed = redis.call('ZCARD', base .. ':delayed')
return ready == 0 and delayed == 0 and pending == 0 and redis.call('XLEN', stream) == 0 and 1 or 0
