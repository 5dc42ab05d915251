#include "cli/data_label.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/clock.h"
#include "base/model_directory.h"
#include "cli/data_commands.h"
#include "cli/data_results.h"
#include "distill/labels/label_endpoint.h"

namespace specdec::cli {

namespace {

struct LabelFlags {
  distill::LabelOptions options;
  std::string target, target_files, api_key_file;
};

}  // namespace

void print_labels(const Global& global, const distill::LabelOptions& options, const distill::LabelResult& done,
                  double seconds) {
  if (global.json) {
    LabelsResult result;
    result.out = options.out;
    result.index = done.index, result.made = done.made, result.kept = done.kept, result.refused = done.refused;
    print_result(result, done.index.started, seconds);
    return;
  }
  int64_t positions = 0;
  for (const LabelShard& shard : done.index.shards) positions += shard.num_positions;
  const std::string what = done.index.kind == "hidden"
                               ? "hidden states"
                               : "the " + std::to_string(done.index.top_k) + " likeliest tokens and the rest";
  std::printf("labels   %8lld rows new, %lld kept from an earlier run\n", static_cast<long long>(done.made),
              static_cast<long long>(done.kept));
  if (done.refused > 0) std::printf("refused  %8lld rows by the endpoint\n", static_cast<long long>(done.refused));
  std::printf("answers  %8lld positions, %s\nwritten to %s\n", static_cast<long long>(positions), what.c_str(),
              options.out.c_str());
}

int run_label_endpoint(const Global& global, const distill::LabelOptions& options) {
  const SystemClock clock;
  const double start = clock.seconds();
  const distill::LabelResult done = distill::label_by_endpoint(options, make_progress(global));
  print_labels(global, options, done, clock.seconds() - start);
  return 0;
}

void add_label(Cli& cli, CLI::App& data) {
  auto f = std::make_shared<LabelFlags>();
  distill::LabelOptions& o = f->options;
  CLI::App* sub =
      data.add_subcommand("label", "Writes the target's answers at every learnt token, for distill --teacher");
  sub->add_option("dir", o.data, "Output of data ingest or data regenerate")->type_name("DIR")->required();
  sub->add_option("--target", f->target, "MODEL (runs in this process) or URL http(s)://host[:port][/v1]")
      ->type_name("MODEL|URL")
      ->required();
  sub->add_option("--out", o.out, "Directory to write")->type_name("DIR")->required();
  sub->add_option("--top-k", o.top_k,
                  "Probabilities of this many likeliest tokens, and of the rest together; 0 = 32, or 20 at a URL")
      ->capture_default_str();
  sub->add_flag("--hidden", o.hidden, "Hidden states of the last layer (bf16) instead of probabilities");
  sub->add_option("--temperature", o.temperature, "Temperature of the probabilities")->capture_default_str();
  sub->add_option("--target-files", f->target_files,
                  "With a URL: local directory of the same model; its fingerprint is recorded")
      ->type_name("DIR");
  sub->add_option("--model", o.model, "Name of the model at the endpoint (else the first of /v1/models)")
      ->type_name("NAME");
  sub->add_option("--api-key-file", f->api_key_file, "With a URL: file with the key (else OPENAI_API_KEY)")
      ->type_name("FILE");
  sub->add_option("--concurrency", o.concurrency, "Requests at a time")->capture_default_str();
  sub->add_option("--request-timeout", o.request_timeout_s, "Seconds for one answer")->capture_default_str();
  sub->add_flag("--resume", o.resume, "Keep the labels of an interrupted run");
  add_device_flags(*sub, o.device);
  sub->footer(
      "Examples:\n"
      "  specdec data label traffic --target T --out traffic-labels\n"
      "  specdec data label traffic --target http://10.0.0.5:8000/v1 --target-files models/llama --out traffic-labels "
      "--concurrency 16\n"
      "  specdec distill --target T --data traffic --draft model:small --out run --teacher labels:traffic-labels\n"
      "Exit codes: 0 done, 2 key or model refused, 7 another tokenizer or unusable answers, 75 endpoint down or a "
      "signal: --resume continues.");
  sub->callback([&cli, f] {
    distill::LabelOptions& options = f->options;
    if (names_endpoint(f->target)) {
      cli.selected = [&cli, f] {
        distill::LabelOptions& o = f->options;
        o.url = f->target;
        o.api_key = endpoint_key(f->api_key_file, f->target);
        if (!f->target_files.empty()) o.target = resolve_model(f->target_files).directory.string();
        return run_label_endpoint(cli.global, o);
      };
      return;
    }
    options.target = f->target;
    select_engine(cli, cli.runners.label, std::shared_ptr<distill::LabelOptions>(f, &options));
  });
}

}  // namespace specdec::cli
