-- Requeue deliveries whose lease has ended, or all deliveries of a worker that is proven dead.
-- KEYS: stream. ARGV: where in the pending list to begin, the number of entries to inspect, and the dead worker (empty:
-- check the leases).
-- A consumer is named WORKER|BOOT|LEASE. Returns {where to continue (empty at the end), the number of requeued
-- messages, the ids whose entry another client deleted, and for each message delivered too often {id, end of the
-- delivery, worker, state, group, head, body, store}}.

local FOREIGN_LEASE = 60000 -- of a consumer with another name: another client read from the stream
local stream, base, now = KEYS[1], base_of(KEYS[1]), now_ms()
local page = unless_gone(redis.pcall('XPENDING', stream, GROUP, ARGV[1], '+', ARGV[2]))
if not page then
  return { '', 0, {}, {} } -- no such queue
end
local receives_max = tonumber(redis.call('HGET', base .. ':queue', 'receives_max') or 0)
local back, back_ids, vanished, exhausted, foreign = {}, {}, {}, {}, 0

local function hand_overs_of(state)
  local hand_overs, refunds = string.match(state, '^%d+ %d+ %d+ (%d+) (%d+) ')
  return tonumber(hand_overs or 0) + 1 - tonumber(refunds or 0)
end

-- Add an entry to the stream again that another program wrote, and that was read in our group without `take.lua`. The
-- next receive adopts it.
local function put_foreign_back(id, fields)
  may_end(stream)
  local group = fields.group and { 'group', fields.group } or {}
  redis.call('XADD', stream, '*', 'body', foreign_body(fields), unpack(group))
  end_hand_over(stream, id)
  wake(base)
  foreign = foreign + 1
end

local function put_aside(id, worker, at)
  local entry = redis.call('XRANGE', stream, id, id)[1]
  if not entry then
    redis.call('XACK', stream, GROUP, id)
    vanished[#vanished + 1] = id
    return
  end
  local fields = fields_of(entry)
  if not is_ours(fields) then
    put_foreign_back(id, fields)
    return
  end
  local tag, state, head, body = fields.group or '', fields.state, fields.head or '', fields.body
  if receives_max > 0 and hand_overs_of(state) >= receives_max then
    local store = redis.call('HGET', base .. ':queue', 'store')
    exhausted[#exhausted + 1] = { id, int(at), worker, state, tag, head, body, store }
  else
    back_ids[#back_ids + 1] = id
    back[#back + 1] = { tag, ended(state, started_of(id), at, 'E', worker, ''), head, body }
  end
end

for _, pending in ipairs(page) do
  local id, consumer, idle = pending[1], pending[2], pending[3]
  local worker = string.match(consumer, '^(.*)|[^|]*|%d+$')
  local lease = tonumber(string.match(consumer, '|(%d+)$') or FOREIGN_LEASE)
  local over_at = now - idle + lease
  if ARGV[3] == '' then
    if over_at <= now then
      put_aside(id, worker or consumer, over_at)
    end
  elseif worker == ARGV[3] then
    put_aside(id, worker, math.min(over_at, now))
  end
end

if #back > 0 then
  may_end(stream)
  put_back(base, back)
end
end_hand_overs(stream, back_ids)
local last = page[#page]
return { #page == tonumber(ARGV[2]) and '(' .. last[1] or '', #back + foreign, vanished, exhausted }
