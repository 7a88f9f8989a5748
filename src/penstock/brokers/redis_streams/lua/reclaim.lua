-- KEYS: stream. ARGV: a consumer, then the ids of the entries that the worker knows it holds. What is pending for the consumer
-- besides was handed over in an answer that never arrived: it goes back, as never begun. Answers the known ids that are
-- not pending any more.

local known, gone, back, now = {}, {}, {}, now_ms()
local pending = redis.pcall('XPENDING', KEYS[1], GROUP, '-', '+', 10000, ARGV[1])
for at = 2, #ARGV do
  local id = ARGV[at]
  known[id] = true
  if pending.err or #redis.call('XPENDING', KEYS[1], GROUP, id, id, 1) == 0 then
    gone[#gone + 1] = id
  end
end
if pending.err then -- the group is gone, and with it all that it held
  return gone
end
for _, entry in ipairs(pending) do
  local id = entry[1]
  local tag, state, head, body = message_in(KEYS[1], id)
  if state and not known[id] and end_hand_over(KEYS[1], id) then
    local worker = string.match(ARGV[1], '^(.*)|[^|]*|%d+$')
    back[#back + 1] = { tag, ended(state, started_of(id), now, 'G', worker, 'its delivery never arrived'), head, body }
  end
end
put_back(base_of(KEYS[1]), back)
return gone
