-- Receive messages from the first queue that has some.
-- KEYS: the streams of the requested queues, in order. ARGV: the consumer, a name for a new store, then the maximum
-- number of messages for each queue.
-- Returns {index of the queue, now, store, retention, receives_max, dead-letter queue, messages, 1 for a DLQ, 1 if the
-- queue has no more ready messages, then the end of its next delay}, or {0, now, end of the next delay} if no queue has
-- messages. `messages` is flat: id, state, body, group and head of each. A list for each would cost the server and the
-- client twice as much (measured).

local ADOPT_PAGE, ADOPT_PAGES = 1000, 20 -- the most that one call adopts, in some tenths of a second on the server
local consumer, now = ARGV[1], now_ms()

local function read(stream, count)
  local answer = unless_gone(
    redis.pcall('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', count, 'STREAMS', stream, '>')
  )
  if answer == nil then
    -- The consumer group was deleted with the stream, or never existed: begin with the first entry, not the last.
    redis.call('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
    answer = redis.call('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', count, 'STREAMS', stream, '>')
  end
  return answer and answer[1][2] or {}
end

-- Move entries of the stream that were never delivered into the group rotation, so that they take turns with the other
-- messages and keep their id. Other clients added them; or we did, and the consumer group that listed them was
-- destroyed. A state with a number that this queue never issued (an entry copied from another queue) gets a new number.
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

-- Returns true if the stream holds no more of them: otherwise entries added now would come after them and not be read.
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

-- Move messages from the group rotation into the stream, one of each group in turn. Messages enqueued at `dead_till` or
-- before are dead letters past their retention, wherever they are (see `drop_expired`).
local function feed(base, stream, count, dead_till)
  local ring, taken, fed, dropped = base .. ':ring', 0, 0, 0
  while fed < count and dropped < PAGE do
    local tag = redis.call('LINDEX', ring, 0)
    if not tag then
      break
    end
    if taken == 0 then -- changes nothing, but raises if permission is missing, before anything is taken (see `may_end`)
      redis.call('LPOP', ring, 0)
      redis.call('XADD', stream .. ':none', 'NOMKSTREAM', '*', 'state', '')
    end
    local key, share = base .. ':ready' .. tag, count - fed
    if redis.call('LLEN', ring) > 1 then
      share = 1
      redis.call('RPUSH', ring, tag)
      redis.call('LPOP', ring)
    end
    local flat = redis.call('LPOP', key, share * 3) or {} -- empty: another client deleted it, or the server evicted it
    for at = 1, #flat, 3 do
      if dead_till and enqueued_of(flat[at]) <= dead_till then
        dropped = dropped + 1
      elseif tag == '' and flat[at + 1] == '' then -- the usual case: half as many fields
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

-- Return the entries, which `feed` wrote, as a flat list.
local function flat_of(entries)
  local flat = {}
  for number, entry in ipairs(entries) do
    local at, fields = number * 5, entry[2]
    flat[at - 4], flat[at - 3], flat[at - 2] = entry[1], fields[2], fields[4]
    flat[at - 1], flat[at] = fields[6] or '', fields[8] or ''
  end
  return flat
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
    local drained = redis.call('EXISTS', base .. ':ring') == 0
    if not drained then
      wake(base) -- for another worker: this one has as many as it has room for
    else
      redis.call('DEL', base .. ':wake')
      redis.call('HDEL', base .. ':queue', 'ready') -- none is ready: reset a count that a manual deletion made wrong
      if known[2] and known[6] ~= '0' then
        redis.call('HSET', base .. ':queue', 'front', 0)
      end
    end
    local first = drained and redis.call('ZRANGE', base .. ':delayed', 0, 0, 'WITHSCORES')[2]
    if #entries > 0 then
      local store = known[2] or redis.call('HGET', base .. ':queue', 'store')
      if not store then -- another client deleted the hash, or the server evicted it
        store = ARGV[2]
        redis.call('HSETNX', base .. ':queue', 'store', store)
      end
      return {
        which, int(now), store, known[3], known[4], known[5], flat_of(entries), dead_till and 1 or 0,
        drained and 1 or 0, first,
      }
    end
    if first and (not next_due or tonumber(first) < tonumber(next_due)) then
      next_due = first
    end
  end
end
return { 0, int(now), next_due }
