#include <CLI/CLI.hpp>
#include <memory>

#include "cli/command.h"
#include "deploy/validate/options.h"

namespace specdec::cli {

namespace {

const char kGateExamples[] =
    "Examples:\n"
    "  specdec validate --target T --draft run/draft --data traffic --out gate\n"
    "  specdec validate --target T --draft D --data traffic --out gate --parts acceptance --max-requests 0 "
    "--contexts data\n"
    "  specdec validate --target T --draft new --data traffic --out gate --against store:production --segments-floor "
    "0.55\n"
    "  specdec --json validate --target T --draft new --data traffic --out gate --baseline old-gate/report.json "
    "--predict c=0.05,v=1.1,batch=8\n"
    "Exit codes: 0 pass, 3 fail or not lossless, 4 inconclusive, 5 stale, 6 not worth it.";

void add_gate_flags(CLI::App& sub, deploy::ValidateOptions& o) {
  sub.add_option("--floor", o.floor, "Fail if acceptance is surely below this; values under 0.5 need --force")
      ->capture_default_str()
      ->group("Gate");
  sub.add_option("--segment-floor", o.segment_floors, "NAME=FLOOR for one segment; may be repeated")
      ->type_name("NAME=FLOOR")
      ->allow_extra_args(false)
      ->group("Gate");
  sub.add_option("--segments-floor", o.segments_floor, "Floor of every segment with at least 30 requests")
      ->group("Gate");
  sub.add_option(
         "--min-gain", o.min_gain,
         "Least gain of acceptance over the other draft; default: -0.02 with --against, not checked with --baseline")
      ->group("Gate");
  sub.add_option("--goal", o.goal, "Acceptance to aim for; it is only reported")->capture_default_str()->group("Gate");
  sub.add_flag("--force", o.force, "Allow a floor below 0.5")->group("Gate");
  sub.add_flag("--allow-stale", o.allow_stale, "Measure a draft that was made for another target")->group("Gate");
  sub.add_flag("--exit-zero", o.exit_zero, "Exit 0 whatever the verdict")->group("Gate");
}

}  // namespace

void add_validate(Cli& cli) {
  auto options = std::make_shared<deploy::ValidateOptions>();
  CLI::App* sub = cli.app.add_subcommand(
      "validate", "Runs the gate: acceptance, roll-outs, speed and exactness of a draft, and a verdict");
  sub->add_option("--target", options->target, "MODEL: local directory, .gguf file, org/name[@revision] or package")
      ->type_name("MODEL")
      ->required();
  sub->add_option("--draft", options->draft, "MODEL to be validated (a package brings its own)")->type_name("MODEL");
  sub->add_option("--data", options->data, "Output of data ingest")->type_name("DIR")->required();
  sub->add_option("--out", options->out, "Directory for report.json, report.html, report.md and report.junit.xml")
      ->type_name("DIR")
      ->required();
  sub->add_option("--split", options->split, "holdout | train | all")
      ->type_name("holdout|train|all")
      ->capture_default_str();
  sub->add_option("--contexts", options->contexts,
                  "target: the target first rewrites answers that it did not write | data: the text is used as it is")
      ->type_name("target|data")
      ->capture_default_str();
  sub->add_option("--parts", options->parts,
                  "Comma-separated list; with fewer parts the verdict is inconclusive unless it is already decided")
      ->type_name("acceptance|rollout|speed|lossless,...")
      ->capture_default_str();
  sub->add_option("--baseline", options->baseline, "An earlier report.json to compare with, request by request")
      ->type_name("FILE");
  sub->add_option("--against", options->against,
                  "MODEL or STORE:CHANNEL whose draft serves now; it is scored on the same requests, in the same "
                  "passes of the target")
      ->type_name("MODEL|STORE:CHANNEL");
  add_gate_flags(*sub, *options);
  sub->add_option("--max-requests", options->max_requests,
                  "Number of requests from the split, in random order; scoring stops earlier when the verdict on "
                  "acceptance is sure; 0 = all")
      ->capture_default_str()
      ->group("Effort");
  sub->add_flag_callback(
         "--no-early-stop", [options] { options->early_stop = false; }, "Score all of them")
      ->group("Effort");
  sub->add_option("--rollout-requests", options->rollout_requests,
                  "How many of these are used for the roll-outs (the monitor's baseline); 0 = all")
      ->capture_default_str()
      ->group("Effort");
  sub->add_option(
         "--predict", options->predict,
         "c=C,v=V[,batch=B]: predict the speed-up of another engine from its costs in plain steps; may be repeated")
      ->type_name("c=C,v=V[,batch=B]")
      ->allow_extra_args(false);
  sub->add_option("--rollout-tokens", options->rollout_tokens, "Tokens per answer in roll-outs and rewritten contexts")
      ->capture_default_str()
      ->group("Effort");
  sub->add_option("--speed-prompts", options->speed_prompts, "Number of prompts for the measured speed-up")
      ->capture_default_str()
      ->group("Effort");
  sub->add_option("--speed-tokens", options->speed_tokens, "Tokens per answer for the measured speed-up")
      ->capture_default_str()
      ->group("Effort");
  add_sampling_flags(*sub, options->sampling);
  add_speculation_flags(*sub, options->speculation);
  add_device_flags(*sub, options->device);
  add_draft_dtype_flag(*sub, options->device);
  add_exact_flag(*sub, options->device);
  sub->footer(kGateExamples);
  sub->callback([&cli, options] {
    cli.check = [options] { validate(*options); };
    select_engine(cli, cli.runners.validate, options);
  });
}

}  // namespace specdec::cli
