-- mul_div returns floor(a * b / c) and the remainder, exactly even if a * b exceeds 2^53. The
-- quotient must be below 2^53, and c at most 2^50.
local function mul_div(a, b, c)
  if a * b < 9007199254740992 then return math.floor(a * b / c), a * b % c end
  local most = math.max(a, b)
  a, b = math.min(a, b), most -- in the Lua of miniredis, a, b = b, a does not swap them
  -- Long division: each step handles as many binary digits of a as possible while its products stay
  -- below 2^53.
  local digit = 2
  while digit * 2 * c < 4503599627370496 and digit * 2 * b < 4503599627370496 do digit = digit * 2 end
  local digits, n = {}, 0
  while a > 0 do
    n = n + 1
    digits[n] = a % digit
    a = math.floor(a / digit)
  end
  local whole = math.floor(b / c)
  local part = b % c
  local quo, rem = 0, 0
  for i = n, 1, -1 do
    rem = rem * digit + digits[i] * part
    quo = quo * digit + digits[i] * whole + math.floor(rem / c)
    rem = rem % c
  end
  return quo, rem
end

