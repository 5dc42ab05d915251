// Runs the training and prints its result: a table or one JSON object.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "base/model_directory.h"
#include "base/safetensors.h"
#include "cli/distill_page.h"
#include "cli/engine/comparison_text.h"
#include "cli/engine/forecast_text.h"
#include "cli/engine/runners.h"
#include "cli/error_report.h"
#include "cli/log.h"
#include "cli/output.h"
#include "deploy/models/load_pair.h"
#include "deploy/validate/draft_costs.h"
#include "distill/labels/label_endpoint.h"
#include "distill/run/run.h"
#include "distill/study/comparison.h"
#include "distill/study/forecast.h"
#include "engine/parallel/launch.h"

namespace specdec::cli {

namespace {

// Returns the end of the text: the reason for the suggested command, and the command.
std::string next_text(const DistillReport& r) {
  return r.next.empty() ? "" : "next         " + r.next_reason + "\n             " + r.next + "\n";
}

std::string side_text(const char* name, const DistillSide& side, bool by_acceptance) {
  const DistillFigure& f = side.figure;
  return format("%-12s %s %.4f ", name, by_acceptance ? "acceptance" : "cross entropy", f.value.value_or(0)) +
         interval_text({f.low.value_or(0), f.high.value_or(0)}, 4) +
         (by_acceptance ? format("   greedy agreement %.4f", side.greedy_agreement.value_or(0)) : "") + "\n";
}

std::string table(const DistillReport& r, const std::string& out) {
  std::string text = "verdict      " + std::string(to_string(r.verdict)) + ": " + r.reason + "\n";
  if (!r.training || !r.scores) return text + next_text(r);
  const DistillScores& scores = *r.scores;
  const DistillTraining& t = *r.training;
  const auto whole = [](int64_t x) { return static_cast<long long>(x); };
  text += side_text("before", scores.before, scores.by_acceptance);
  text += side_text("after", scores.after, scores.by_acceptance);
  text += format("judged on    %lld requests of %lld conversations, %lld tokens\n", whole(scores.requests),
                 whole(scores.conversations), whole(scores.tokens));
  text += format("trained      %lld steps, %lld tokens, %.0f s, %.0f tokens/s; checkpoint of step %lld kept\n",
                 whole(t.steps), whole(t.tokens), t.seconds, t.tokens_per_second, whole(t.kept_step));
  if (t.chosen.is_object())
    text += format("settings     %lld x %lld tokens per step, peak learning rate %.2g\n",
                   whole(t.chosen.at("accumulate").get<int64_t>()), whole(t.chosen.at("batch_tokens").get<int64_t>()),
                   t.chosen.at("learning_rate").get<double>());
  return text + "draft        " + out + "/draft\nreport       " + out + "/report.html\n" + next_text(r);
}

// Makes LibTorch use huge pages for large blocks, if the user has not decided otherwise (THP_MEM_ALLOC_ENABLE,
// c10/core/impl/alloc_cpu.cpp). Training constantly allocates and frees blocks of hundreds of MB. The C library returns
// each freed block to the system, which then zeroes the pages of the next block; with a vocabulary of 152k, zeroing
// small pages took nearly half of the training time. Keeping freed blocks in the process is as fast, but few of them
// fit a later request, and the process grew to four times the memory in use.
void take_huge_pages() { ::setenv("THP_MEM_ALLOC_ENABLE", "1", 0); }

// Asks the endpoint that --teacher names for the labels of all rows and stores them beside the run. Complete labels of
// an earlier call are reused without asking again, unless the options differ.
void label_first(const Global& global, distill::DistillOptions& options) {
  distill::LabelOptions o;
  o.data = options.data;
  o.out = std::filesystem::path(options.out).lexically_normal().string();
  while (o.out.ends_with('/')) o.out.pop_back();
  o.out += ".labels";
  o.url = options.teacher;
  if (has_weights(options.target)) o.target = options.target;
  o.model = options.endpoint.model;
  o.top_k = options.endpoint.top_k;
  o.concurrency = options.endpoint.concurrency;
  o.api_key = endpoint_key(options.endpoint.key_file, o.url);
  o.resume = true;
  if (!distill::has_labels(o)) distill::label_by_endpoint(o, make_progress(global));
  options.teacher = "labels:" + o.out;
}

// Silences this rank. Only rank 0 prints results and notes, but every rank prints the error that ends it.
void be_quiet(const Global& global) {
  if (std::freopen("/dev/null", "w", stdout) == nullptr) throw Error(ErrorKind::kIo, "/dev/null cannot be opened");
  set_log_sink([&global](LogLevel level, const std::string& message) {
    if (level == LogLevel::kError) say(message, level);
  });
}

// Divides the cores of a machine among its processes, unless the launcher or the user has set the number of threads.
void share_cores(const parallel::Launch& launch, distill::DistillOptions& options) {
  if (launch.local_ranks == 1 || options.device.threads > 0 || std::getenv("OMP_NUM_THREADS")) return;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  options.device.threads = std::max(1, cores / launch.local_ranks);
}

// Replaces the names of models in the options by local directories. A target that is a directory with a tokenizer is
// left as it is, because --loss ce also accepts a target without weights. Any other target (a hub name, a package, or a
// directory without a tokenizer) must resolve to a model with weights. Drafts "model:…" are resolved, too.
void resolve_models(distill::DistillOptions& options) {
  if (!std::filesystem::exists(std::filesystem::path(options.target) / "tokenizer.json"))
    options.target = resolve_model(options.target).directory.string();
  const auto resolve_draft = [](std::string& draft) {
    const distill::DraftSpec spec = distill::parse_draft_spec(draft);
    if (spec.kind != "model") return;
    const ResolvedModel model = resolve_model(spec.argument);
    draft = "model:" + (model.draft.empty() ? model.directory : model.draft).string();
  };
  resolve_draft(options.draft);
  for (std::string& draft : options.compared) resolve_draft(draft);
}

// Forecasts the run, or compares kinds of drafts, instead of training a draft. The speed is measured by functions of
// deploy/validate that are passed in, because distill must not depend on deploy.
int run_study(const Global& global, const distill::DistillOptions& options, const Clock& clock) {
  const ProgressFn progress = make_progress(global);
  distill::StudyTools tools{{}, clock, progress};
  if (has_weights(options.target))
    tools.speed = [&](const std::filesystem::path& draft, const std::vector<std::string>& ids) {
      deploy::DraftCostOptions o;
      o.target = options.target;
      o.draft = draft.string();
      o.data = options.data;
      o.ids = ids;
      o.temperature = options.temperature;
      o.device = options.device;
      return deploy::measure_draft(o, clock, progress);
    };
  const bool compares = !options.compared.empty();
  const distill::DistillResult result = compares ? distill::compare(options, tools) : distill::forecast(options, tools);
  write_output(global.json ? result.json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"
               : compares  ? comparison_text(read_fields<ComparisonReport>(result.json, options.out), options.out)
                           : forecast_text(read_fields<ForecastReport>(result.json, options.out), options.out));
  return result.exit_code;
}

}  // namespace

int run_distill(const Global& global, const distill::DistillOptions& given) {
  take_huge_pages();
  distill::DistillOptions options = given;
  const parallel::Launch launch = parallel::detect_launch(parallel::process_environment());
  if (launch.rank > 0) be_quiet(global);
  share_cores(launch, options);
  const bool asks = distill::parse_teacher(options.teacher).kind == distill::TeacherSpec::Kind::kEndpoint;
  if (asks && launch.ranks > 1)
    throw Error(ErrorKind::kUsage, "--teacher " + options.teacher +
                                       ": several processes do not ask an endpoint: write its labels by `specdec data "
                                       "label` first, and give --teacher labels:DIR");
  const bool is_study = options.forecast.wanted || !options.compared.empty();
  if (is_study && launch.ranks > 1)
    throw Error(ErrorKind::kUsage, "--forecast and --compare are made by one process, and " +
                                       std::to_string(launch.ranks) + " were started: leave the launcher out");
  const SystemClock clock;
  const auto on_lost = [&global](const Error& error) { std::_Exit(report_error(error, global, "distill")); };
  // Every rank reports what it waits for, because no other rank knows that.
  const auto on_wait = [](const std::string& what) { say("specdec: " + what, LogLevel::kWarn); };
  const parallel::Ranks ranks(launch,
                              {.on_lost = on_lost,
                               .on_wait = on_wait,
                               .next = "the same command with --resume goes on from the last checkpoint"},
                              clock);
  return ranks.together([&] {
    if (ranks.is_first()) distill::check_output(options);  // checked before a target is downloaded
    resolve_models(options);
    if (std::filesystem::exists(std::filesystem::path(options.target) / "tokenizer.json"))
      options.tokenizer_end = deploy::tokenizers_end(options.target);
    distill::check_request(options);
    if (asks) label_first(global, options);
    if (is_study) return run_study(global, options, clock);
    const distill::DistillResult result = distill::run(options, make_progress(global), clock, ranks);
    if (!ranks.is_first()) return result.exit_code;
    const auto report = read_fields<DistillReport>(result.json, options.out);
    write_pages(distill_page(report, read_curves(std::filesystem::path(options.out) / "metrics.jsonl")), options.out,
                "report");
    write_output(global.json ? result.json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"
                             : table(report, options.out));
    return result.exit_code;
  });
}

}  // namespace specdec::cli
