-- Restart the leases of the deliveries that are still pending.
-- KEYS: stream. ARGV: the consumer, then the ids of the entries.
-- Returns their ids, then the ids whose entry another client deleted: XCLAIM of Redis 7 drops those silently.
-- JUSTID leaves the delivery count unchanged; without FORCE only pending entries are claimed.

local claimed, left, vanished = {}, {}, {}
for at = 2, #ARGV do
  if is_pending(KEYS[1], ARGV[at]) then
    left[#left + 1] = ARGV[at]
  end
end
for at = 1, #left, STEP do
  local ids = { unpack(left, at, math.min(at + STEP - 1, #left)) }
  ids[#ids + 1] = 'JUSTID'
  local known = {}
  for _, id in ipairs(redis.call('XCLAIM', KEYS[1], GROUP, ARGV[1], 0, unpack(ids))) do
    claimed[#claimed + 1] = id
    known[id] = true
  end
  for number = 1, #ids - 1 do
    if not known[ids[number]] then
      vanished[#vanished + 1] = ids[number]
    end
  end
end
return { claimed, vanished }
