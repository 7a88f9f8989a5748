-- KEYS: the streams of the queues asked, in order. ARGV: the consumer, a name for a store that is new, then how many
-- messages each queue may bring.
-- Answers {which queue, now, store, retention, receives_max, dead-letter queue, entries} of the first queue that has
-- any, else {0, now, when the next delay ends}. What is behind the entries says whether they are dead letters.

local ADOPT_PAGE, ADOPT_PAGES = 1000, 20 -- what one call adopts at most: some tenths of a second of the server
local consumer, now = ARGV[1], now_ms()

local function read(stream, count)
  local answer = unless_gone(
    redis.pcall('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', count, 'STREAMS', stream, '>')
  )
  if answer == nil then
    -- The group went with the stream, or was never there: begin with the first entry, never with the last.
    redis.call('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
    answer = redis.call('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', count, 'STREAMS', stream, '>')
  end
  return answer and answer[1][2] or {}
end

-- What stands in the stream and was never handed over joins the ring, so that it is fair to the rest and its id stays
-- what it is. Others put it there; or we did, and the group that knew of it was destroyed. A state whose number this queue
-- never gave (an entry copied from another queue) gets a new number.
local function adopt(base, stream, entries)
  local ids, order, by_tag, back = {}, {}, {}, {}
  local seq = next_seq(base, ARGV[2], #entries)
  for number, entry in ipairs(entries) do
    local fields = fields_of(entry)
    ids[number] = entry[1]
    if is_ours(fields) then
      local state = fields.state
      if seq_of(state) >= seq then
        state = string.gsub(state, '^%d+', int(seq + number - 1), 1)
      end
      state = ended(state, started_of(entry[1]), now, 'E', '', '')
      back[#back + 1] = { fields.group or '', state, fields.head or '', fields.body }
    else
      local tag = fields.group and ':' .. fields.group or ''
      local flat = by_tag[tag]
      if not flat then
        flat = {}
        by_tag[tag] = flat
        order[#order + 1] = tag
      end
      local size = #flat
      flat[size + 1] = int(seq + number - 1) .. ' ' .. int(started_of(entry[1]))
      flat[size + 2] = ''
      flat[size + 3] = foreign_body(fields)
    end
  end
  may_end(stream)
  for _, tag in ipairs(order) do
    put_ready(base, tag, by_tag[tag], false)
  end
  put_back(base, back)
  for at = 1, #ids, STEP do
    local last = math.min(at + STEP - 1, #ids)
    redis.call('XACK', stream, GROUP, unpack(ids, at, last))
    redis.call('XDEL', stream, unpack(ids, at, last))
  end
end

-- Answers whether the stream holds nothing more of that kind: else what is fed now would stand behind it and not be
-- read.
local function adopt_all(base, stream)
  if redis.call('EXISTS', stream) == 0 then
    return true
  end
  for _ = 1, ADOPT_PAGES do
    local entries = read(stream, ADOPT_PAGE)
    if #entries > 0 then
      adopt(base, stream, entries)
    end
    if #entries < ADOPT_PAGE then
      return true
    end
  end
  return false
end

-- From the ring into the stream: one message of each group in turn. What was enqueued at `dead_till` or before is a dead
-- letter past its retention, wherever it stands (see `drop_expired`).
local function feed(base, stream, count, dead_till)
  local ring, taken, fed, dropped = base .. ':ring', 0, 0, 0
  while fed < count and dropped < PAGE do
    local tag = redis.call('LINDEX', ring, 0)
    if not tag then
      break
    end
    if taken == 0 then -- whether we may, before anything is taken (see `may_end`): this changes nothing
      redis.call('LPOP', ring, 0)
      redis.call('XADD', stream .. ':none', 'NOMKSTREAM', '*', 'state', '')
    end
    local key, share = base .. ':ready' .. tag, count - fed
    if redis.call('LLEN', ring) > 1 then
      share = 1
      redis.call('RPUSH', ring, tag)
      redis.call('LPOP', ring)
    end
    local flat = redis.call('LPOP', key, share * 3) or {} -- nothing: somebody deleted it, or the server evicted it
    for at = 1, #flat, 3 do
      if dead_till and enqueued_of(flat[at]) <= dead_till then
        dropped = dropped + 1
      elseif tag == '' and flat[at + 1] == '' then -- as it mostly is: half the words to carry
        redis.call('XADD', stream, '*', 'state', flat[at], 'body', flat[at + 2])
      else
        redis.call(
          'XADD', stream, '*', 'state', flat[at], 'body', flat[at + 2], 'group', tag, 'head', flat[at + 1]
        )
      end
    end
    taken = taken + #flat / 3
    fed = taken - dropped
    if redis.call('EXISTS', key) == 0 then
      redis.call('LREM', ring, -1, tag)
    end
  end
  if taken > 0 then
    redis.call('HINCRBY', base .. ':queue', 'ready', -taken)
  end
  if dropped > 0 then
    redis.call('HINCRBY', base .. ':queue', 'dropped', dropped)
  end
  return fed
end

local next_due = nil
for which, stream in ipairs(KEYS) do
  local base = base_of(stream)
  local known = redis.call(
    'HMGET', base .. ':queue', 'paused', 'store', 'retention', 'receives_max', 'dead_letter_queue', 'front'
  )
  if not known[1] then
    move_due(base, now)
    drop_expired(base, now)
    local entries = {}
    local dead_till = holds_dead(base) and now - (known[3] or 14 * DAY)
    if adopt_all(base, stream) and feed(base, stream, tonumber(ARGV[which + 2]), dead_till) > 0 then
      entries = read(stream, ARGV[which + 2])
    end
    if redis.call('EXISTS', base .. ':ring') == 1 then
      wake(base) -- for another worker: this one has what it has room for
    else
      redis.call('DEL', base .. ':wake')
      redis.call('HDEL', base .. ':queue', 'ready') -- nothing is: whatever a deletion by hand left of the count
      if known[2] and known[6] ~= '0' then
        redis.call('HSET', base .. ':queue', 'front', 0)
      end
    end
    if #entries > 0 then
      local store = known[2] or redis.call('HGET', base .. ':queue', 'store')
      if not store then -- somebody deleted the hash, or the server evicted it
        store = ARGV[2]
        redis.call('HSETNX', base .. ':queue', 'store', store)
      end
      return { which, int(now), store, known[3], known[4], known[5], entries, dead_till and 1 or 0 }
    end
    local first = redis.call('ZRANGE', base .. ':delayed', 0, 0, 'WITHSCORES')[2]
    if first and (not next_due or tonumber(first) < tonumber(next_due)) then
      next_due = first
    end
  end
end
return { 0, int(now), next_due }
