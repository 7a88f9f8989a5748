-- KEYS: stream. ARGV: the number to begin behind, how many. Answers the store, then {number, enqueued at, group, head,
-- body} of messages in any state, the oldest first.

local stream, base, after, count = KEYS[1], base_of(KEYS[1]), tonumber(ARGV[1]), tonumber(ARGV[2])
local found = {}
move_due(base, now_ms())
drop_expired(base, now_ms())

local function look(tag, state, head, body)
  local seq = seq_of(state)
  if seq > after then
    found[#found + 1] = { seq, int(enqueued_of(state)), tag, head, body }
    return 1
  end
  return 0
end

for _, tag in ipairs(redis.call('LRANGE', base .. ':ring', 0, -1)) do
  local key, at, kept = base .. ':ready' .. tag, 0, 0
  local length = redis.call('LLEN', key)
  while at < length and kept < count do
    local flat = redis.call('LRANGE', key, at, at + STEP * 3 - 1)
    for number = 1, #flat, 3 do
      kept = kept + look(tag, flat[number], flat[number + 1], flat[number + 2])
    end
    at = at + #flat
  end
end
for _, entry in ipairs(redis.call('XRANGE', stream, '-', '+')) do
  local fields = fields_of(entry)
  if is_state(fields.state) then
    look(fields.group or '', fields.state, fields.head or '', fields.body)
  end
end
for _, member in ipairs(redis.call('ZRANGE', base .. ':delayed', 0, -1)) do
  look(delayed_message(member))
end

table.sort(found, function(one, other) return one[1] < other[1] end)
local answer = {}
for at = 1, math.min(count, #found) do
  found[at][1] = int(found[at][1])
  answer[at] = found[at]
end
return { redis.call('HGET', base .. ':queue', 'store') or '', answer }
