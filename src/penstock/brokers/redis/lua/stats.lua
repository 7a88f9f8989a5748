-- KEYS: stream. Returns {now, ready, in flight, delayed, time when the oldest visible message was enqueued, time from
-- which the age of the oldest message counts, time when the oldest of all was enqueued}; a time is empty if there is
-- no such message. Returns an empty list if the queue does not exist.
-- Ages are read from the heads of the first thousand groups, from messages in flight, and from the next delay to end.

local stream, base, now = KEYS[1], base_of(KEYS[1]), now_ms()
if redis.call('EXISTS', base .. ':queue', stream) == 0 then
  return {}
end
move_due(base, now)
drop_expired(base, now)

local visible_from, age_from, enqueued_from = nil, nil, nil

local function look(state, is_visible)
  local enqueued = enqueued_of(state)
  local age = tonumber(string.match(state, '^%d+ %d+ (%d+)') or enqueued)
  age_from = math.min(age_from or age, age)
  enqueued_from = math.min(enqueued_from or enqueued, enqueued)
  if is_visible then
    visible_from = math.min(visible_from or enqueued, enqueued)
  end
end

local summary = unless_gone(redis.pcall('XPENDING', stream, GROUP))
local pending = summary and summary[1] or 0
local ready = tonumber(redis.call('HGET', base .. ':queue', 'ready') or 0)
local foreign = redis.call('XLEN', stream) - pending

-- Requeued messages come before those that were never delivered; of the latter, the first is the oldest.
for _, tag in ipairs(redis.call('LRANGE', base .. ':ring', 0, PAGE - 1)) do
  local at, state = 0, redis.call('LINDEX', base .. ':ready' .. tag, 0)
  while state do
    look(state, true)
    at = at + 1
    state = not is_fresh(state) and at < PAGE and redis.call('LINDEX', base .. ':ready' .. tag, at * 3)
  end
end
for _, entry in ipairs(redis.call('XRANGE', stream, '-', '+', 'COUNT', PAGE)) do
  local state = fields_of(entry).state
  state = is_state(state) and state
  look(state or '0 ' .. int(started_of(entry[1])), not state)
end
for _, member in ipairs(redis.call('ZRANGE', base .. ':delayed', 0, PAGE - 1)) do
  local _, state = delayed_message(member)
  look(state, false)
end

return {
  int(now), ready + math.max(foreign, 0), pending, redis.call('ZCARD', base .. ':delayed'),
  visible_from and int(visible_from) or '', age_from and int(age_from) or '',
  enqueued_from and int(enqueued_from) or '',
}
