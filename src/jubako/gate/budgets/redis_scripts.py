"""The operations of the Redis store in Lua: each is one script, and so atomic.

The arithmetic is that of `windows`, and both pass the same tests. An account is a MessagePack array: places taken,
tokens held, day, its tokens, month, its tokens, then second, requests and tokens of each slot. A reservation is one as
well: the seconds of its request and of its tokens, the tokens, 1 if it was reaped, then name and spans of each account.

The first arguments are always: the time (empty: Redis's own clock), the prefix of keys, the instance, its lease.
"""

from __future__ import annotations

from jubako.gate.budgets.store import KEPT_SECONDS
from jubako.gate.budgets.windows import DAY, DAY_SECONDS, MINUTE, MONTH, NEVER, SLOT_LIFE_SECONDS

_CONSTANTS = f"""
local LIFE, DAY_SECONDS, KEPT = {SLOT_LIFE_SECONDS}, {DAY_SECONDS}, {KEPT_SECONDS}
local MINUTE, DAY, MONTH, NEVER = {MINUTE}, {DAY}, {MONTH}, {NEVER}
"""

_FUNCTIONS = """
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end
local prefix, instance, lease = ARGV[2], ARGV[3], tonumber(ARGV[4])
local second = math.floor(now)
local leases = prefix .. 'leases'
local function holds(of) return prefix .. 'held:' .. of end

local function counts(bits, span) return bit.band(bits, span) ~= 0 end

local function day_of(at) return math.floor(at / DAY_SECONDS) end

local function month_of(at)
  -- From days to the Gregorian calendar, with years that begin in March.
  local z = day_of(at) + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local shifted = math.floor((5 * doy + 2) / 153)
  local month = shifted < 10 and shifted + 3 or shifted - 9
  return (yoe + era * 400 + (month <= 2 and 1 or 0)) * 12 + month - 1
end

local accounts = {}

local function account(name)
  if accounts[name] then return accounts[name] end
  local packed = redis.call('GET', name)
  local kept = packed and cmsgpack.unpack(packed) or {0, 0, 0, 0, 0, 0}
  local found = {under_way = kept[1], held = kept[2], day = day_of(second), day_tokens = 0, month = month_of(second),
                 month_tokens = 0, slots = {}}
  if kept[3] == found.day then found.day_tokens = kept[4] end
  if kept[5] == found.month then found.month_tokens = kept[6] end
  for i = 7, #kept, 3 do
    if kept[i] > second - LIFE and kept[i] < second + LIFE then
      table.insert(found.slots, {kept[i], kept[i + 1], kept[i + 2]})
    end
  end
  accounts[name] = found
  return found
end

local function save()
  for name, one in pairs(accounts) do
    local seconds = 0
    if #one.slots > 0 then seconds = LIFE end
    if one.under_way > 0 or one.day_tokens > 0 then seconds = DAY_SECONDS end
    if one.month_tokens > 0 then seconds = 31 * DAY_SECONDS end
    if seconds == 0 then
      redis.call('DEL', name)
    else
      local kept = {one.under_way, one.held, one.day, one.day_tokens, one.month, one.month_tokens}
      for _, slot in ipairs(one.slots) do
        kept[#kept + 1] = slot[1]
        kept[#kept + 1] = slot[2]
        kept[#kept + 1] = slot[3]
      end
      redis.call('SET', name, cmsgpack.pack(kept), 'EX', seconds)
    end
  end
end

local function add(one, at, bits, requests, tokens)
  if counts(bits, MINUTE) and at > second - LIFE and (requests ~= 0 or tokens ~= 0) then
    local place, slot = 1, nil
    for i = #one.slots, 1, -1 do
      if one.slots[i][1] == at then slot = one.slots[i] break end
      if one.slots[i][1] < at then place = i + 1 break end
    end
    if slot then
      slot[2], slot[3] = math.max(0, slot[2] + requests), math.max(0, slot[3] + tokens)
    elseif requests > 0 or tokens > 0 then
      table.insert(one.slots, place, {at, math.max(0, requests), math.max(0, tokens)})
    end
  end
  if counts(bits, DAY) and one.day == day_of(at) then one.day_tokens = math.max(0, one.day_tokens + tokens) end
  if counts(bits, MONTH) and one.month == month_of(at) then
    one.month_tokens = math.max(0, one.month_tokens + tokens)
  end
end

local function hold(one, requests, tokens)
  one.under_way = math.max(0, one.under_way + requests)
  one.held = math.max(0, one.held + tokens)
end

local function fit_at(slots, which, used, limit, more)
  if limit < 0 or more == 0 then return 0 end
  if more > limit then return NEVER end
  local excess = used + more - limit
  if excess <= 0 then return 0 end
  for _, slot in ipairs(slots) do
    excess = excess - slot[which]
    if excess <= 0 then return slot[1] + LIFE end
  end
  return NEVER
end

local function within(limit, used, more) return limit < 0 or more == 0 or used + more <= limit end

-- Appends how the account stands to the answer, and says whether the claim fits.
local function weigh(answer, claim, requests, tokens)
  local one, limits = account(claim.name), claim.limits
  local used_requests, used_tokens, last_requests, last_tokens = 0, 0, 0, 0
  for _, slot in ipairs(one.slots) do
    used_requests, used_tokens = used_requests + slot[2], used_tokens + slot[3]
    if slot[2] > 0 then last_requests = slot[1] end
    if slot[3] > 0 then last_tokens = slot[1] end
  end
  local requests_fit_at = fit_at(one.slots, 2, used_requests, limits[1], requests)
  local tokens_fit_at = fit_at(one.slots, 3, used_tokens, limits[2], tokens)
  for _, number in ipairs({used_requests, used_tokens, last_requests, last_tokens, one.day_tokens, one.month_tokens,
                           one.under_way, one.held, requests_fit_at, tokens_fit_at}) do
    answer[#answer + 1] = number
  end
  return requests_fit_at == 0 and tokens_fit_at == 0 and within(limits[3], one.day_tokens, tokens)
    and within(limits[4], one.month_tokens, tokens) and within(limits[5], one.under_way, requests)
end

-- Keys are the accounts; after the arguments named, each has five limits, below zero where there is none.
local function claims_from(first)
  local claims = {}
  for i, name in ipairs(KEYS) do
    local limits = {}
    for j = 1, 5 do limits[j] = tonumber(ARGV[first + (i - 1) * 5 + j - 1]) end
    local bits = 0
    if limits[1] >= 0 or limits[2] >= 0 then bits = bits + MINUTE end
    if limits[3] >= 0 then bits = bits + DAY end
    if limits[4] >= 0 then bits = bits + MONTH end
    claims[i] = {name = name, limits = limits, bits = bits}
  end
  return claims
end

local function weigh_all(answer, claims, requests, tokens)
  local granted = true
  for _, claim in ipairs(claims) do
    granted = weigh(answer, claim, requests, tokens) and granted
  end
  return granted
end

local function time() return string.format('%.17g', now) end

local function give_back(held, tokens, request)
  for i = 5, #held, 2 do
    local one = account(held[i])
    add(one, held[2], held[i + 1], 0, tokens - held[3])
    if request then add(one, held[1], held[i + 1], -1, 0) end
    hold(one, held[4] == 0 and -1 or 0, -held[3])
  end
end

local function reap(of)
  local fields = redis.call('HGETALL', holds(of))
  for i = 1, #fields, 2 do
    if fields[i] ~= 'fence' then
      local held = cmsgpack.unpack(fields[i + 1])
      if held[4] == 0 or held[3] > 0 then
        give_back(held, 0, false)
        held[3], held[4] = 0, 1
        redis.call('HSET', holds(of), fields[i], cmsgpack.pack(held))
      end
    end
  end
end

local function see_leases()
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', time())) do
    if other ~= instance then
      reap(other)
      redis.call('ZREM', leases, other)
    end
  end
  local own = redis.call('ZSCORE', leases, instance)
  if not own or tonumber(own) <= now then redis.call('ZADD', leases, string.format('%.17g', now + lease), instance) end
end
"""

_COMMON = _CONSTANTS + _FUNCTIONS

TAKE = (
    _COMMON
    + """
local number, tokens = ARGV[5], tonumber(ARGV[6])
local claims = claims_from(7)
see_leases()
local fence = redis.call('HGET', holds(instance), 'fence')
if fence and tonumber(number) <= tonumber(fence) then
  save()
  return {0, time(), 0}
end
local before = redis.call('HGET', holds(instance), number)
if before then give_back(cmsgpack.unpack(before), 0, true) end
local answer = {1, time(), 1}
if weigh_all(answer, claims, 1, tokens) then
  local held = {second, second, tokens, 0}
  for _, claim in ipairs(claims) do
    local one = account(claim.name)
    hold(one, 1, tokens)
    add(one, second, claim.bits, 1, tokens)
    held[#held + 1] = claim.name
    held[#held + 1] = claim.bits
  end
  redis.call('HSET', holds(instance), number, cmsgpack.pack(held))
  redis.call('EXPIRE', holds(instance), KEPT)
else
  answer[1] = 0
  if before then redis.call('HDEL', holds(instance), number) end
end
save()
return answer
"""
)

AMEND = (
    _COMMON
    + """
local number, tokens = ARGV[5], tonumber(ARGV[6])
local claims = claims_from(7)
local packed = redis.call('HGET', holds(instance), number)
if not packed then return {0, time(), 0} end
local held = cmsgpack.unpack(packed)
local wanted, at = 0, held[2]
if tokens > held[3] then wanted, at = tokens, second end
for i = 5, #held, 2 do
  add(account(held[i]), held[2], held[i + 1], 0, -held[3])
  hold(account(held[i]), 0, -held[3])
end
local answer = {1, time(), 1}
if weigh_all(answer, claims, 0, wanted) then
  held[2], held[3] = at, tokens
  for i = 5, #held, 2 do
    add(account(held[i]), at, held[i + 1], 0, tokens)
    hold(account(held[i]), 0, tokens)
  end
  redis.call('HSET', holds(instance), number, cmsgpack.pack(held))
  save()
else
  answer[1] = 0  -- and nothing of it is saved
end
return answer
"""
)

END = (
    _COMMON
    + """
local claims = claims_from(5)
for i = 5 + 5 * #KEYS, #ARGV, 3 do
  local number, tokens, doubtful = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2] == '1'
  local packed = redis.call('HGET', holds(instance), number)
  if packed then
    give_back(cmsgpack.unpack(packed), math.max(0, tokens), tokens < 0)
    redis.call('HDEL', holds(instance), number)
  end
  if doubtful then
    local fence = redis.call('HGET', holds(instance), 'fence')
    if not fence or tonumber(fence) < tonumber(number) then
      redis.call('HSET', holds(instance), 'fence', number)
      redis.call('EXPIRE', holds(instance), KEPT)
    end
  end
end
local answer = {1, time(), 1}
weigh_all(answer, claims, 0, 0)
save()
return answer
"""
)

BEAT = (
    _COMMON
    + """
redis.call('ZADD', leases, string.format('%.17g', now + lease), instance)
redis.call('EXPIRE', holds(instance), KEPT)
see_leases()
redis.call('EXPIRE', leases, KEPT)
save()
return 1
"""
)

LEAVE = (
    _COMMON
    + """
reap(instance)
redis.call('DEL', holds(instance))
redis.call('ZREM', leases, instance)
save()
return 1
"""
)
