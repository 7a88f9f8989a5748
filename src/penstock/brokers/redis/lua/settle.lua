-- Settle deliveries.
-- KEYS: the queue's stream, its dead-letter queue's stream. ARGV: a name for the dead-letter queue's store if it is
-- new, this worker, the number of acks and the ids of their entries, then releases and dead letters in any order:
--   'release', id, delay, kind, reason
--   'dead', id, head
-- Returns the ids whose lease is lost, the ids whose entry another client deleted, and the dead-letter queue's store.

local stream, base, now, worker = KEYS[1], base_of(KEYS[1]), now_ms(), ARGV[2]
local lost, vanished, back, back_ids, dead, dead_ids = {}, {}, {}, {}, {}, {}

-- Ack deliveries in one command, since usually none is lost. XACK does not return which were not pending any more: those
-- whose entry is no longer in the stream, because every end of a delivery deletes its entry (as another client may have
-- done). If none was pending, all are lost, also those with an entry: the consumer group was destroyed, and the next
-- receive delivers these entries again.
local function ack(first, last)
  local count = redis.call('XACK', stream, GROUP, unpack(ARGV, first, last))
  if count == last - first + 1 then
    redis.call('XDEL', stream, unpack(ARGV, first, last))
    return
  end
  for at = first, last do
    if count == 0 or redis.call('XDEL', stream, ARGV[at]) == 0 then
      lost[#lost + 1] = ARGV[at]
    end
  end
end

local acks = tonumber(ARGV[3])
for at = 4, 3 + acks, STEP do
  ack(at, math.min(at + STEP - 1, 3 + acks))
end

-- Return the message of a delivery that ends here; nil if there is none.
local function ending(id)
  local tag, state, head, body = message_in(stream, id)
  if not is_pending(stream, id) then
    lost[#lost + 1] = id
    return nil
  elseif not state then
    end_hand_over(stream, id)
    vanished[#vanished + 1] = id
    return nil
  end
  return tag, state, head, body
end

local at = 4 + acks
if at <= #ARGV then
  may_end(stream)
end
while at <= #ARGV do
  local id = ARGV[at + 1]
  local tag, state, head, body = ending(id)
  if ARGV[at] == 'release' then
    if state then
      state = ended(state, started_of(id), now, ARGV[at + 3], worker, ARGV[at + 4])
      local delay = tonumber(ARGV[at + 2])
      if delay > 0 then
        put_delayed(base, now + delay, tag, state, head, body)
        end_hand_over(stream, id)
      else
        back_ids[#back_ids + 1] = id
        back[#back + 1] = { tag, state, head, body }
      end
    end
    at = at + 5
  else
    if state then
      dead_ids[#dead_ids + 1] = id
      dead[#dead + 1] = { tag, ARGV[at + 2], body }
    end
    at = at + 3
  end
end

put_back(base, back)
end_hand_overs(stream, back_ids)
local dead_store = ''
if #dead > 0 then
  local dead_base = base_of(KEYS[2])
  wake(dead_base)
  local seq = next_seq(dead_base, ARGV[1], #dead)
  redis.call('HSET', dead_base .. ':queue', 'holds_dead', '1')
  for number, letter in ipairs(dead) do
    put_ready(dead_base, letter[1], { int(seq + number - 1) .. ' ' .. int(now), letter[2], letter[3] }, false)
  end
  end_hand_overs(stream, dead_ids)
  dead_store = redis.call('HGET', dead_base .. ':queue', 'store')
end
return { lost, vanished, dead_store }
