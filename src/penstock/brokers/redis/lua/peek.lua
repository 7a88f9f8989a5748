-- KEYS: stream. ARGV: entries' ids. Answers now, then the state in each entry, empty where it is gone.

local states = {}
for number, id in ipairs(ARGV) do
  local _, state = message_in(KEYS[1], id)
  states[number] = state or ''
end
return { int(now_ms()), states }
