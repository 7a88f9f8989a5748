-- KEYS: stream. ARGV: the consumer, then entries' ids. Begins the leases of those that are still pending anew; answers their ids.
-- JUSTID leaves the delivery count alone; without FORCE nothing is claimed that is not pending.

local arguments = { unpack(ARGV, 2, #ARGV) }
arguments[#arguments + 1] = 'JUSTID'
local claimed = redis.pcall('XCLAIM', KEYS[1], GROUP, ARGV[1], 0, unpack(arguments))
if claimed.err and string.find(claimed.err, 'NOGROUP', 1, true) then
  return {} -- the stream is gone, and every lease with it
end
return claimed
