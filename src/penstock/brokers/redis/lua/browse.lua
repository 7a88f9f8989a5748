-- Return messages in any state, oldest first.
-- KEYS: stream. ARGV: the number after which to begin, the number of messages.
-- Returns the store, then {number, enqueued at, group, head, body} for each message.

local stream, base, after, count = KEYS[1], base_of(KEYS[1]), tonumber(ARGV[1]), tonumber(ARGV[2])
local found, below = {}, math.huge -- messages with a higher number are not among the first ones
move_due(base, now_ms())
drop_expired(base, now_ms())
local front = front_of(base)

local function cut()
  table.sort(found, function(one, other) return one[1] < other[1] end)
  for at = #found, count + 1, -1 do
    found[at] = nil
  end
  if #found == count then
    below = found[count][1]
  end
end

local function look(tag, state, head, body)
  found[#found + 1] = { seq_of(state), int(enqueued_of(state)), tag, head, body }
  if #found >= 4 * count then
    cut()
  end
end

-- Up to `front` the numbers are in no order; after it they grow.
local function look_at_ready(tag)
  local key = base .. ':ready' .. tag
  local at, kept, seq = front <= after and place_behind(key, after) or 0, 0, 0
  local length = redis.call('LLEN', key)
  while at < length and (seq <= front or (kept < count and seq <= below)) do
    local flat = redis.call('LRANGE', key, at, at + STEP * 3 - 1)
    for number = 1, #flat, 3 do
      seq = seq_of(flat[number])
      if seq > after and seq < below then
        kept = kept + 1
        look(tag, flat[number], flat[number + 1], flat[number + 2])
      end
    end
    at = at + #flat
  end
end

if count > 0 then
  for _, tag in ipairs(redis.call('LRANGE', base .. ':ring', 0, -1)) do
    look_at_ready(tag)
  end
  local from = '-'
  while from do
    local entries = redis.call('XRANGE', stream, from, '+', 'COUNT', PAGE)
    for _, entry in ipairs(entries) do
      local fields = fields_of(entry)
      if is_ours(fields) and seq_of(fields.state) > after and seq_of(fields.state) < below then
        look(fields.group or '', fields.state, fields.head or '', fields.body)
      end
    end
    from = #entries == PAGE and '(' .. entries[#entries][1]
  end
  for at = 0, redis.call('ZCARD', base .. ':delayed') - 1, PAGE do
    for _, member in ipairs(redis.call('ZRANGE', base .. ':delayed', at, at + PAGE - 1)) do
      local seq = delayed_seq(member)
      if seq > after and seq < below then
        look(delayed_message(member))
      end
    end
  end
  cut()
end
for _, message in ipairs(found) do
  message[1] = int(message[1])
end
return { redis.call('HGET', base .. ':queue', 'store') or '', found }
