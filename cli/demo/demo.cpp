#include "cli/demo/demo.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "base/output_directory.h"
#include "base/schema/validation_report.h"
#include "base/verdict.h"
#include "base/version.h"
#include "cli/child_process.h"
#include "cli/demo/reference_drafts.h"
#include "cli/demo/story.h"
#include "cli/demo/table.h"
#include "cli/demo/traffic_client.h"
#include "cli/demo/traffic_generator.h"
#include "cli/loop/loop.h"
#include "cli/loop/runs.h"
#include "cli/stop_deadline.h"
#include "data/shards/shard_reader.h"

namespace specdec::cli {

namespace {

// Speed is measured over 40 tokens: the shortest answers have about 40, and neither model was trained beyond the end of
// an answer.
const std::string kSpeedPrompts = "16", kSpeedTokens = "40";

// Number of answers from each served package; the monitor needs 50 requests to judge.
constexpr int64_t kServed = 64;

class Demo {
 public:
  Demo(const Global& global, const DemoOptions& options)
      : options_(options),
        first_(demo_assets(global, "target/model.safetensors") / "target"),
        updated_(first_.parent_path() / "updated"),
        story_(global, options.out),
        out_(story_.out()) {}

  int run() {
    first_traffic();
    reference_drafts();
    distill();
    package_and_serve();
    overnight_update();
    redistil();
    compare();
    return finish();
  }

 private:
  Story::Gate validate(const fs::path& target, const fs::path& draft, const fs::path& data, const std::string& name,
                       const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {
        "--target",       target, "--draft",         draft,         "--data",         data,
        "--max-requests", "96",   "--speed-prompts", kSpeedPrompts, "--speed-tokens", kSpeedTokens,
        "--dtype",        "fp32", "--threads",       "1",           "--seed",         std::to_string(options_.seed)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return story_.validate(arguments, name);
  }

  void write_traffic(const fs::path& file, DemoEdition edition, int64_t first, int64_t count) {
    OutputFile log(file);
    for (int64_t i = first; i < first + count; ++i)
      log.write(to_chat_row(demo_conversation(options_.seed, i, edition)) + "\n");
    log.finish();
  }

  std::vector<std::string> distill_flags() const {
    return {"--time-limit", format("%.0fs", options_.distill_seconds),
            "--dtype",      "fp32",
            "--threads",    "1",
            "--seed",       std::to_string(options_.seed)};
  }

  // ---- steps ----
  void first_traffic() {
    story_.begin("traffic");
    write_traffic(out_ / "logs" / "day-1.jsonl", DemoEdition::kFirst, 0, options_.conversations);
    story_.run_json({"data", "ingest", out_ / "logs" / "day-1.jsonl", "--target", first_, "--out", out_ / "data",
                     "--holdout", "0.06"});
    const ShardIndex index = data::ShardReader(out_ / "data").index();
    int64_t train = 0, held = 0, tokens = 0;
    for (const ShardFile& s : index.shards) {
      (s.split == "train" ? train : held) += s.num_rows;
      tokens += s.num_tokens;
    }
    story_.say(format("%lld conversations in %zu domains → %lld to learn from, %lld held out, %lld tokens",
                      static_cast<long long>(options_.conversations), demo_domains().size(),
                      static_cast<long long>(train), static_cast<long long>(held), static_cast<long long>(tokens)));
  }

  void check_entropy(const ValidationReport& report, const char* which) {
    bool holds = !report.segments.empty();
    std::string text;
    for (const SegmentFigure& s : report.segments) {
      holds = holds && s.entropy >= 1.0;
      text += format(" %s %.2f", s.name.c_str(), s.entropy);
    }
    story_.check(format("%s's entropy at T=1 is at least 1.0 nat a token in each domain:%s", which, text.c_str()),
                 holds);
  }

  void reference_drafts() {
    story_.begin("references");
    write_bigram_draft(out_ / "data", first_, out_ / "bigram");
    write_untrained_draft(first_, options_.seed, out_ / "untrained");
    const ValidationReport bigram =
        validate(first_, out_ / "bigram", out_ / "data", "gate-bigram", {"--parts", "acceptance"}).report;
    const auto [untrained, untrained_code] =
        validate(first_, out_ / "untrained", out_ / "data", "gate-untrained", {"--parts", "acceptance"});
    untrained_alpha_ = untrained.alpha.value;
    check_entropy(bigram, "the target");
    story_.check(
        format("a bigram draft stays below the floor: acceptance %.3f < %.2f", bigram.alpha.value, bigram.floor),
        bigram.alpha.ci.high < bigram.floor);
    story_.check(
        format("an untrained draft fails the gate: verdict %s, exit %d", to_string(untrained.verdict), untrained_code),
        untrained_code == 3);
    story_.say("bigram draft " + with_interval(bigram.alpha) + ", untrained draft " + with_interval(untrained.alpha) +
               ": gate says " + to_string(bigram.verdict) + ", " + to_string(untrained.verdict));
  }

  void distill() {
    story_.begin("distill");
    std::vector<std::string> arguments = {"distill", "--target", first_,  "--data",    out_ / "data",
                                          "--draft", "prune:1",  "--out", out_ / "run"};
    const auto flags = distill_flags();
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Json result = story_.run_json(arguments);
    story_.say(format("one of %lld layers, loss lk_hybrid: acceptance %.3f → %.3f, %lld steps", layers(),
                      result.at("acceptance").at("before").at("value").get<double>(),
                      result.at("acceptance").at("after").at("value").get<double>(),
                      static_cast<long long>(result.at("training").at("steps").get<int64_t>())));
    story_.begin("validate");
    const Story::Gate gate = validate(first_, out_ / "run" / "draft", out_ / "data", "gate");
    first_report_ = gate.report;
    first_code_ = gate.exit_code;
    story_.check(format("a distilled draft passes with acceptance above 0.70: %.3f, verdict %s, exit %d",
                        first_report_.alpha.value, to_string(first_report_.verdict), first_code_),
                 first_code_ == 0 && first_report_.alpha.ci.low > 0.70);
    story_.say(to_string(first_report_.verdict) + std::string(": acceptance ") + with_interval(first_report_.alpha) +
               ", speed-up " + with_interval(first_report_.speedup) +
               format(", greedy text identical on %lld of %lld prompts",
                      static_cast<long long>(first_report_.greedy_identical),
                      static_cast<long long>(first_report_.greedy_prompts)));
  }

  long long layers() const { return read_json(first_ / "config.json").value("num_hidden_layers", 0); }

  void package_and_serve() {
    story_.begin("package");
    std::vector<std::string> arguments = {"package",
                                          "--target",
                                          first_,
                                          "--draft",
                                          out_ / "run" / "draft",
                                          "--report",
                                          out_ / "gate" / "report.json",
                                          "--store",
                                          out_ / "store",
                                          "--channel",
                                          "production"};
    // After a failed gate the demo goes on, because its other steps are still worth showing.
    if (first_code_ != 0) arguments.push_back("--allow-failed");
    const Json packaged = story_.run_json(arguments);
    story_.say("sha256-" + packaged.at("digest").get<std::string>().substr(0, 12) + " → production" +
               (first_code_ != 0 ? std::string(", although the gate says ") + to_string(first_report_.verdict) : ""));
    story_.begin("serve");
    {
      BackgroundChild server(story_.program(), serve_arguments(), out_ / "serve.log");
      const std::string url = server.wait_for_line("listening on ", 60);
      const TrafficFigures sampled =
          send_traffic(url, options_.seed, options_.conversations, kServed, DemoEdition::kFirst);
      const int64_t same = compare_greedy(url);
      story_.check(format("served greedy text equals plain decoding: %lld of 4 answers", static_cast<long long>(same)),
                   same == 4);
      const int code = server.stop();
      story_.check(format("SIGTERM drains the server: exit %d", code), code == 0);
      story_.say(format(
          "%lld answers, %.0f tokens per second, one after the other; greedy text as without the draft %lld of 4",
          static_cast<long long>(sampled.answers), sampled.tokens / sampled.seconds, static_cast<long long>(same)));
    }
    story_.begin("monitor");
    int code = 0;
    const Json verdict = story_.monitor({}, &code);
    story_.check(
        "the monitor finds nothing wrong: " + verdict.at("verdict").get<std::string>() + format(", exit %d", code),
        code == 0);
    story_.say(verdict.at("verdict").get<std::string>());
  }

  // K is fixed, because the automatic choice may stop drafting on a busy machine, and the monitor would have no
  // acceptance to judge.
  std::vector<std::string> serve_arguments() const {
    return {"--log-format", "text", "serve",    story_.channel(), "--port", "0", "--dtype", "fp32", "--threads", "1",
            "--k",          "2",    "--record", out_ / "recorded"};
  }

  // Asks four questions, each both of the server with the draft and of `generate` without a draft. Returns the number
  // of equal answers.
  int64_t compare_greedy(const std::string& url) {
    int64_t same = 0;
    for (int64_t i = 0; i < 4; ++i) {
      const DemoConversation c = demo_conversation(options_.seed, options_.conversations + i, DemoEdition::kFirst);
      write_file_atomic(out_ / "messages.json", Json::array({{{"role", "user"}, {"content", c.question}}}).dump());
      const Json plain = story_.run_json({"generate", "--target", first_, "--messages", out_ / "messages.json",
                                          "--temperature", "0", "--k", "0", "--max-tokens", "64", "--dtype", "fp32"});
      same += ask(url, c.question, 0.0, 64) == plain.at("text").get<std::string>();
    }
    return same;
  }

  void overnight_update() {
    story_.begin("update");
    int refused = 0, stale = 0;
    story_.run_json({"serve", "--target", updated_, "--draft", out_ / "run" / "draft", "--port", "0"}, {0, 5},
                    &refused);
    const Json verdict = story_.monitor({"--target", updated_}, &stale);
    story_.check(
        format("after the overnight update serve refuses the draft (exit %d) and the monitor says %s (exit %d)",
               refused, verdict.at("verdict").get<std::string>().c_str(), stale),
        refused == 5 && stale == 5);
    write_traffic(out_ / "logs" / "day-2.jsonl", DemoEdition::kUpdated, options_.conversations, options_.conversations);
    story_.run_json({"data", "ingest", out_ / "logs" / "day-2.jsonl", "--target", updated_, "--out",
                     out_ / "data-updated", "--holdout", "0.06"});
    const ValidationReport report = validate(updated_, out_ / "run" / "draft", out_ / "data-updated", "gate-stale",
                                             {"--parts", "acceptance", "--allow-stale"})
                                        .report;
    check_entropy(report, "the updated target");
    const double drop = first_report_.alpha.value - report.alpha.value;
    story_.check(format("the update drops the draft's acceptance by at least 0.2: %.3f → %.3f",
                        first_report_.alpha.value, report.alpha.value),
                 drop >= 0.2);
    story_.say("serve refuses (exit 5), monitor says " + verdict.at("verdict").get<std::string>() +
               "; the old draft's acceptance is " + with_interval(report.alpha));
  }

  void redistil() {
    story_.begin("loop run");
    const std::string toml =
        "[loop]\ntarget = \"" + updated_.string() +
        "\"\nlogs = [\"logs/day-2.jsonl\"]\nwork = \"loop\"\nstore = \"store\"\n" +
        "channel = \"production\"\ndraft = \"prune:1\"\n[data]\nholdout = 0.06\n[distill]\ntime-limit = \"" +
        format("%.0fs", options_.distill_seconds) +
        "\"\ndtype = \"fp32\"\nthreads = 1\n[validate]\ndtype = \"fp32\"\nthreads = 1\nmax-requests = "
        "96\nspeed-prompts = " +
        kSpeedPrompts + "\nspeed-tokens = " + kSpeedTokens + "\n";
    write_file_atomic(out_ / "LOOP.toml", toml);
    int code = 0;
    const Json loop = story_.run_json({"-q", "loop", "run", out_ / "LOOP.toml"}, {0, 3, 4, 6}, &code);
    const fs::path report_file = out_ / "loop" / "runs" / loop.at("key").get<std::string>() / "gate" / "report.json";
    const auto report = validation_report_from_json(read_json(report_file), report_file.string());
    const std::string verdict = loop.at("verdict");
    story_.check(format("redistilling brings it back: acceptance %.3f > 0.70, %s", report.alpha.value, verdict.c_str()),
                 report.alpha.ci.low > 0.70 && verdict == kPromoted);
    story_.say(
        "data, distill, validate, package, promote: acceptance " + with_interval(report.alpha) + ", speed-up " +
        with_interval(report.speedup) +
        (code != 0 ? std::string("; the gate says ") + to_string(report.verdict) + ", so the old package stays" : ""));
    story_.begin("monitor");
    if (verdict == kPromoted) {
      BackgroundChild server(story_.program(), serve_arguments(), out_ / "serve-updated.log");
      send_traffic(server.wait_for_line("listening on ", 60), options_.seed, 2 * options_.conversations, kServed,
                   DemoEdition::kUpdated);
      server.stop();
    }
    const Json found = story_.monitor({"--target", updated_}, &code);
    story_.check("the new package fits the new target: exit " + std::to_string(code), code == 0);
    story_.say(found.at("verdict").get<std::string>());
  }

  void compare() {
    story_.begin("bench");
    const fs::path draft = out_ / "run" / "draft", naive = out_ / "untrained";
    const std::vector<std::string> common = {"--target",  first_,       "--data",    out_ / "data", "--prompts", "12",
                                             "--tokens",  kSpeedTokens, "--batches", "1",           "--dtype",   "fp32",
                                             "--threads", "1"};
    const auto bench = [&](const fs::path& of, const std::string& ks, const std::string& name) {
      std::vector<std::string> arguments = {"bench", "--draft", of, "--ks", ks, "--max-k", "5", "--out", out_ / name};
      arguments.insert(arguments.end(), common.begin(), common.end());
      return story_.run_json(arguments);
    };
    const Json random = bench(naive, "10", "bench-naive"), good = bench(draft, "auto", "bench");
    table_ = demo_table({good, first_report_.alpha.value}, {random, untrained_alpha_});
    story_.say("normal, naive random draft with K=10, distilled with adaptive K up to 5");
  }

  int finish() {
    story_.result().table = table_;
    story_.result().report = (out_ / "gate" / "report.html").string();
    return story_.finish(table_to_text(table_));
  }

  DemoOptions options_;
  fs::path first_, updated_;
  Story story_;
  const fs::path& out_;
  ValidationReport first_report_;
  int first_code_ = 0;
  double untrained_alpha_ = 0;
  std::vector<DemoTableRow> table_;
};

}  // namespace

int run_demo(const Global& global, const DemoOptions& options) {
  set_stop_seconds(kStopSecondsOfParents);
  return Demo(global, options).run();
}

}  // namespace specdec::cli
