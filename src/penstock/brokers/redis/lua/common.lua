-- What every script begins with: where a queue's messages wait, and how they get there.
--
-- A queue's keys begin with one base and so lie in one slot of a cluster:
--   :queue    a hash: store, seq (of the last message), ready (how many), front (see `front_of`), settings, paused
--   :ring     a list of the groups that have ready messages; the first is served next
--   :ready    a list of ready messages for each group (the group's name follows, after a colon)
--   :delayed  a sorted set of messages by the time they become ready
--   :stream   what is handed over, and what others put there with XADD
--   :wake     a list of one token at most: something may have become ready
--   :once     a string for each deduplication id
-- A waiting message is three strings: state, head (attributes as JSON, or empty) and body. A group goes by its tag: its
-- name behind a colon, empty for no group. Times are milliseconds of this server's clock.
--
-- A state is text: SEQ ENQUEUED of a fresh message, which was never handed over; behind it, of one that was,
--   AGE_FROM HAND_OVERS REFUNDS UNSUCCESSFUL FIRST_FAILED LAST_FAILED STARTED ENDED KIND WORKER, a line end, REASON,
--   a zero byte, and EARLIER
-- where the five before the zero byte tell of the last hand-over (`ended` writes them), EARLIER tells of those before it
-- in a line each, and a time is 0 where there was no failure. Nothing is behind an empty reason if nothing is earlier.

local GROUP = 'penstock'
local DAY = 86400000
local STEP = 300 -- messages in one command: Lua can unpack some thousands of arguments
local PAGE = 1000 -- of what may be many: what one call looks at
local EARLIER_MAX = 9 -- attempts that are remembered beside the last one
local TEXT_MAX = 200 -- bytes of each text of theirs
local RESET_EVERY = 3 -- unsuccessful hand-overs, as in brokers/rules.py

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

-- True if `ended` or a sender wrote this: other programs may put a field of that name into the stream. Numbers have 15
-- digits at most, so that a double holds them exactly.
local function is_state(text)
  return text
    and (is_fresh(text) or string.match(text, '^%d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ [EFG] '))
    and not string.find(string.match(text, '^[%d ]+'), string.rep('%d', 16))
end

-- True if `feed` in take.lua wrote these fields of an entry. Of other entries only the body is used (`foreign_body`).
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

-- What a state says of hand-overs, for the next state, where they are all earlier.
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

-- The state of a message whose hand-over ended without an ack: it counts, and now and then the age begins anew.
-- `kind` is F (failed), G (given back: the attempt is refunded) or E (its lease expired).
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
  if earlier ~= '' or reason ~= '' then -- so that no reason is taken for what is behind it
    reason = reason .. '\0' .. earlier
  end
  -- Not by format: it ends a string at its first zero byte.
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

-- Numbers for so many new messages: answers the first of them. `store` names the queue's store if it has no name yet.
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

-- --- what waits

-- The highest number that was put at the front of a group's list since there was none: behind that one, numbers only
-- grow. Unknown, and so endless, in a queue of an older program until its lists were empty once.
local function front_of(base)
  return tonumber(redis.call('HGET', base .. ':queue', 'front') or math.huge)
end

-- Where in a group's list the messages begin whose numbers are higher than that; only from `front_of` on.
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

-- `flat` holds state, head, body of each message, the oldest first.
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

-- Messages that come back are older than what waits, so they go to their group's front. Each is {tag, state, head,
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

-- No delay outlasts the retention, so that a message which is past that is met when it becomes ready.
local function put_delayed(base, due, tag, state, head, body)
  due = math.min(due, enqueued_of(state) + retention_of(base))
  local member = string.format('%016.0f', seq_of(state)) .. cmsgpack.pack(tag, state, head, body)
  redis.call('ZADD', base .. ':delayed', int(due), member)
end

local function delayed_seq(member)
  return tonumber(string.sub(member, 1, 16))
end

-- What `put_delayed` wrote: tag, state, head, body.
local function delayed_message(member)
  return cmsgpack.unpack(string.sub(member, 17))
end

local function move_due(base, now)
  local due = redis.call('ZRANGEBYSCORE', base .. ':delayed', '-inf', int(now), 'LIMIT', 0, PAGE)
  if #due == 0 then
    return
  end
  redis.call('ZREMRANGEBYRANK', base .. ':delayed', 1, 0) -- none: whether we may (see `may_end`)
  local messages = {}
  for _, member in ipairs(due) do
    messages[#messages + 1] = { delayed_message(member) }
  end
  put_back(base, messages)
  redis.call('ZREMRANGEBYRANK', base .. ':delayed', 0, #due - 1)
end

-- Whether these are dead letters, of whichever tier: by the queue's name, or because some came here.
local function holds_dead(base)
  return string.find(base, '%-dlq$') or string.find(base, '%-dead$')
    or redis.call('HEXISTS', base .. ':queue', 'holds_dead') == 1
end

-- Dead letters past their retention: the only messages that leave without a settlement. They are counted.
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

-- --- what is handed over

-- What a command answered that may meet a queue without a stream or group: nil then. Any other error is one.
local function unless_gone(answer)
  if type(answer) ~= 'table' or not answer.err then
    return answer
  elseif string.find(answer.err, 'NOGROUP', 1, true) or string.find(answer.err, 'no such key', 1, true) then
    return nil
  end
  error(answer.err, 0)
end

-- By name, of an entry as XRANGE and XREADGROUP answer it.
local function fields_of(entry)
  local fields = {}
  for at = 1, #entry[2], 2 do
    fields[entry[2][at]] = entry[2][at + 1]
  end
  return fields
end

-- The message in a stream's entry, nil where the entry is gone. Answers tag, state, head, body.
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

-- A script that a missing right ends half way takes nothing back. So a message is put where it belongs before it is
-- taken from where it was; and before that we look whether we may take it, or it would be there once more after every
-- try. A server without memory refuses only a script's first write, and not these.
local function may_end(stream)
  redis.call('XACK', stream, GROUP, '0-0')
  redis.call('XDEL', stream, '0-0')
end

-- XACK answers 1 only for a hand-over that is still pending: it is the fence. Every hand-over has an entry of its own,
-- so an entry's id never becomes somebody else's.
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
