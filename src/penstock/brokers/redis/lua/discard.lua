-- Delete messages in any state: ready, delayed or being delivered.
-- KEYS: stream. ARGV: a placeholder that no sender can have written, which replaces deleted messages in a list for a
-- moment, and the numbers of the messages.
-- Returns how many existed.

local gone = ARGV[1]
local stream, base = KEYS[1], base_of(KEYS[1])
local front = front_of(base)
local wanted, left, lowest, highest = {}, 0, math.huge, 0
for number = 2, #ARGV do
  local seq = tonumber(ARGV[number])
  wanted[seq] = true
  left = left + 1
  lowest, highest = math.min(lowest, seq), math.max(highest, seq)
end

local function is_wanted(seq)
  if not wanted[seq] then
    return false
  end
  wanted[seq] = nil
  left = left - 1
  return true
end

-- Where numbers are in order, only messages between the lowest and the highest requested number are inspected.
local function discard_ready(tag)
  local key, found, seq = base .. ':ready' .. tag, {}, 0
  local at = front < lowest and place_behind(key, lowest - 1) or 0
  local length = redis.call('LLEN', key)
  while at < length and left > 0 and seq <= math.max(front, highest) do
    local flat = redis.call('LRANGE', key, at, at + STEP * 3 - 1)
    for number = 1, #flat, 3 do
      seq = seq_of(flat[number])
      if is_wanted(seq) then
        found[#found + 1] = at + number - 1
      end
    end
    at = at + #flat
  end
  for _, place in ipairs(found) do
    for part = 0, 2 do
      redis.call('LSET', key, place + part, gone)
    end
  end
  if #found > 0 then
    redis.call('LREM', key, #found * 3, gone)
    redis.call('HINCRBY', base .. ':queue', 'ready', -#found)
    if redis.call('EXISTS', key) == 0 then
      redis.call('LREM', base .. ':ring', 1, tag)
    end
  end
end

local function discard_delayed()
  local key, found = base .. ':delayed', {}
  for at = 0, redis.call('ZCARD', key) - 1, PAGE do
    for place, member in ipairs(redis.call('ZRANGE', key, at, at + PAGE - 1)) do
      if is_wanted(delayed_seq(member)) then
        found[#found + 1] = at + place - 1
      end
    end
    if left == 0 then
      break
    end
  end
  for number = #found, 1, -1 do -- from the end, so that earlier positions stay valid
    redis.call('ZREMRANGEBYRANK', key, found[number], found[number])
  end
end

local function discard_handed_over()
  local from, found = '-', {}
  while from and left > 0 do
    local entries = redis.call('XRANGE', stream, from, '+', 'COUNT', PAGE)
    for _, entry in ipairs(entries) do
      local state = fields_of(entry).state
      if is_state(state) and is_wanted(seq_of(state)) then
        found[#found + 1] = entry[1]
      end
    end
    from = #entries == PAGE and '(' .. entries[#entries][1]
  end
  for _, id in ipairs(found) do
    redis.pcall('XACK', stream, GROUP, id)
    redis.call('XDEL', stream, id)
  end
end

for _, tag in ipairs(redis.call('LRANGE', base .. ':ring', 0, -1)) do
  if left > 0 then
    discard_ready(tag)
  end
end
if left > 0 then
  discard_delayed()
end
if left > 0 then
  discard_handed_over()
end
return #ARGV - 1 - left
