-- KEYS: stream. ARGV: a consumer, then the ids of the entries that it knows it holds. What is pending for it besides was handed
-- over in an answer that never arrived: it goes back, as never begun. Answers the ids that are known and still pending.

local known, held, back, now = {}, {}, {}, now_ms()
for at = 2, #ARGV do
  known[ARGV[at]] = true
end
local pending = unless_gone(redis.pcall('XPENDING', KEYS[1], GROUP, '-', '+', 10000, ARGV[1]))
if not pending then
  return {}
end
for _, entry in ipairs(pending) do
  local id = entry[1]
  local tag, state, head, body = message_in(KEYS[1], id)
  if known[id] then
    held[#held + 1] = id
  elseif state and end_hand_over(KEYS[1], id) then
    local worker = string.match(ARGV[1], '^(.*)|[^|]*|%d+$')
    back[#back + 1] = { tag, ended(state, started_of(id), now, 'G', worker, 'its delivery never arrived'), head, body }
  end
end
put_back(base_of(KEYS[1]), back)
return held
