#include "cli/command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "cli/demo/demo.h"
#include "cli/demo/model_story.h"
#include "cli/demo/traffic_generator.h"
#include "cli/output.h"

namespace specdec::cli {

namespace {

struct TrafficOptions {
  int64_t first = 0, count = 1000;
  uint64_t seed = 1;
  std::string edition = "first";
};

int print_traffic(const TrafficOptions& o) {
  const DemoEdition edition = o.edition == "first" ? DemoEdition::kFirst : DemoEdition::kUpdated;
  for (int64_t i = o.first; i < o.first + o.count; ++i)
    std::printf("%s\n", to_chat_row(demo_conversation(o.seed, i, edition)).c_str());
  require_output_written();
  return 0;
}

}  // namespace

void add_demo(Cli& cli) {
  CLI::App* demo = cli.app.add_subcommand("demo",
                                          "Plays the life of a draft, on the embedded model or on one of yours: it is "
                                          "distilled, gated, served, becomes stale and is redistilled");
  auto options = std::make_shared<DemoOptions>();
  auto own = std::make_shared<ModelStoryOptions>();
  auto out = std::make_shared<std::string>("specdec-demo");
  demo->add_option("--out", *out, "Working directory; that of an earlier demo is replaced")
      ->type_name("DIR")
      ->capture_default_str();
  auto* model = demo->add_option("--model", own->model,
                                 "MODEL of your own instead of the embedded one, such as a .gguf file; it answers "
                                 "requests that ship with the program")
                    ->type_name("MODEL");
  demo->add_option("--minutes", own->minutes, "About how long the story takes")
      ->capture_default_str()
      ->check(within(2, 10000))
      ->needs(model);
  demo->add_option("--draft", own->draft, "Kind of the first draft, as in distill --draft")
      ->type_name("prune:N|config:FILE|eagle3")
      ->capture_default_str()
      ->needs(model);
  demo->add_option("--draft-vocab", own->draft_vocab, "Number of tokens that the draft can propose; 0 = all")
      ->capture_default_str()
      ->check(at_least(0))
      ->needs(model);
  auto* conversations = demo->add_option("--conversations", options->conversations, "Size of a day's traffic")
                            ->capture_default_str()
                            ->check(within(200, 100000));
  auto* distill_seconds =
      demo->add_option("--distill-seconds", options->distill_seconds, "Seconds for each of the two distillations")
          ->capture_default_str()
          ->check(within(1, 86400));
  conversations->excludes(model);
  distill_seconds->excludes(model);
  add_seed_flag(*demo, options->seed, "Seed of traffic and models");
  demo->footer(
      "Examples:\n  specdec demo\n  specdec demo --distill-seconds 30 --out /tmp/demo\n"
      "  specdec demo --model SmolLM2-135M-Instruct.gguf --minutes 30\n  specdec demo traffic --count 100 | head -3\n"
      "Exit codes: 0 all checks hold, 3 one fails.");
  demo->callback([&cli, options, own, out] {
    if (cli.selected) return;  // the subcommand `demo traffic` was selected already
    options->out = own->out = *out;
    own->seed = options->seed;
    cli.selected = [&cli, options, own] {
      return own->model.empty() ? run_demo(cli.global, *options) : run_model_story(cli.global, *own);
    };
  });

  CLI::App* traffic = demo->add_subcommand("traffic", "Prints the demo's conversations as OpenAI chat JSONL");
  auto traffic_options = std::make_shared<TrafficOptions>();
  traffic->add_option("--first", traffic_options->first, "Number of the first conversation")
      ->capture_default_str()
      ->check(at_least(0));
  traffic->add_option("--count", traffic_options->count, "How many")->capture_default_str()->check(at_least(0));
  add_seed_flag(*traffic, traffic_options->seed, "Seed");
  traffic->add_option("--edition", traffic_options->edition, "first | updated (after the overnight update)")
      ->capture_default_str()
      ->check(CLI::IsMember({"first", "updated"}));
  traffic->footer("Example:\n  specdec demo traffic --count 3000 > day-1.jsonl");
  traffic->callback(
      [&cli, traffic_options] { cli.selected = [traffic_options] { return print_traffic(*traffic_options); }; });
}

}  // namespace specdec::cli
