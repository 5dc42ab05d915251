#include "cli/demo/model_story.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "base/model_directory.h"
#include "base/verdict.h"
#include "cli/child_process.h"
#include "cli/demo/service_client.h"
#include "cli/demo/service_prompts.h"
#include "cli/demo/story.h"
#include "cli/demo/story_page.h"
#include "cli/loop/runs.h"
#include "cli/stop_deadline.h"
#include "data/tokenise.h"

namespace specdec::cli {

namespace {

namespace fs = std::filesystem;

// Number of requests that wait for an answer at the same time while traffic is made.
constexpr int kTogether = 8;
// Number of requests by which the served pair is compared with the model alone. The monitor needs 50 to judge.
constexpr int64_t kServed = 60;
// Number of right answers that the update learns from.
constexpr int64_t kLessons = 600;
// Shares of the story's time; the gates and what is short take the rest.
constexpr double kTrafficShare = 0.11, kDistilShare = 0.19, kUpdateShare = 0.1, kSecondTrafficShare = 0.07,
                 kRedistilShare = 0.12;

std::string first_line(const Estimate& alpha, const Estimate& speedup) {
  return "acceptance " + with_interval(alpha) + ", speed-up " + with_interval(speedup);
}

// Returns a model that answers chat requests. Throws Error(kModel) for other models.
ResolvedModel chat_model(const std::string& name) {
  ResolvedModel model = resolve_model(name);
  if (!data::RowTokeniser(model.directory).has_chat_template())
    throw Error(ErrorKind::kModel, name +
                                       ": no chat template, and the requests of this demo are chats: take a model "
                                       "that was tuned for instructions");
  return model;
}

// Throws Error(kUsage) if `path` lies in `out`, which the demo replaces.
void require_outside(const fs::path& out, const std::string& flag, const fs::path& path) {
  if (path.empty() || !fs::exists(path)) return;
  const fs::path from_out = fs::weakly_canonical(path).lexically_relative(fs::weakly_canonical(out));
  if (!from_out.empty() && *from_out.begin() != "..")
    throw Error(ErrorKind::kUsage, flag + " " + path.string() + " lies in --out " + out.string() +
                                       ", which the demo replaces: give another --out");
}

// Returns the options with paths checked and the draft's vocabulary no larger than the target's.
ModelStoryOptions checked(ModelStoryOptions options, const fs::path& target) {
  require_outside(options.out, "--model", options.model);
  require_outside(options.out, "--model", target);
  const size_t colon = options.draft.find(':');
  if (colon != std::string::npos) require_outside(options.out, "--draft", options.draft.substr(colon + 1));
  if (options.draft_vocab >= read_json(target / "config.json").value("vocab_size", int64_t{0})) options.draft_vocab = 0;
  return options;
}

class ModelStory {
 public:
  ModelStory(const Global& global, const ModelStoryOptions& options)
      : prompts_(demo_assets(global, "prompts.json") / "prompts.json"),
        model_(chat_model(options.model)),
        target_(model_.directory),
        options_(checked(options, target_)),
        story_(global, options.out),
        out_(story_.out()) {}

  int run() {
    traffic();
    distill();
    package();
    serve();
    update();
    redistil();
    return finish();
  }

 private:
  std::string seconds(double share) const { return format("%.0fs", share * 60 * options_.minutes); }

  // Serves `target` alone, records its answers for this share of the time and tokenises them.
  void record_traffic(const fs::path& target, const std::string& day, double share, int64_t first) {
    const fs::path log = out_ / "logs" / day, data = out_ / ("data-" + day);
    std::map<std::string, AnswerFigures> figures;
    {
      BackgroundChild server(story_.program(),
                             {"--log-format", "text", "serve", "--target", target, "--port", "0", "--max-batch",
                              std::to_string(kTogether), "--record", log},
                             out_ / ("serve-" + day + ".log"));
      figures = send_for(server.wait_for_line("listening on ", 120), prompts_, options_.seed, first, kTogether,
                         share * 60 * options_.minutes);
      server.stop();
    }
    story_.run_json({"data", "ingest", log, "--target", target, "--out", data, "--holdout", "0.15", "--learn", "last"});
    std::string text;
    for (const std::string& domain : prompts_.domains()) {
      const AnswerFigures& f = figures[domain];
      if (f.tokens == 0)
        throw Error(ErrorKind::kData, "demo: the model wrote no answer in " + domain +
                                          " in the time for traffic: give "
                                          "more --minutes, or see " +
                                          (out_ / ("serve-" + day + ".log")).string());
      text += format("%s%lld answers of %.0f tokens in %s", text.empty() ? "" : ", ", static_cast<long long>(f.answers),
                     f.tokens / static_cast<double>(std::max<int64_t>(1, f.answers)), domain.c_str());
    }
    story_.say(text + ", written by the model itself");
  }

  void traffic() {
    story_.begin("traffic");
    record_traffic(target_, "day-1", kTrafficShare, 0);
  }

  Story::Gate validate(const fs::path& target, const fs::path& draft, const std::string& day, const std::string& name,
                       const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {
        "--target",       target, "--draft",         draft, "--data", out_ / ("data-" + day),
        "--max-requests", "128",  "--speed-prompts", "24",  "--seed", std::to_string(options_.seed)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return story_.validate(arguments, name);
  }

  void distill() {
    story_.begin("distill");
    std::vector<std::string> arguments = {"distill",
                                          "--target",
                                          target_,
                                          "--data",
                                          out_ / "data-day-1",
                                          "--draft",
                                          options_.draft,
                                          "--out",
                                          out_ / "run",
                                          "--time-limit",
                                          seconds(kDistilShare),
                                          "--seed",
                                          std::to_string(options_.seed)};
    if (options_.draft_vocab > 0)
      arguments.insert(arguments.end(), {"--draft-vocab", std::to_string(options_.draft_vocab)});
    const Json result = story_.run_json(arguments, {0, 3, 4});
    if (!result.is_object() || !fs::exists(out_ / "run" / "draft") ||
        !result.at("acceptance").at("after").at("value").is_number())
      throw Error(ErrorKind::kData, "demo: too few answers to train and to judge a draft: give more --minutes");
    story_.say(format("%s, acceptance %.3f → %.3f on held-out text, %lld steps", options_.draft.c_str(),
                      result.at("acceptance").at("before").at("value").get<double>(),
                      result.at("acceptance").at("after").at("value").get<double>(),
                      static_cast<long long>(result.at("training").at("steps").get<int64_t>())));
    story_.begin("validate");
    gate_ = validate(target_, out_ / "run" / "draft", "day-1", "gate");
    const ValidationReport& r = gate_.report;
    story_.check(format("greedy text of the gate is that of the model alone: %lld of %lld prompts, %lld near-ties",
                        static_cast<long long>(r.greedy_identical), static_cast<long long>(r.greedy_prompts),
                        static_cast<long long>(r.near_ties)),
                 r.has_lossless && r.differences == 0);
    story_.say(std::string(to_string(r.verdict)) + ": " + first_line(r.alpha, r.speedup));
  }

  void package() {
    story_.begin("package");
    std::vector<std::string> arguments = {"package",
                                          "--target",
                                          target_,
                                          "--draft",
                                          out_ / "run" / "draft",
                                          "--report",
                                          out_ / "gate" / "report.json",
                                          "--store",
                                          out_ / "store",
                                          "--channel",
                                          "production",
                                          "--reference-target",
                                          "--engines",
                                          "specdec"};
    if (gate_.exit_code != 0) arguments.push_back("--allow-failed");
    const Json packaged = story_.run_json(arguments);
    story_.say(
        "sha256-" + packaged.at("digest").get<std::string>().substr(0, 12) + " → production" +
        (gate_.exit_code != 0 ? std::string(", although the gate says ") + to_string(gate_.report.verdict) : ""));
  }

  // Serves a pair and its target alone at the same time, and asks both the same requests, one after the other. `name`
  // names the logs, `report` is the gate's for this pair. Returns a row for each domain, and the exit code of the
  // pair's server.
  std::pair<std::vector<DemoDomainRow>, int> compare(std::vector<std::string> served, const fs::path& target,
                                                     const ValidationReport& report, const std::string& name) {
    served.insert(served.begin(), {"--log-format", "text", "serve"});
    served.insert(served.end(), {"--port", "0"});
    BackgroundChild pair(story_.program(), served, out_ / (name + ".log")),
        plain(story_.program(), {"--log-format", "text", "serve", "--target", target, "--port", "0"},
              out_ / (name + "-alone.log"));
    const std::string plain_url = plain.wait_for_line("listening on ", 120),
                      pair_url = pair.wait_for_line("listening on ", 120);
    const int64_t greedy = 4;
    int64_t same = 0;
    for (int64_t i = 0; i < greedy; ++i) {
      const ServicePrompt prompt = prompts_.at(options_.seed, kFirstServed + kServed + i);
      same += greedy_answer(pair_url, prompt) == greedy_answer(plain_url, prompt);
    }
    story_.check(format("%s: greedy text is that of the model alone in %lld of %lld answers", name.c_str(),
                        static_cast<long long>(same), static_cast<long long>(greedy)),
                 same == greedy);
    auto figures = send_in_turns({plain_url, pair_url}, prompts_, options_.seed, kFirstServed, kServed);
    std::vector<DemoDomainRow> rows;
    for (const std::string& domain : prompts_.domains()) {
      DemoDomainRow row;
      row.name = domain;
      const AnswerFigures &alone = figures[0][domain], &paired = figures[1][domain];
      if (alone.tokens == 0 || paired.tokens == 0) continue;  // the model ends every answer at once
      row.tokens_per_second = paired.tokens / paired.seconds;
      row.plain_tokens_per_second = alone.tokens / alone.seconds;
      row.speedup = row.tokens_per_second / row.plain_tokens_per_second;
      for (const SegmentFigure& segment : report.segments) {
        if (segment.name != domain) continue;
        row.acceptance = segment.alpha.value, row.low = segment.alpha.ci.low, row.high = segment.alpha.ci.high;
        const AcceptanceCounts& counts = segment.rollout.counts;
        for (size_t i = 0; i < counts.reached_at.size() && counts.reached_at[i] > 0; ++i)
          row.by_position.push_back(counts.overlap_sum_at[i] / static_cast<double>(counts.reached_at[i]));
      }
      rows.push_back(row);
    }
    return {rows, pair.stop()};
  }

  static std::string speeds(const std::vector<DemoDomainRow>& rows) {
    std::string text;
    for (const DemoDomainRow& row : rows)
      text += format("%s%s %.0f tokens/s, %.2f times the model alone", text.empty() ? "" : "; ", row.name.c_str(),
                     row.tokens_per_second, row.speedup);
    return text;
  }

  void serve() {
    story_.begin("serve");
    const auto [rows, code] =
        compare({story_.channel(), "--record", out_ / "recorded"}, target_, gate_.report, "served");
    story_.result().domains = rows;
    story_.check(format("SIGTERM drains the server: exit %d", code), code == 0);
    story_.say(speeds(rows));
  }

  // Fine-tunes the model on right answers of the narrow service, as its owner would overnight.
  void update() {
    story_.begin("update");
    {
      OutputFile lessons(out_ / "logs" / "lessons.jsonl");
      int64_t written = 0;
      for (int64_t i = 0; written < kLessons; ++i) {
        ServicePrompt prompt = prompts_.at(options_.seed + 1, i);
        if (prompt.answer.empty()) continue;
        // The examples of the prompt are left out: the model is to answer without them, and learns three times as much
        // in the same time.
        Json messages = Json::array({prompt.messages.front(), prompt.messages.back()});
        messages.push_back({{"role", "assistant"}, {"content", prompt.answer}});
        lessons.write(Json{{"messages", messages}, {"domain", prompt.domain}}.dump() + "\n");
        ++written;
      }
      lessons.finish();
    }
    story_.run_json({"data", "ingest", out_ / "logs" / "lessons.jsonl", "--target", target_, "--out", out_ / "lessons",
                     "--learn", "last", "--holdout", "0.05"});
    story_.run_json(
        {"distill", "--target",   target_, "--data", out_ / "lessons",    "--draft",      "model:" + target_.string(),
         "--loss",  "ce",         "--lr",  "0.0003", "--dtype",           "fp32",         "--batch-tokens",
         "512",     "--contexts", "data",  "--out",  out_ / "fine-tuned", "--time-limit", seconds(kUpdateShare)},
        {0, 3, 4});
    updated_ = out_ / "updated.gguf";
    story_.run_json({"export", "--gguf", updated_, "--type", "q8_0", out_ / "fine-tuned" / "draft"});
    int refused = 0, stale = 0;
    story_.run_json({"serve", "--target", updated_, "--draft", out_ / "run" / "draft", "--port", "0"}, {0, 5},
                    &refused);
    const Json verdict = story_.monitor({"--target", updated_}, &stale);
    story_.check(format("after the update serve refuses the draft (exit %d) and the monitor says %s (exit %d)", refused,
                        verdict.at("verdict").get<std::string>().c_str(), stale),
                 refused == 5 && stale == 5);
    story_.say("fine-tuned on " + std::to_string(kLessons) +
               " right calls of functions; serve refuses the draft, and the monitor says " +
               verdict.at("verdict").get<std::string>());
    story_.begin("traffic");
    record_traffic(updated_, "day-2", kSecondTrafficShare, kFirstOfSecondDay);
    story_.begin("validate");
    stale_ =
        validate(updated_, out_ / "run" / "draft", "day-2", "gate-stale", {"--parts", "acceptance", "--allow-stale"})
            .report;
    story_.say("the old draft's acceptance is " + with_interval(stale_.alpha) + " now");
  }

  void redistil() {
    story_.begin("loop run");
    const std::string toml =
        "[loop]\ntarget = \"updated.gguf\"\nlogs = [\"logs/day-2/*.jsonl\"]\nwork = \"loop\"\nstore = \"store\"\n"
        "channel = \"production\"\ndraft = \"model:run/draft\"\n[data]\nholdout = 0.15\nlearn = "
        "\"last\"\n[distill]\ntime-limit = \"" +
        seconds(kRedistilShare) +
        "\"\n[validate]\nmax-requests = 128\nspeed-prompts = 24\n[package]\nreference-target = "
        "true\nengines = \"specdec\"\n";
    write_file_atomic(out_ / "LOOP.toml", toml);
    int code = 0;
    const Json loop = story_.run_json({"-q", "loop", "run", out_ / "LOOP.toml"}, {0, 3, 4, 6}, &code);
    const fs::path report = out_ / "loop" / "runs" / loop.at("key").get<std::string>() / "gate" / "report.json";
    if (!fs::exists(report)) {
      story_.check("the loop reaches the gate: " + loop.at("verdict").get<std::string>(), false);
      return story_.say(loop.at("verdict").get<std::string>());
    }
    redistilled_ = validation_report_from_json(read_json(report), report.string());
    story_.check(format("redistilling raises acceptance on the new model: %.3f → %.3f", stale_.alpha.value,
                        redistilled_->alpha.value),
                 redistilled_->alpha.value > stale_.alpha.value);
    story_.say(std::string(to_string(redistilled_->verdict)) + ": " +
               first_line(redistilled_->alpha, redistilled_->speedup) +
               (code != 0 ? "; the package that was served before stays" : "; promoted"));
    story_.begin("serve");
    const fs::path draft = report.parent_path().parent_path() / "distill" / "draft";
    story_.result().updated_domains =
        compare({"--target", updated_, "--draft", draft}, updated_, *redistilled_, "served-updated").first;
    story_.say(speeds(story_.result().updated_domains));
  }

  int finish() {
    DemoResult& result = story_.result();
    result.report = (out_ / "story.html").string();
    const fs::path named = fs::path(options_.model).filename();
    write_html(story_page({.model = (named.empty() ? target_.filename() : named).string(),
                           .gate = gate_.report,
                           .stale = stale_,
                           .redistilled = redistilled_,
                           .result = result}),
               result.report);
    return story_.finish(domains_to_text(result.domains) + "\nafter the update of the model:\n" +
                         domains_to_text(result.updated_domains));
  }

  // Numbers of the first request of the second day, and of those by which pairs are compared. No day reaches them.
  static constexpr int64_t kFirstOfSecondDay = 1'000'000, kFirstServed = 2'000'000;

  ServicePrompts prompts_;
  ResolvedModel model_;  // holds a package of a store
  fs::path target_, updated_;
  ModelStoryOptions options_;
  Story story_;
  const fs::path& out_;
  Story::Gate gate_;
  ValidationReport stale_;
  std::optional<ValidationReport> redistilled_;
};

}  // namespace

int run_model_story(const Global& global, const ModelStoryOptions& options) {
  set_stop_seconds(kStopSecondsOfParents);
  return ModelStory(global, options).run();
}

}  // namespace specdec::cli
