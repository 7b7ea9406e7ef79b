local statistics = require "spec.bench.statistics"
local report = require "spec.bench.report"

describe("the statistics of the benchmarks", function()
  it("take the middle, or the mean of the middle two", function()
    assert.equal(2, statistics.median { 9, 1, 2 })
    assert.equal(2.5, statistics.median { 4, 1, 2, 3 })
    assert.is_nil(statistics.median {})
  end)

  it("leave the list in its order", function()
    local list = { 3, 1, 2 }
    statistics.median(list)
    assert.same({ 3, 1, 2 }, list)
  end)

  it("add up processes, and keep the worst tail", function()
    assert.same({ count = 5, cpu_s = 3, seconds = 2, p50_us = 15, p99_us = 40 },
      statistics.together {
        { count = 2, cpu_s = 1, seconds = 2, p50_us = 10, p99_us = 40 },
        { count = 3, cpu_s = 2, seconds = 1, p50_us = 20, p99_us = 30 },
      })
  end)

  it("derive rate and processor time", function()
    local its = statistics.derive { count = 100, seconds = 2, cpu_s = 0.5 }
    assert.equal(50, its.rate)
    assert.equal(5000, its.cpu_us)
    assert.equal(25, its.cpu_percent)
    its = statistics.derive { count = 0, seconds = 1, cpu_s = 1 }
    assert.is_nil(its.cpu_us)
  end)

  it("summarise turns, of which one may lack a field", function()
    local its = statistics.summary { { rate = 3, p50_us = 7 }, { rate = 1 } }
    assert.same({ median = 2, least = 1, most = 3 }, its.rate)
    assert.same({ median = 7, least = 7, most = 7 }, its.p50_us)
  end)
end)

local section = {
  id = "cycles", title = "Cycles", note = "Note.", x = "tasks",
  points = { 1, 64 }, field = "rate", unit = "cycles/s",
  more = { { "cpu_us", "client CPU, µs" } },
  results = {
    rlock = { [1] = { { rate = 6612 }, { rate = 6400 }, { rate = 7000 } },
      [64] = { { rate = 57123, cpu_us = 14.26 } } },
    other = { [1] = { { rate = 41 } } },
  },
}
local peers = { "rlock", "other", "absent" }

describe("the report of the benchmarks", function()
  it("rounds to three digits", function()
    assert.equal("57 100", report.number(57123))
    assert.equal("14.3", report.number(14.26))
    assert.equal("0.232", report.number(0.2321))
    assert.equal("1 000", report.number(999.9))
    assert.equal("1 230 000", report.number(1234567))
    assert.equal("0", report.number(0))
    assert.equal("–", report.number(nil))
  end)

  it("has a row for each peer with a figure, a dash where it has none",
    function()
      assert.equal([[
# rlock beside other lock libraries

Machine.

- skipped: no cargo (rslock)

## Cycles

Note.

| cycles/s | 1 tasks | 64 tasks |
| --- | ---: | ---: |
| rlock | 6 610 (6 400–7 000) | 57 100 |
| other | 41.0 | – |

| client CPU, µs | 1 tasks | 64 tasks |
| --- | ---: | ---: |
| rlock | – | 14.3 |

![Cycles](cycles.svg)
]], report.markdown({ "Machine." }, { section }, peers,
        { "skipped: no cargo (rslock)" }))
    end)

  it("lists every turn as CSV", function()
    assert.equal([[
workload,peer,point,turn,field,value
cycles,rlock,1,1,rate,6612
cycles,rlock,1,2,rate,6400
cycles,rlock,1,3,rate,7000
cycles,rlock,64,1,cpu_us,14.26
cycles,rlock,64,1,rate,57123
cycles,other,1,1,rate,41
]], report.csv({ section }, peers))
  end)

  it("draws a curve for each peer with a figure", function()
    local text = report.plot(section, peers)
    assert.truthy(text:find('set output "cycles.svg"', 1, true))
    assert.truthy(text:find("$p1 << END\n1 6612 6400 7000\n2 57123 ", 1, true))
    assert.truthy(text:find("plot $p1 title 'rlock', $p2 title 'other'\n", 1,
      true))
    section.results = {}
    assert.is_nil(report.plot(section, peers))
  end)
end)
