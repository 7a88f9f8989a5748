-- KEYS: stream. ARGV: ids of entries. Returns the time, then the state in each entry, empty if it was deleted.

local states = {}
for number, id in ipairs(ARGV) do
  local _, state = message_in(KEYS[1], id)
  states[number] = state or ''
end
return { int(now_ms()), states }
