-- Return messages in one state, or one message, without scanning a whole list, set or stream.
-- KEYS: stream. ARGV: what to return, then its arguments:
--   'waiting', count, most bytes [, position in the ring, tag, position in the group, number of the last message]
--   'in_flight', count, most bytes [, id of the last entry]
--   'delayed', count, most bytes [, time of the last message, its number]
--   'one', number [, tag, position in the group (or -1), id of the entry, time] as far as they were known
-- Returns now, the store, a list of messages, and the arguments after which the next page begins (empty at the end).
-- A message is {kind, state, tag, head, body, then: position in its group | entry, consumer, idle time | due time}.

local CHUNK = 10 -- messages in one command, since a body may have a MiB
local NEAR = 300 -- positions inspected around the last known one
local SEARCH_MAX = 1000 -- messages inspected in a search without an index
local STEPS_MAX = 20000 -- positions of lists read by a call, some milliseconds on the server
local SEARCH_BYTES_MAX = 8388608
local stream, base, now = KEYS[1], base_of(KEYS[1]), now_ms()
local count, bytes_left = tonumber(ARGV[2]), tonumber(ARGV[3])
local ring, delayed = base .. ':ring', base .. ':delayed'
local found, next_page, steps = {}, {}, 0
move_due(base, now)
drop_expired(base, now)

local function add(row, body)
  found[#found + 1] = row
  bytes_left = bytes_left - #body
end

local function has_room()
  return #found < count and bytes_left >= 0
end

-- --- waiting messages

local function seq_at(key, place)
  steps = steps + 1
  local state = steps < STEPS_MAX and redis.call('LINDEX', key, place * 3)
  return state and seq_of(state)
end

-- Return the position of a message in its group's list; nil if it is not there. `hint` is where it was: others may have
-- left or joined at the front since. Behind `front_of` the numbers grow, so it is found from anywhere.
local function place_of(key, seq, hint)
  local length = redis.call('LLEN', key) / 3
  if hint and hint >= 0 and seq_at(key, hint) == seq then
    return hint
  end
  if seq > front_of(base) then
    local place = place_behind(key, seq) / 3 - 1
    return place >= 0 and seq_at(key, place) == seq and place or nil
  end
  local from = math.max((hint or 0) - NEAR, 0)
  for place = from, math.min(from + 2 * NEAR, length) - 1 do
    if seq_at(key, place) == seq then
      return place
    end
  end
end

-- Return the position at which a group's next page begins.
local function place_after(key, seq, hint)
  local place = place_of(key, seq, hint)
  if place then
    return place + 1
  end
  return seq > front_of(base) and place_behind(key, seq) / 3 or math.min(hint, redis.call('LLEN', key) / 3)
end

-- Return the position of a group in the ring, which turns as groups are served; nil if it has no messages any more.
local function ring_place(tag, hint)
  if redis.call('LINDEX', ring, hint) == tag then
    return hint
  end
  local from = math.max(hint - PAGE, 0)
  for number, other in ipairs(redis.call('LRANGE', ring, from, from + 2 * PAGE)) do
    if other == tag then
      return from + number - 1
    end
  end
end

local function waiting_row(tag, place, state, head, body)
  return { 'w', state, tag, head, body, int(place) }
end

local function add_group(tag, place, position)
  local key = base .. ':ready' .. tag
  local flat = redis.call('LRANGE', key, place * 3, (place + CHUNK) * 3 - 1)
  while #flat > 0 and has_room() do
    for at = 1, #flat, 3 do
      if has_room() then
        add(waiting_row(tag, place, flat[at], flat[at + 1], flat[at + 2]), flat[at + 2])
        next_page = { int(position), tag, int(place), int(seq_of(flat[at])) }
        place = place + 1
      end
    end
    flat = redis.call('LRANGE', key, place * 3, (place + CHUNK) * 3 - 1)
  end
  return #flat == 0
end

local function add_waiting()
  local position, place = 0, 0
  if ARGV[4] then
    position = ring_place(ARGV[5], tonumber(ARGV[4]))
    if position then
      place = place_after(base .. ':ready' .. ARGV[5], tonumber(ARGV[7]), tonumber(ARGV[6]))
    else
      position = tonumber(ARGV[4])
    end
  end
  local tag = redis.call('LINDEX', ring, position)
  while tag and has_room() do
    if not add_group(tag, place, position) then
      return
    end
    position, place = position + 1, 0
    tag = redis.call('LINDEX', ring, position)
  end
  if not tag then
    next_page = {}
  end
end

-- --- messages in flight

local function in_flight_row(id, consumer, idle)
  local entry = redis.call('XRANGE', stream, id, id)[1]
  local fields = entry and fields_of(entry)
  if fields and is_ours(fields) then
    return { 'f', fields.state, fields.group or '', fields.head or '', fields.body, id, consumer, int(idle) }
  end
end

local function add_in_flight()
  local from = ARGV[4] and '(' .. ARGV[4] or '-'
  local page = unless_gone(redis.pcall('XPENDING', stream, GROUP, from, '+', count)) or {}
  local last = 0
  for number, pending in ipairs(page) do
    if bytes_left < 0 then
      break
    end
    last = number
    local row = in_flight_row(pending[1], pending[2], pending[3])
    if row then
      add(row, row[5])
    end
  end
  if last > 0 and (#page == count or last < #page) then
    next_page = { page[last][1] }
  end
end

-- --- delayed messages

-- Return the rank of the first delayed message after a time and a number: those of one time are ordered by number.
local function rank_after(due, seq)
  local low, high = 0, redis.call('ZCARD', delayed)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local found = redis.call('ZRANGE', delayed, middle, middle, 'WITHSCORES')
    local its_due = tonumber(found[2])
    if its_due > due or (its_due == due and delayed_seq(found[1]) > seq) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

local function delayed_row(member, due)
  local tag, state, head, body = delayed_message(member)
  return { 'd', state, tag, head, body, int(tonumber(due)) }
end

local function add_delayed()
  local rank = ARGV[4] and rank_after(tonumber(ARGV[4]), tonumber(ARGV[5])) or 0
  local flat = redis.call('ZRANGE', delayed, rank, rank + CHUNK - 1, 'WITHSCORES')
  while #flat > 0 and has_room() do
    for at = 1, #flat, 2 do
      if has_room() then
        local row = delayed_row(flat[at], flat[at + 1])
        add(row, row[5])
        next_page = { row[6], int(delayed_seq(flat[at])) }
        rank = rank + 1
      end
    end
    flat = redis.call('ZRANGE', delayed, rank, rank + CHUNK - 1, 'WITHSCORES')
  end
  if #flat == 0 then
    next_page = {}
  end
end

-- --- one message

local function find_waiting(tag, seq, hint)
  local key = base .. ':ready' .. tag
  local place = place_of(key, seq, hint) or (hint and hint > NEAR and place_of(key, seq))
  if place then
    local flat = redis.call('LRANGE', key, place * 3, place * 3 + 2)
    return waiting_row(tag, place, flat[1], flat[2], flat[3])
  end
end

local function find_in_flight(seq)
  local page = unless_gone(redis.pcall('XPENDING', stream, GROUP, '-', '+', SEARCH_MAX)) or {}
  for _, pending in ipairs(page) do
    local row = bytes_left > 0 and in_flight_row(pending[1], pending[2], pending[3])
    if row and seq_of(row[2]) == seq then
      return row
    end
    bytes_left = bytes_left - (row and #row[5] or 0)
  end
end

local function find_delayed(seq)
  for rank = 0, SEARCH_MAX - 1, 10 * CHUNK do
    local flat = redis.call('ZRANGE', delayed, rank, rank + 10 * CHUNK - 1, 'WITHSCORES')
    for at = 1, #flat, 2 do
      if delayed_seq(flat[at]) == seq then
        return delayed_row(flat[at], flat[at + 1])
      end
      bytes_left = bytes_left - #flat[at]
    end
    if #flat < 20 * CHUNK or bytes_left < 0 then
      return nil
    end
  end
end

local function find_delayed_at(seq, due)
  local rank = rank_after(due, seq) - 1
  local flat = rank >= 0 and redis.call('ZRANGE', delayed, rank, rank, 'WITHSCORES') or {}
  if flat[1] and delayed_seq(flat[1]) == seq then
    return delayed_row(flat[1], flat[2])
  end
end

local function find_entry(seq, id)
  local pending = unless_gone(redis.pcall('XPENDING', stream, GROUP, id, id, 1)) or {}
  local row = pending[1] and in_flight_row(id, pending[1][2], pending[1][3])
  return row and seq_of(row[2]) == seq and row or nil
end

local function find_in_groups(seq)
  for _, tag in ipairs(redis.call('LRANGE', ring, 0, PAGE - 1)) do
    local row = find_waiting(tag, seq)
    if row then
      return row
    end
  end
end

local function find_one(seq, tag, place, entry, due)
  bytes_left = SEARCH_BYTES_MAX
  return (entry ~= '' and find_entry(seq, entry))
    or (due ~= '' and find_delayed_at(seq, tonumber(due)))
    or (place ~= '' and find_waiting(tag, seq, tonumber(place)))
    or find_in_flight(seq)
    or (place == '' and find_in_groups(seq))
    or find_delayed(seq)
end

if ARGV[1] == 'waiting' then
  add_waiting()
elseif ARGV[1] == 'in_flight' then
  add_in_flight()
elseif ARGV[1] == 'delayed' then
  add_delayed()
else
  found[1] = find_one(tonumber(ARGV[2]), ARGV[3] or '', ARGV[4] or '', ARGV[5] or '', ARGV[6] or '') or nil
end
return { int(now), redis.call('HGET', base .. ':queue', 'store') or '', found, next_page }
