-- Find the deliveries that never reached their worker.
-- KEYS: stream. ARGV: a consumer, then the ids of the entries that the worker knows it holds.
-- Returns the other ids that are pending for the consumer, and the known ones that are no longer pending. It changes
-- nothing, so a late call does no harm.

local known, unknown, gone = {}, {}, {}
local pending = unless_gone(redis.pcall('XPENDING', KEYS[1], GROUP, '-', '+', 10000, ARGV[1]))
for at = 2, #ARGV do
  local id = ARGV[at]
  known[id] = true
  if not pending or not is_pending(KEYS[1], id) then
    gone[#gone + 1] = id
  end
end
for _, entry in ipairs(pending or {}) do
  if not known[entry[1]] then
    unknown[#unknown + 1] = entry[1]
  end
end
return { unknown, gone }
