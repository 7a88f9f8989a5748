# Sidekiq: JSON jobs in a list. Its free edition takes a job off the list before it works on it.
#
#   sidekiq -r ./sidekiq_peer.rb -q bench -c N          # the worker
#   ruby sidekiq_peer.rb send FIRST COUNT SECONDS MODE  # the sending verbs of peer.py

require "sidekiq"

RECORD = 40
PACE_SECONDS = 0.02
SEND_AT_ONCE = 1_000

Sidekiq.configure_server { |config| config.redis = { url: ENV.fetch("BENCH_REDIS") } }
Sidekiq.configure_client { |config| config.redis = { url: ENV.fetch("BENCH_REDIS") } }
Sidekiq.logger.level = Logger::WARN # a line a job otherwise, and the others write none

# The records of effects.py: sent at, first and last start (doubles), starts (64 bits), ended at.
module Effects
  FILE = File.open(ENV.fetch("BENCH_EFFECTS"), "r+b")
  BOOK = IO.binread(ENV.fetch("BENCH_EFFECTS")) # what a process before this one wrote
  STARTS = Hash.new { |known, number| known[number] = BOOK[number * RECORD + 8, 24].unpack("EEQ<") }

  def self.sending(number)
    FILE.pwrite([Time.now.to_f].pack("E"), number * RECORD)
  end

  def self.started(number)
    now = Time.now.to_f
    first, _, starts = STARTS[number]
    first = now if first.zero?
    STARTS[number] = [first, now, starts + 1]
    FILE.pwrite([first, now, starts + 1].pack("EEQ<"), number * RECORD + 8)
  end

  def self.ended(number)
    FILE.pwrite([Time.now.to_f].pack("E"), number * RECORD + 32)
  end
end

class Work
  include Sidekiq::Worker
  sidekiq_options queue: "bench"

  def perform(number, seconds)
    Effects.started(number)
    return unless seconds.positive?

    sleep(seconds)
    Effects.ended(number)
  end
end

def clock = Process.clock_gettime(Process::CLOCK_MONOTONIC)

def send_singly(numbers, seconds, begun, paced)
  numbers.each.with_index(1) do |number, step|
    if paced
      rest = begun + step * PACE_SECONDS - clock
      sleep(rest) if rest.positive?
      Effects.sending(number)
    end
    Work.perform_async(number, seconds)
  end
end

if $PROGRAM_NAME == __FILE__
  _, first, count, seconds, mode = ARGV
  first, seconds = first.to_i, seconds.to_f
  rest = (first + 1)...(first + count.to_i)
  Effects.sending(first) if mode == "paced"
  Work.perform_async(first, seconds) # opens the connection, and is not timed
  begun = clock
  if mode == "many"
    rest.each_slice(SEND_AT_ONCE) { |slice| Work.perform_bulk(slice.map { |number| [number, seconds] }) }
  else
    send_singly(rest, seconds, begun, mode == "paced")
  end
  puts clock - begun
end
