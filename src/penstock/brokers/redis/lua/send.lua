-- Add messages to the queue.
-- KEYS: stream. ARGV: a name for a new store, the deduplication window, then for each message its options (empty, or
-- JSON with group, delay and once), its head and its body.
-- Returns the store and the number of each message. A server without memory refuses the first write; nothing is written
-- then.

local base, now = base_of(KEYS[1]), now_ms()
local count = (#ARGV - 2) / 3
local seq = next_seq(base, ARGV[1], count)
local answer, order, by_tag = {}, {}, {}

for at = 3, #ARGV, 3 do
  local tag, delay, once = '', 0, nil
  if ARGV[at] ~= '' then
    local how = cjson.decode(ARGV[at])
    tag, delay = how.group, how.delay
    once = how.once and base .. ':once:' .. how.once
  end
  local mine = int(seq)
  local earlier = once and redis.call('GET', once)
  if earlier then
    mine = earlier
  else
    if once then
      redis.call('SET', once, mine, 'PX', math.max(ARGV[2] - 1, 1)) -- a key exists one millisecond longer
    end
    local state = mine .. ' ' .. int(now)
    if delay > 0 then
      put_delayed(base, now + delay, tag, state, ARGV[at + 1], ARGV[at + 2])
    else
      local flat = by_tag[tag]
      if not flat then
        flat = {}
        by_tag[tag] = flat
        order[#order + 1] = tag
      end
      local size = #flat
      flat[size + 1] = state
      flat[size + 2] = ARGV[at + 1]
      flat[size + 3] = ARGV[at + 2]
    end
    seq = seq + 1
  end
  answer[#answer + 1] = mine
end

for _, tag in ipairs(order) do
  put_ready(base, tag, by_tag[tag], false)
end
wake(base)
return { redis.call('HGET', base .. ':queue', 'store'), answer }
