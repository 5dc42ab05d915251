#include <gtest/gtest.h>

#include "monitor/read/scrape.h"
#include "monitor/statistics/counter_chart.h"
#include "tests/base/scratch.h"
#include "tests/monitor/loopback.h"
#include "tests/source_folder.h"

namespace specdec::monitor {
namespace {

using testing::expect_error;

const char kPage[] = R"(# HELP specdec:spec_decode_num_drafts_total steps
# TYPE specdec:spec_decode_num_drafts_total counter
specdec:spec_decode_num_drafts_total 10
specdec:spec_decode_num_draft_tokens_total 30
specdec:spec_decode_num_accepted_tokens_total{engine="0"} 12
specdec:spec_decode_num_accepted_tokens_total{engine="1"} 3 1700000000000
specdec:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 9
specdec:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 6e0
specdec:spec_decode_num_reached_tokens_per_pos_total{position="0"} 10
specdec:spec_decode_num_reached_tokens_per_pos_total{position="1"} 9
specdec:spec_decode_overlap_sum_per_pos_total{position="0"} 8.5
specdec:spec_decode_overlap_sum_per_pos_total{position="1"} 5.25
specdec:generation_tokens_total 25
specdec:info{draft="abc",target="d\"e}f",package="1"} 1
go_gc_seconds{quantile="0.5"} NaN
)";

TEST(Exposition, ReadsOurOwnPage) {
  const Counters c = parse_exposition(kPage, "page");
  EXPECT_TRUE(c.any);
  EXPECT_EQ(c.drafts, 10);
  EXPECT_EQ(c.drafted, 30);
  EXPECT_EQ(c.accepted, 15);
  EXPECT_EQ(c.generated, 25);
  EXPECT_EQ(c.accepted_at, (std::vector<double>{9, 6}));
  EXPECT_EQ(c.reached_at, (std::vector<double>{10, 9}));
  EXPECT_EQ(c.overlap_sum_at, (std::vector<double>{8.5, 5.25}));
  EXPECT_EQ(c.pairs.at(""), (ServedPair{"abc", "d\"e}f"}));
}

TEST(Exposition, ReadsVllm) {
  const Counters c = parse_exposition(
      "vllm:spec_decode_num_drafts_total{engine=\"0\",model_name=\"m\"} 4.0\r\n"
      "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",model_name=\"m\",position=\"2\"} 1.0\r\n",
      "page");
  EXPECT_EQ(c.drafts, 4);
  EXPECT_EQ(c.accepted_at, (std::vector<double>{0, 0, 1}));
  EXPECT_TRUE(c.reached_at.empty());
}

TEST(Exposition, AbsentIsNotZero) {
  EXPECT_FALSE(parse_exposition("vllm:num_requests_running 3\n", "page").any);
  EXPECT_FALSE(parse_exposition("", "page").any);
}

// The text format allows blanks and tabs between all parts of a line.
TEST(Exposition, BlanksMayStandEverywhere) {
  for (const std::string line :
       {"vllm:spec_decode_num_drafts_total{ engine = \"0\" , model_name = \"m\" } 4",
        " \tvllm:spec_decode_num_drafts_total {engine=\"0\",model_name=\"m\",}\t4\t1700000000000",
        "{\"vllm:spec_decode_num_drafts_total\",engine=\"0\",model_name=\"m\"} 4",
        "{\"vllm:spec_decode_num_drafts_total\",\"engine\"=\"0\",model_name=\"m\"} +4.0 # {trace=\"x\"} 1"}) {
    const Counters c = parse_exposition("   \n  # a comment\n\t\n" + line + " \r\n", "page");
    EXPECT_EQ(c.drafts, 4) << line;
    EXPECT_EQ(c.series.begin()->first, "vllm:spec_decode_num_drafts_total{engine=\"0\",model_name=\"m\"}") << line;
  }
}

// Malformed lines of other series, and positions above the limit, do not make the page an error.
TEST(Exposition, OtherLinesMayBeOdd) {
  const std::string good = "vllm:spec_decode_num_drafts_total 4\n",
                    position = "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"";
  for (const std::string odd : {"{\"http.server.duration\",method=\"GET\"} 12", "a{x=1} 2", "a b", "#", "a{x=\"1",
                                "é 1", "go_info{version=\"\\\"1\\n\"} 1", "go_info{version=\"\xff\"} 1"})
    EXPECT_EQ(parse_exposition(odd + "\n" + good, "page").drafts, 4) << odd;
  for (const char* beyond : {"65", "70", "999", "99999999999999"})
    EXPECT_TRUE(parse_exposition(good + position + beyond + "\"} 3\n", "page").accepted_at.empty()) << beyond;
  EXPECT_EQ(parse_exposition(good + position + "64\"} 3\n", "page").accepted_at.size(), 65u);
  expect_error(ErrorKind::kData, {"page: line 1", "expected Prometheus text format"},
               [] { parse_exposition("<html>\n<body>\n", "page"); });
  expect_error(ErrorKind::kData, {"page: line 2"},
               [&] { parse_exposition(good + "vllm:spec_decode_num_draft_tokens_total{x=1} 2\n", "page"); });
}

TEST(Exposition, JsonIsAnotherPageOfTensorRt) {
  for (const char* json : {"[]", " {\"iter\": 3, \"x\": [1]}", "[\n {\"gpuMemUsage\": 1}\n]"})
    expect_error(ErrorKind::kData, {"page: JSON", "/prometheus/metrics", "return_perf_metrics"},
                 [&] { parse_exposition(json, "page"); });
}

TEST(Exposition, APageThatMayBeCutIsRefused) {
  const std::string page = "vllm:spec_decode_num_drafts_total 4200\n";
  EXPECT_NO_THROW(require_whole_page(page, {.has_length = false}, "page"));
  EXPECT_NO_THROW(require_whole_page("", {.has_length = false}, "page"));
  EXPECT_NO_THROW(require_whole_page(page.substr(0, page.size() - 1), {}, "page")) << "HTTP knows its length";
  for (size_t size = 1; size < page.size(); ++size)
    EXPECT_THROW(require_whole_page(page.substr(0, size), {.has_length = false}, "page"), PageError) << size;
  const PageEnd open{.has_length = true, .is_openmetrics = true};
  EXPECT_NO_THROW(require_whole_page(page + "# EOF\n", open, "page"));
  EXPECT_NO_THROW(require_whole_page(page + "# EOF", open, "page"));
  for (const char* end : {"", "# EO", "x# EOF\n"})
    EXPECT_THROW(require_whole_page(page + end, open, "page"), PageError);
}

// Ray Serve and KServe export an engine's counters under longer names, which count as the engine's own.
TEST(Exposition, RenamedSeriesAreTheEngines) {
  for (const char* name : {"ray_vllm_spec_decode_num_drafts_total", "ray_vllm:spec_decode_num_drafts_total",
                           "kserve_vllm:spec_decode_num_drafts_total", "vllm_spec_decode_num_drafts_total"}) {
    const Counters c = parse_exposition(std::string(name) + "{ReplicaId=\"r\"} 7\n", "page");
    EXPECT_EQ(c.engine, "vllm") << name;
    EXPECT_EQ(c.drafts, 7) << name;
  }
  EXPECT_EQ(parse_exposition("sglang_spec_verify_calls_total 3\n", "page").engine, "sglang");
  EXPECT_FALSE(parse_exposition("my_vllm_spec_decode_num_drafts_total 3\n", "page").any);
}

TEST(Exposition, LabelsThatAreNoNamesComeBack) {
  const Counters c = parse_query_answer(R"({"status":"success","data":{"resultType":"vector","result":[)"
                                        R"({"metric":{"__name__":"vllm:spec_decode_num_drafts_total",)"
                                        R"("a b":"x\"y\\z\nw","":"e"},"value":[1,"4"]}]}})",
                                        "server");
  EXPECT_EQ(c.drafts, 4);
  EXPECT_EQ(counters_from_json(to_json(c), "x").drafts, 4);
  EXPECT_EQ(difference(c, c).drafts, 0);
}

// Parses each line of the file $SPECDEC_PAGE and writes the results as JSON to $SPECDEC_PAGE_OUT, for
// prometheus_client_test.py.
TEST(Exposition, LinesForPrometheusClient) {
  const char *const in = std::getenv("SPECDEC_PAGE"), *const out = std::getenv("SPECDEC_PAGE_OUT");
  if (!in || !out) GTEST_SKIP() << "SPECDEC_PAGE is not set: prometheus_client_test.py sets it";
  const std::string page = testing::get(in);
  std::string text;
  for (size_t begin = 0; begin < page.size();) {
    const size_t end = std::min(page.find('\n', begin), page.size());
    const PageLine line = parse_line(std::string_view(page).substr(begin, end - begin));
    char value[40];
    std::snprintf(value, sizeof value, "%.17g", line.sample.value);
    Json got = {{"problem", line.problem}};
    if (line.is_sample) {
      got["name"] = line.sample.name;
      got["labels"] = line.sample.labels;
      got["value"] = value;
      const PageLine again = parse_line(series_text(line.sample.name, line.sample.labels) + " 1");
      EXPECT_EQ(again.sample.labels, line.sample.labels) << line.sample.name;
    }
    text += got.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    begin = end + 1;
  }
  testing::put(out, text);
}

TEST(Exposition, MalformedTextNamesTheLine) {
  const std::string name = "specdec:spec_decode_num_accepted_tokens_per_pos_total";
  for (const std::string bad :
       {"{x=\"1\"} 2", "a{x=1} 2", "a{x=\"1} 2", "a{x=\"1\" 2", "a", "a b", "specdec:spec_decode_num_drafts_total -1",
        "specdec:spec_decode_num_drafts_total NaN", "specdec:spec_decode_num_drafts_total +Inf",
        "specdec:spec_decode_num_drafts_total{pod=\"\xff\"} 1", "specdec:info{draft=\"a\xe2\x82\"} 1"})
    expect_error(ErrorKind::kData, {"page: line 2: "}, [&] { parse_exposition("# fine\n" + bad + "\n", "page"); });
  for (const std::string position : {"", "{position=\"\"}", "{position=\"x\"}", "{position=\"-1\"}"})
    expect_error(ErrorKind::kData, {"page: line 1: "}, [&] { parse_exposition(name + position + " 1", "page"); });
  std::string many;
  for (int i = 0; i < 100001; ++i) many += "\n";
  expect_error(ErrorKind::kData, {"100,000"}, [&] { parse_exposition(many, "page"); });
}

TEST(Counters, DifferencesAreBySeriesAndReplica) {
  const auto page = [](int a0, int a1, int b0) {
    const auto line = [](const std::string& labels, int v) {
      return "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=" + labels + "} " + std::to_string(v) + "\n";
    };
    return parse_exposition(line("\"0\",position=\"0\"", a0) + line("\"0\",position=\"1\"", a1) +
                                (b0 < 0 ? "" : line("\"1\",position=\"0\"", b0)),
                            "page");
  };
  EXPECT_EQ(difference(page(15, 9, 22), page(10, 7, 20)).accepted_at, (std::vector<double>{7, 2}));
  // Engine 0 was restarted, although the sum of both engines still rose (30 to 34). All series of engine 0 count from
  // zero.
  EXPECT_EQ(difference(page(3, 8, 31), page(10, 7, 20)).accepted_at, (std::vector<double>{14, 8}));
  // Counts that a new replica made before its first scrape are ignored.
  EXPECT_EQ(difference(page(15, 9, 500), page(10, 7, -1)).accepted_at, (std::vector<double>{5, 2}));
  EXPECT_EQ(difference(page(15, 9, -1), page(10, 7, 500)).accepted_at, (std::vector<double>{5, 2}));
  const Counters before = parse_exposition(kPage, "page");
  EXPECT_EQ(to_json(counters_from_json(to_json(before), "x")), to_json(before));
  EXPECT_EQ(counters_from_json(to_json(before), "x").overlap_sum_at, before.overlap_sum_at);
  EXPECT_TRUE(counters_from_json({{"any", true}, {"drafts", 4}}, "older").series.empty());
}

// A replica with impossible numbers is left out, and a replica that serves another pair of models is removed.
TEST(Counters, ABadReplicaIsSetAside) {
  const auto page = [](const std::string& b, const std::string& target) {
    return parse_exposition(
        "specdec:spec_decode_num_drafts_total{instance=\"a\"} "
        "100\nspecdec:spec_decode_num_drafts_total{instance=\"b\"} " +
            b +
            "\nspecdec:info{instance=\"a\",draft=\"d\",target=\"one\"} "
            "1\nspecdec:info{instance=\"b\",draft=\"d\",target=\"" +
            target + "\"} 1\n",
        "page");
  };
  for (const char* absurd : {"1e305", "-1", "NaN", "+Inf", "9.1e15"}) {
    const Counters c = page(absurd, "one");
    EXPECT_EQ(c.drafts, 100) << absurd;
    ASSERT_EQ(c.set_aside.count(), 1) << absurd;
    EXPECT_EQ(c.set_aside.front().find("{instance=\"b\"}: line 2: "), 0u) << c.set_aside.front();
  }
  Counters mixed = page("50", "two");
  EXPECT_EQ(mixed.pairs.size(), 2u);
  mixed.keep([](const ServedPair& pair) { return pair.target == "one"; });
  EXPECT_EQ(mixed.drafts, 100);
  EXPECT_TRUE(mixed.any);
  mixed.keep([](const ServedPair&) { return false; });
  EXPECT_FALSE(mixed.any);
  Counters before = page("50", "one"), now = page("1e15", "one");
  before.time = 1000;
  now.time = 1600;
  const Counters rise = difference(now, before);
  EXPECT_EQ(rise.drafts, 0) << "a did nothing, and no server counts as fast as b";
  ASSERT_EQ(rise.set_aside.count(), 1);
  EXPECT_EQ(rise.set_aside.front(), "{instance=\"b\"}: a counter rose faster than any server can count");
}

// If a page has a series twice, the series' replica is left out, because the values may belong to two servers.
// (Prometheus refuses such a page.)
TEST(Exposition, ASeriesTwiceIsSetAside) {
  const std::string a = "vllm:spec_decode_num_drafts_total{engine=\"0\"} 4\n",
                    b = "vllm:spec_decode_num_drafts_total{engine=\"1\"} 7\n";
  expect_error(ErrorKind::kData, {"page: line 2: ", "vllm:spec_decode_num_drafts_total is there twice"},
               [&] { parse_exposition(a + a, "page"); });
  const Counters c = parse_exposition(a + b + a, "page");
  EXPECT_EQ(c.drafts, 7);
  ASSERT_EQ(c.set_aside.count(), 1);
  EXPECT_EQ(c.set_aside.front().find("{engine=\"0\"}: line 3: "), 0u) << c.set_aside.front();
  EXPECT_EQ(parse_exposition(a + "ray_vllm_spec_decode_num_drafts_total{engine=\"0\"} 4\n", "page").drafts, 4)
      << "one counter under two names";
}

// A pod under a new name is a new replica without earlier counts. The disappearance of the old name is not a restart.
TEST(Difference, ARenamedPodBeginsAnew) {
  const auto page = [](const std::string& pod, double drafts) {
    return parse_exposition("vllm:spec_decode_num_drafts_total{pod=\"" + pod + "\"} " + std::to_string(drafts) + "\n",
                            "page");
  };
  Counters before = page("a-1", 1000);
  const Counters rise = difference(page("b-2", 400), before);
  EXPECT_EQ(rise.drafts, 0);
  EXPECT_EQ(rise.begun.lines(), std::vector<std::string>{"{pod=\"b-2\"}"});
  EXPECT_TRUE(rise.set_aside.empty());
  before.adopt(page("b-2", 400));
  const Counters later = difference(page("b-2", 450), before);
  EXPECT_EQ(later.drafts, 50) << "counted from the look that saw it first";
  EXPECT_TRUE(later.begun.empty());
}

TEST(Exposition, OneModelAndOneEngine) {
  const std::string a = "vllm:spec_decode_num_drafts_total{model_name=\"a\"} 4\n",
                    b = "vllm:spec_decode_num_drafts_total{model_name=\"b\"} 7\n";
  expect_error(ErrorKind::kData, {"page", "a, b", "--model"}, [&] { parse_exposition(a + b, "page"); });
  expect_error(ErrorKind::kData, {"page", "a, b", "--model c"}, [&] { parse_exposition(a + b, "page", "c"); });
  EXPECT_EQ(parse_exposition(a + b, "page", "b").drafts, 7);
  EXPECT_EQ(parse_exposition("llamacpp:spec_decode_num_drafts_total 3\n", "page", "b").drafts, 3)
      << "a page that does not name its model";
  expect_error(ErrorKind::kData, {"llamacpp, vllm"},
               [&] { parse_exposition(a + "llamacpp:spec_decode_num_drafts_total 3\n", "page"); });
}

const char kAnswer[] = R"({"status":"success","data":{"resultType":"vector","result":[
 {"metric":{"__name__":"vllm:spec_decode_num_drafts_total","instance":"a:8000","job":"vllm","model_name":"m"},
  "value":[1795000000.5,"10"]},
 {"metric":{"__name__":"vllm:spec_decode_num_drafts_total","instance":"b:8000","job":"vllm","model_name":"m"},
  "value":[1795000000.5,"4"]},
 {"metric":{"__name__":"vllm:spec_decode_num_accepted_tokens_per_pos_total","instance":"a:8000",
  "job":"vllm","model_name":"m","position":"0"},"value":[1795000000.5,"8"]}]}})";

TEST(Prometheus, AnInstantVectorIsAPage) {
  const Counters c = parse_query_answer(kAnswer, "server");
  EXPECT_TRUE(c.any);
  EXPECT_EQ(c.engine, "vllm");
  EXPECT_EQ(c.drafts, 14);
  EXPECT_EQ(c.accepted_at, std::vector<double>{8});
  EXPECT_FALSE(parse_query_answer(R"({"status":"success","data":{"resultType":"vector","result":[]}})", "server").any)
      << "absent is not zero";
  for (const char* bad :
       {"", "[]", "{}", R"({"status":"error","error":"x"})",
        R"({"status":"success","data":{"resultType":"matrix","result":[]}})",
        R"({"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1]}]}})",
        R"({"status":"success","data":{"resultType":"vector",)"
        R"("result":[{"metric":{"__name__":"vllm:spec_decode_num_drafts_total"},"value":[1,"NaN"]}]}})"})
    EXPECT_THROW(parse_query_answer(bad, "server"), PageError) << bad;
}

TEST(Prometheus, IsAskedForTheRawCountersUnderTheMatch) {
  Loopback server;
  server.page(kAnswer);
  std::string address = server.url();
  address.resize(address.size() - std::string("/metrics").size());
  const std::string source = "prometheus+" + address + "?match={job=\"vllm\"}";
  ASSERT_TRUE(is_url(source));
  EXPECT_EQ(read_counters(source, "key-1", "m").drafts, 14);
  const std::string request = server.last_request();
  EXPECT_NE(request.find("GET /api/v1/query?query=%7B%5F%5Fname%5F%5F%3D%7E%22"), std::string::npos) << request;
  EXPECT_NE(request.find("%28ray%5F%7Ckserve%5F%29%3Fvllm%5B%3A%5F%5Dspec%5Fdecode%5Fnum%5Fdrafts%5Ftotal"),
            std::string::npos)
      << request;
  EXPECT_NE(request.find("%2Cjob%3D%22vllm%22%7D HTTP"), std::string::npos) << request;
  EXPECT_NE(request.find("Bearer key-1"), std::string::npos);
  expect_error(ErrorKind::kUsage, {"match={"}, [&] { read_counters("prometheus+" + address + "?query=up", "", ""); });
}

// Reads pages that the engines' own exporters wrote; fixtures/engines.py says how.
Counters fixture(const std::string& name) {
  return parse_exposition(testing::get(fs::path(source_folder()) / "tests/monitor/fixtures" / name), name);
}

TEST(Fixtures, EveryEnginesPageIsRead) {
  const Counters vllm = fixture("vllm.prom");
  EXPECT_EQ(vllm.engine, "vllm");
  EXPECT_EQ(vllm.drafts, 1000);
  EXPECT_EQ(vllm.drafted, 3000);
  EXPECT_EQ(vllm.accepted, 830 + 833);
  EXPECT_EQ(vllm.accepted_at, (std::vector<double>{397 + 386, 276 + 277, 157 + 170}));
  const Counters sglang = fixture("sglang.prom");
  EXPECT_EQ(sglang.engine, "sglang");
  EXPECT_EQ(sglang.drafts, 80);
  EXPECT_EQ(sglang.generated, 116 + 104);
  EXPECT_TRUE(sglang.accepted_at.empty());
  const Counters trt = fixture("trtllm.prom");
  EXPECT_EQ(trt.engine, "trtllm");
  EXPECT_EQ(trt.drafted_at, (std::vector<double>{500, 500, 500}));
  EXPECT_EQ(trt.accepted_at, (std::vector<double>{405, 294, 180}));
  const Counters llama = fixture("llamacpp.prom");
  EXPECT_EQ(llama.engine, "llamacpp");
  EXPECT_EQ(llama.drafts, 119);
  EXPECT_EQ(llama.drafted, 462);
  EXPECT_EQ(llama.accepted_at, (std::vector<double>{17, 2, 0, 0}));
  EXPECT_EQ(llama.generated, 144);
  for (const Counters& c : {vllm, sglang, trt, llama}) EXPECT_TRUE(c.any);
}

// For each engine's way of counting: feeds a chart repeatedly with the counts of 1,000 steps with K = 3 and conditional
// acceptance .8 .7 .6, then with lower acceptance, which must raise an alarm.
TEST(Fixtures, EveryEnginesDropIsSeen) {
  RolloutFigures gate;
  gate.k = 3;
  gate.alpha = {0.72, {0.715, 0.725}, 1000};
  gate.counts.reached_at = {1000, 800, 560};
  gate.counts.accepted_at = {800, 560, 336};
  gate.counts.overlap_sum_at = {800, 560, 336};
  for (const std::string engine : {"vllm", "llamacpp", "trtllm", "sglang"}) {
    const auto bucket = [&](double worse) {
      const double a0 = 1000 * (0.8 - worse), a1 = a0 * (0.7 - worse), a2 = a1 * (0.6 - worse);
      Counters c;
      c.engine = engine;
      if (engine != "trtllm") c.drafts = 1000;
      if (engine == "sglang")
        c.generated = 1000 + a0 + a1 + a2;
      else
        c.accepted_at = {a0, a1, a2};
      if (engine == "trtllm") c.drafted_at = {1000, 1000, 1000};
      if (engine == "vllm" || engine == "llamacpp") c.drafted = 3000;
      return c;
    };
    CounterChart chart(gate);
    for (int i = 0; i < 40; ++i) EXPECT_TRUE(chart.add(bucket(i % 2 ? 0.005 : -0.005)));
    EXPECT_EQ(chart.alarm(), "") << engine;
    for (int i = 0; i < 15; ++i) chart.add(bucket(0.08));
    EXPECT_NE(chart.alarm(), "") << engine;
    CounterChart dead(gate);
    for (int i = 0; i < 12; ++i) dead.add(bucket(0));
    Counters nothing = bucket(0);
    std::fill(nothing.accepted_at.begin(), nothing.accepted_at.end(), 0.0);
    nothing.generated = nothing.drafts;
    dead.add(nothing);
    EXPECT_NE(dead.alarm().find("dead"), std::string::npos) << engine;
    if (engine != "sglang") continue;
    CounterChart blind(gate);
    Counters lost = bucket(0);
    lost.generated = 0;  // as if the page had no such series
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(blind.add(lost));
    EXPECT_EQ(blind.view("").judged, 0) << "an acceptance of 0 is not learnt as what is usual";
    EXPECT_NE(blind.note().find("generated tokens"), std::string::npos) << blind.note();
    for (int i = 0; i < 12; ++i) blind.add(bucket(0));
    EXPECT_TRUE(blind.add(lost));
    EXPECT_EQ(blind.alarm(), "") << "nor is it a dead draft";
  }
}

TEST(Fetch, ReadsAPageAndNamesWhatFailed) {
  Loopback server;
  server.page(kPage);
  EXPECT_EQ(fetch(server.url()).body, kPage);
  EXPECT_EQ(server.last_request().find("Authorization"), std::string::npos);
  EXPECT_EQ(fetch(server.url(), "key-1").body, kPage);
  EXPECT_NE(server.last_request().find("\r\nAuthorization: Bearer key-1\r\n"), std::string::npos)
      << server.last_request();
  server.page("gone", 404);
  expect_error(ErrorKind::kData, {server.url(), "404"}, [&] { fetch(server.url()); });
  server.page("busy", 503);
  expect_error(ErrorKind::kNetwork, {server.url(), "503"}, [&] { fetch(server.url()); });
  server.page(std::string(17 << 20, '#'));
  expect_error(ErrorKind::kNetwork, {server.url()}, [&] { fetch(server.url()); });
  std::string closed;
  {
    Loopback gone;
    closed = gone.url();
  }
  expect_error(ErrorKind::kNetwork, {closed}, [&] { fetch(closed); });
  expect_error(ErrorKind::kNetwork, {"file"}, [] { fetch("file:///etc/passwd"); });
}

// A bad reply that would stay the same at a retry is kData (fix the configuration), not kNetwork (try again).
TEST(Fetch, AnswersThatStayAreToldApart) {
  Loopback server, other;
  server.page("", 302);
  expect_error(ErrorKind::kData, {"302"}, [&] { fetch(server.url()); });
  server.page("", 308, "Location: " + other.url() + "\r\n");
  expect_error(ErrorKind::kData, {"308", "the page is at " + other.url(), "name that address"},
               [&] { fetch(server.url()); });
  EXPECT_EQ(other.last_request(), "") << "another origin is not asked";
  server.page("This server does not support metrics endpoint. Start it with --metrics", 501);
  expect_error(ErrorKind::kData, {"501", "llama-server with --metrics"}, [&] { fetch(server.url()); });
  net::ToyServer moves([](const net::ToyRequest& r) -> net::ToyReply {
    return r.path == "/metrics" ? net::ToyReply{.status = 307, .body = "", .headers = "Location: /metrics/\r\n"}
                                : net::ToyReply{.status = 200, .body = kPage};
  });
  EXPECT_EQ(fetch(moves.url() + "/metrics").body, kPage) << "as servers redirect to a path with a slash";
}

TEST(Fetch, ACutPageIsNotASmallerNumber) {
  Loopback server;
  const std::string page = "vllm:spec_decode_num_drafts_total 4200\n";
  server.unbounded(page);
  EXPECT_EQ(read_counters(server.url(), "", "").drafts, 4200);
  server.unbounded(page.substr(0, page.size() - 3));
  expect_error(ErrorKind::kData, {server.url(), "cut off", "line feed"}, [&] { read_counters(server.url(), "", ""); });
  server.page(page.substr(0, page.size() - 1));
  EXPECT_EQ(read_counters(server.url(), "", "").drafts, 4200);
  server.page(page, 200, "Content-Type: application/openmetrics-text; version=1.0.0\r\n");
  expect_error(ErrorKind::kData, {server.url(), "# EOF"}, [&] { read_counters(server.url(), "", ""); });
}

}  // namespace
}  // namespace specdec::monitor
