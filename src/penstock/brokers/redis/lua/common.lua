-- The beginning of every script: the keys of a queue, and the functions that move its messages.
--
-- The keys of a queue share one base, so a cluster keeps them in one slot:
--   :queue    a hash: store, seq (of the last message), ready (their number), front (see `front_of`), settings, paused
--   :ring     the group rotation: a list of the groups with ready messages; the first is served next
--   :ready    a list of ready messages for each group (the group's name follows, after a colon)
--   :delayed  a sorted set of messages by the time they become ready
--   :stream   messages being delivered, and entries that other clients add with XADD
--   :wake     a list with at most one wake-up token: a message may have become ready
--   :once     a string for each deduplication id
-- A waiting message is three strings: state, head (attributes as JSON, or empty) and body. The tag of a group is its
-- name after a colon, or empty for no group. Times are milliseconds of this server's clock.
--
-- A state is text. A fresh message, which was never delivered, has: SEQ ENQUEUED. After a delivery, this follows:
--   AGE_FROM HAND_OVERS REFUNDS UNSUCCESSFUL FIRST_FAILED LAST_FAILED STARTED ENDED KIND WORKER, a line feed, REASON,
--   a zero byte, and EARLIER
-- HAND_OVERS counts deliveries, REFUNDS those that do not count as attempts. STARTED to REASON describe the last
-- delivery (`ended` writes them); EARLIER has one line for each delivery before it. A time is 0 if nothing failed. With
-- an empty reason and no earlier delivery, the text ends at the line feed.

local GROUP = 'penstock'
local DAY = 86400000
local STEP = 300 -- messages in one command: Lua can unpack some thousands of arguments
local PAGE = 1000 -- items that one call inspects, where there may be many
local EARLIER_MAX = 9 -- attempts kept in addition to the last one
local TEXT_MAX = 200 -- bytes of each of their texts
local RESET_EVERY = 3 -- unsuccessful deliveries, as in brokers/shared.py

-- --- times, numbers and states

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function int(number)
  return string.format('%.0f', number)
end

local function started_of(id)
  return tonumber(string.match(id, '^%d+'))
end

local function seq_of(state)
  return tonumber(string.match(state, '^%d+'))
end

local function enqueued_of(state)
  return tonumber(string.match(state, '^%d+ (%d+)'))
end

local function is_fresh(state)
  return string.match(state, '^%d+ %d+$')
end

-- Return true if `ended` or a sender wrote this: other programs may add an entry with a field of that name. Numbers
-- have at most 15 digits, so that a double holds them exactly.
local function is_state(text)
  return text
    and (is_fresh(text) or string.match(text, '^%d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ [EFG] '))
    and not string.find(string.match(text, '^[%d ]+'), string.rep('%d', 16))
end

-- Return true if `feed` in take.lua wrote these fields. Of other entries only the body is used (`foreign_body`).
local function is_ours(fields)
  local tag = fields.group or ''
  return is_state(fields.state) and fields.body and (tag == '' or string.sub(tag, 1, 1) == ':')
end

local function foreign_body(fields)
  return fields.body or cjson.encode(fields)
end

local function brief(text)
  return (string.gsub(string.sub(text, 1, TEXT_MAX), '%c', ' '))
end

-- Return the deliveries recorded in a state, as the EARLIER part of the next state.
local function earlier_of(state)
  local started, at, kind, worker, rest =
    string.match(state, '^%d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ (%d+) (%d+) ([EFG]) ([^\n]*)\n(.*)$')
  if not started then
    return ''
  end
  local reason, earlier = string.match(rest, '^(.*)%z([^%z]*)$')
  local last = started .. ' ' .. at .. ' ' .. kind .. ' ' .. brief(worker) .. '\t' .. brief(reason or rest)
  if not earlier or earlier == '' then
    return last
  end
  local _, count = string.gsub(earlier, '\n', '')
  if count + 1 >= EARLIER_MAX then
    earlier = string.match(earlier, '\n(.*)$')
  end
  return earlier .. '\n' .. last
end

-- Return the state of a message whose delivery ended without an ack. After every third one, its age restarts.
-- `kind` is F (failed), G (released, not counted as an attempt) or E (its lease expired).
local function ended(state, started, at, kind, worker, reason)
  local seq, enqueued, rest = string.match(state, '^(%d+) (%d+)(.*)$')
  local age, hand_overs, refunds, unsuccessful, first, last =
    string.match(rest, '^ (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ')
  age, hand_overs, refunds = tonumber(age or enqueued), tonumber(hand_overs or 0), tonumber(refunds or 0)
  unsuccessful, first, last = tonumber(unsuccessful or 0) + 1, tonumber(first or 0), tonumber(last or 0)
  if unsuccessful % RESET_EVERY == 0 then
    age = at
  end
  if kind == 'G' then
    refunds = refunds + 1
  else
    first = first == 0 and at or first
    last = at
  end
  local numbers = string.format(
    '%.0f %d %d %d %.0f %.0f %.0f %.0f',
    age, hand_overs + 1, refunds, unsuccessful, first, last, started, at
  )
  local earlier = earlier_of(state)
  if earlier ~= '' or reason ~= '' then -- so that a reason cannot be mistaken for what follows it
    reason = reason .. '\0' .. earlier
  end
  -- Not with string.format, which ends a string at its first zero byte.
  return seq .. ' ' .. enqueued .. ' ' .. numbers .. ' ' .. kind .. ' ' .. worker .. '\n' .. reason
end

-- --- a queue

local function base_of(stream)
  return string.sub(stream, 1, -8) -- without ':stream'
end

local function wake(base)
  if redis.call('LLEN', base .. ':wake') == 0 then
    redis.call('RPUSH', base .. ':wake', '1')
  end
end

-- Reserve numbers for `count` new messages; return the first. `store` names the queue's store if it has no name yet.
local function next_seq(base, store, count)
  local last = redis.call('HINCRBY', base .. ':queue', 'seq', count)
  redis.call('HSETNX', base .. ':queue', 'store', store)
  if last == count then
    redis.call('HSET', base .. ':queue', 'front', 0)
  end
  return last - count + 1
end

local function retention_of(base)
  return tonumber(redis.call('HGET', base .. ':queue', 'retention') or 14 * DAY)
end

-- --- waiting messages

-- Return the highest number put at the front of a group's list since the lists were last empty: after it, numbers only
-- grow. It is unknown, and therefore infinite, in a queue of an older program until its lists were empty once.
local function front_of(base)
  return tonumber(redis.call('HGET', base .. ':queue', 'front') or math.huge)
end

-- Return the position in a group's list where higher numbers than `seq` begin. Valid for `front_of` and above.
local function place_behind(key, seq)
  local low, high = 0, redis.call('LLEN', key) / 3
  while low < high do
    local middle = math.floor((low + high) / 2)
    if seq_of(redis.call('LINDEX', key, middle * 3)) > seq then
      high = middle
    else
      low = middle + 1
    end
  end
  return low * 3
end

-- `flat` holds state, head and body of each message, oldest first.
local function put_ready(base, tag, flat, at_front)
  local key = base .. ':ready' .. tag
  if #flat == 0 then
    return
  end
  redis.call('HINCRBY', base .. ':queue', 'ready', #flat / 3)
  if redis.call('EXISTS', key) == 0 then
    redis.call('RPUSH', base .. ':ring', tag)
  end
  local step = STEP * 3
  if at_front then
    local highest = seq_of(flat[#flat - 2])
    if highest > front_of(base) then
      redis.call('HSET', base .. ':queue', 'front', int(highest))
    end
    local turned = {}
    for at = #flat, 1, -1 do
      turned[#turned + 1] = flat[at]
    end
    for at = 1, #turned, step do
      redis.call('LPUSH', key, unpack(turned, at, math.min(at + step - 1, #turned)))
    end
  else
    for at = 1, #flat, step do
      redis.call('RPUSH', key, unpack(flat, at, math.min(at + step - 1, #flat)))
    end
  end
end

-- Requeue messages at the front of their group, since they are older than the waiting ones. Each is {tag, state, head,
-- body}.
local function put_back(base, messages)
  if #messages == 0 then
    return
  end
  wake(base)
  local order, by_tag = {}, {}
  table.sort(messages, function(one, other) return seq_of(one[2]) < seq_of(other[2]) end)
  for _, message in ipairs(messages) do
    local flat = by_tag[message[1]]
    if not flat then
      flat = {}
      by_tag[message[1]] = flat
      order[#order + 1] = message[1]
    end
    flat[#flat + 1] = message[2]
    flat[#flat + 1] = message[3]
    flat[#flat + 1] = message[4]
  end
  for _, tag in ipairs(order) do
    put_ready(base, tag, by_tag[tag], true)
  end
end

-- No delay is longer than the retention, so that an expired message is found when it becomes ready.
local function put_delayed(base, due, tag, state, head, body)
  due = math.min(due, enqueued_of(state) + retention_of(base))
  local member = string.format('%016.0f', seq_of(state)) .. cmsgpack.pack(tag, state, head, body)
  redis.call('ZADD', base .. ':delayed', int(due), member)
end

local function delayed_seq(member)
  return tonumber(string.sub(member, 1, 16))
end

-- Return what `put_delayed` wrote: tag, state, head, body.
local function delayed_message(member)
  return cmsgpack.unpack(string.sub(member, 17))
end

local function move_due(base, now)
  local due = redis.call('ZRANGEBYSCORE', base .. ':delayed', '-inf', int(now), 'LIMIT', 0, PAGE)
  if #due == 0 then
    return
  end
  redis.call('ZREMRANGEBYRANK', base .. ':delayed', 1, 0) -- deletes nothing, but checks permission (see `may_end`)
  local messages = {}
  for _, member in ipairs(due) do
    messages[#messages + 1] = { delayed_message(member) }
  end
  put_back(base, messages)
  redis.call('ZREMRANGEBYRANK', base .. ':delayed', 0, #due - 1)
end

-- Return true if this is a DLQ or final DLQ, by its name or because dead letters were sent here.
local function holds_dead(base)
  return string.find(base, '%-dlq$') or string.find(base, '%-dead$')
    or redis.call('HEXISTS', base .. ':queue', 'holds_dead') == 1
end

-- Delete and count dead letters past their retention: the only messages that leave without a settlement.
local function drop_expired(base, now)
  if not holds_dead(base) then
    return
  end
  local oldest, dropped = now - retention_of(base), 0
  for _, tag in ipairs(redis.call('LRANGE', base .. ':ring', 0, PAGE - 1)) do
    local key = base .. ':ready' .. tag
    local state = redis.call('LINDEX', key, 0)
    while state and dropped < PAGE and enqueued_of(state) <= oldest do
      redis.call('LPOP', key, 3)
      dropped = dropped + 1
      state = redis.call('LINDEX', key, 0)
    end
    if not state then
      redis.call('LREM', base .. ':ring', 1, tag)
    end
  end
  if dropped > 0 then
    redis.call('HINCRBY', base .. ':queue', 'ready', -dropped)
    redis.call('HINCRBY', base .. ':queue', 'dropped', dropped)
  end
end

-- --- deliveries

-- Return the reply of a command, or nil if the queue has no stream or group. Raise any other error.
local function unless_gone(answer)
  if type(answer) ~= 'table' or not answer.err then
    return answer
  elseif string.find(answer.err, 'NOGROUP', 1, true) or string.find(answer.err, 'no such key', 1, true) then
    return nil
  end
  error(answer.err, 0)
end

-- Return the fields by name of an entry in a reply of XRANGE or XREADGROUP.
local function fields_of(entry)
  local fields = {}
  for at = 1, #entry[2], 2 do
    fields[entry[2][at]] = entry[2][at + 1]
  end
  return fields
end

-- Return tag, state, head and body of the message in a stream's entry; nil if the entry was deleted.
local function message_in(stream, id)
  local entry = redis.call('XRANGE', stream, id, id)[1]
  if not entry then
    return nil
  end
  local fields = fields_of(entry)
  return fields.group or '', fields.state, fields.head or '', fields.body
end

local function is_pending(stream, id)
  local found = unless_gone(redis.pcall('XPENDING', stream, GROUP, id, id, 1))
  return found and #found > 0
end

-- A script that fails half way because a permission is missing undoes nothing. So a message is added to its new place
-- before it is removed from the old one, and before that, this function raises if removing is not permitted: otherwise
-- every retry would add the message once more. A server without memory refuses only a script's first write, and never
-- these commands.
local function may_end(stream)
  redis.call('XACK', stream, GROUP, '0-0')
  redis.call('XDEL', stream, '0-0')
end

-- XACK returns 1 only for a delivery that is still pending: this is the fence. Every delivery has its own entry, so an
-- entry's id is never reused.
local function end_hand_over(stream, id)
  if redis.call('XACK', stream, GROUP, id) == 1 then
    redis.call('XDEL', stream, id)
  end
end

local function end_hand_overs(stream, ids)
  for _, id in ipairs(ids) do
    end_hand_over(stream, id)
  end
end
