--- Counters and histograms, and their text for Prometheus.

local metrics = require "rlock.util.metrics"
local read = require "spec.tools.exposition"

local host, count = {}, 0

-- A meter of a client with a new name, and that name.
local function new(...)
  count = count + 1
  local name = "unit" .. count
  return metrics.new(host, name, ...), name
end

-- The published values of a host.
local function values_of(its)
  return read(metrics.text(metrics.numbers(its)))
end

local function total(client, more)
  return ('rlock_acquired_total{client="%s",%s}'):format(client, more)
end

describe("metrics", function()
  it("count values in the first bucket that takes them", function()
    local meter = new()
    local wait = meter:series("fair").wait
    for _, ms in ipairs { 0, 1, 1.5, 100, 299999, 300001 } do
      metrics.observe(wait, ms / 1000)
    end
    meter:series("fair").acquired = 6
    local told = meter:stats().wait
    assert.equal(6, told.count)
    assert.is_true(math.abs(told.sum - 600.1025) < 1e-6)
    assert.same({ 0.001, 2 }, told.buckets[1])
    assert.same({ 0.005, 3 }, told.buckets[2])
    assert.same({ 0.1, 4 }, told.buckets[6])
    assert.same({ 300, 5 }, told.buckets[#told.buckets - 1])
    assert.same({ math.huge, 6 }, told.buckets[#told.buckets])
  end)

  it("count a grant that did not wait as a wait of 0", function()
    local meter = new()
    local series = meter:series("fair")
    series.acquired = 3
    metrics.observe(series.wait, 2)
    local told = meter:stats().wait
    assert.same({ 3, 2 }, { told.count, told.sum })
    assert.same({ 0.001, 2 }, told.buckets[1])
  end)

  it("count failures by their code, and no cancellation", function()
    local meter = new()
    local series = meter:series("fair")
    for _, code in ipairs { "busy", "timeout", "connect", "lost",
        "cancelled" } do
      metrics.failed(series, code)
    end
    local told = meter:stats()
    assert.same({ 1, 1, 2 }, { told.busy, told.timeouts, told.errors })
  end)

  it("have a series for each kind and each listed lock, and sums", function()
    local meter = new { "mine" }
    assert.is_nil(meter:series("fair", "other"))
    meter:series("fair").acquired = 2
    meter:series("fair", "mine").acquired = 3
    meter:series("spin", "mine").acquired = 4
    assert.equal(meter:series("spin", "mine"), meter:series("spin", "mine"))
    local told = meter:stats()
    assert.same({ 9, 5, 4, 7 }, { told.acquired, told.kinds.fair.acquired,
      told.kinds.spin.acquired, told.locks.mine.acquired })
    assert.is_nil(told.locks.other)
  end)

  it("are text that Prometheus reads", function()
    local meter, name = new { "mine" }
    local series = meter:series "fair"
    series.acquired, series.lost = 2, 1
    meter:series("fair", "mine").acquired = 1
    for _, s in ipairs { 0.0001, 0.02, 7, 4000 } do
      metrics.observe(series.hold, s)
    end
    local values = values_of(host)
    local labels = ('client="%s",kind="fair"'):format(name)
    assert.equal(2, values[total(name, 'kind="fair"')])
    assert.equal(1, values[total(name, 'kind="fair",lock="mine"')])
    assert.equal(1, values[("rlock_lost_total{%s}"):format(labels)])
    assert.equal(0, values[("rlock_busy_total{%s}"):format(labels)])
    assert.equal(3, values[('rlock_hold_seconds_bucket{%s,le="10"}')
      :format(labels)])
    assert.equal(4, values[("rlock_hold_seconds_count{%s}"):format(labels)])
    assert.equal(4007.0201, values[("rlock_hold_seconds_sum{%s}")
      :format(labels)])
  end)

  it("escape names, and make bytes that are not UTF-8 readable", function()
    local odd = 'a"b\\c\nd\te\195\164'
    local meter, name = new { odd, "\255x" }
    meter:series("fair", odd).acquired = 1
    meter:series("fair", "\255x").acquired = 1
    meter:series("a\tkind").acquired = 1
    local values = values_of(host)
    assert.equal(1, values[total(name,
      'kind="fair",lock="a\\"b\\\\c\\nd\te\195\164"')])
    assert.equal(1, values[total(name, 'kind="fair",lock="?x"')])
    assert.equal(1, values[total(name, 'kind="a?kind"')])
    metrics.new(host, 'my "own"\tname'):series("fair").acquired = 1
    assert.equal(1, values_of(host)[
      total('my \\"own\\"?name', 'kind="fair"')])
  end)

  it("keep the numbers of closed clients, once", function()
    local first, name = new()
    first:series("fair").acquired = 2
    first:close()
    first:close()
    local second = metrics.new(host, name)
    second:series("fair").acquired = 3
    assert.equal(5, values_of(host)[total(name, 'kind="fair"')])
    second:close()
    assert.equal(5, values_of(host)[total(name, 'kind="fair"')])
  end)

  it("of one host leave out those of another", function()
    local meter, name = new()
    meter:series("fair").acquired = 2
    local other = {}
    metrics.new(other, name):series("fair").acquired = 3
    meter:close()
    local key = total(name, 'kind="fair"')
    assert.equal(2, values_of(host)[key])
    assert.equal(3, values_of(other)[key])
  end)
end)

describe("the reader of the specs", function()
  local HEAD = "# HELP a_total x\n# TYPE a_total counter\n"
  local BUCKETS = "# HELP h x\n# TYPE h histogram\n"

  it("refuses what is not in the format", function()
    for _, text in ipairs {
      HEAD .. "a_total 1", HEAD .. "a_total{b=1} 1\n", "a_total 1\n",
      HEAD .. 'a_total{b="\\x"} 1\n', HEAD .. "a_total -1\n",
      HEAD .. "a_total 1\na_total 2\n", HEAD .. HEAD .. "a_total 1\n",
      HEAD .. "b_total 1\n", HEAD .. 'a_total{b="1",b="2"} 1\n',
      BUCKETS .. 'h_bucket{le="1"} 1\nh_sum 1\nh_count 1\n',
      BUCKETS .. 'h_bucket{le="+Inf"} 1\nh_sum 1\nh_count 2\n',
      BUCKETS .. 'h_bucket{le="1"} 2\nh_bucket{le="+Inf"} 1\n',
    } do
      assert.is_false(pcall(read, text), text)
    end
    assert.same({ a_total = 1 }, read(HEAD .. "a_total 1\n"))
  end)
end)
