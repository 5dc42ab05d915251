#include <CLI/CLI.hpp>
#include <memory>

#include "base/error.h"
#include "cli/command.h"
#include "deploy/bench/options.h"

namespace specdec::cli {

namespace {

// Converts the words of a comma list to whole numbers; "auto" gives -1 and is accepted only if `allow_auto`. Throws
// Error(kUsage) for any other word.
std::vector<int> parse_list(const char* flag, const std::vector<std::string>& words, bool allow_auto) {
  std::vector<int> values;
  for (const std::string& word : words) {
    if (allow_auto && word == "auto") {
      values.push_back(-1);
      continue;
    }
    if (word.empty() || word.size() > 4 || word.find_first_not_of("0123456789") != std::string::npos)
      throw Error(ErrorKind::kUsage, std::string(flag) + ": expected whole numbers" + (allow_auto ? " or auto" : "") +
                                         ", found '" + word + "'");
    values.push_back(std::stoi(word));
  }
  return values;
}

}  // namespace

void add_bench(Cli& cli) {
  auto options = std::make_shared<deploy::BenchOptions>();
  CLI::App* sub = cli.app.add_subcommand(
      "bench", "Compares normal and speculative decoding on the same prompts and lengths; ranks drafts by speed-up");
  sub->add_option("--target", options->target, "MODEL: local directory, .gguf file, org/name[@revision] or package")
      ->type_name("MODEL")
      ->required();
  sub->add_option("--draft", options->drafts, "MODEL that drafts; give several to rank them")
      ->type_name("MODEL")
      ->required()
      ->expected(1, 64);
  sub->add_option("--data", options->data, "Output of data ingest")->type_name("DIR")->required();
  sub->add_option("--out", options->out, "Directory for bench.json, bench.html and bench.md")
      ->type_name("DIR")
      ->required();
  sub->add_option("--split", options->split, "holdout | train | all")
      ->type_name("holdout|train|all")
      ->capture_default_str();
  sub->add_option_function<std::vector<std::string>>(
         "--ks", [options](const std::vector<std::string>& words) { options->ks = parse_list("--ks", words, true); },
         "Draft tokens per step: comma list of numbers and auto")
      ->type_name("N|auto")
      ->delimiter(',')
      ->default_str("2,4,6,auto");
  sub->add_option_function<std::vector<std::string>>(
         "--batches",
         [options](const std::vector<std::string>& words) { options->batches = parse_list("--batches", words, false); },
         "Sequences decoded together: comma list")
      ->type_name("N")
      ->delimiter(',')
      ->default_str("1,2,4");
  sub->add_option("--prompts", options->prompts, "Number of prompts, spread over the split")->capture_default_str();
  sub->add_option("--tokens", options->tokens, "Tokens of every answer; end of text is ignored")->capture_default_str();
  sub->add_flag("--allow-stale", options->allow_stale, "Run drafts that were made for another target");
  add_sampling_flags(*sub, options->sampling);
  add_verify_flags(*sub, options->speculation);
  add_shape_flags(*sub, options->speculation);
  add_device_flags(*sub, options->device);
  add_draft_dtype_flag(*sub, options->device);
  add_exact_flag(*sub, options->device);
  sub->footer(
      "Examples:\n"
      "  specdec bench --target T --draft run/draft --data traffic --out bench\n"
      "  specdec bench --target T --draft small --draft smaller --data traffic --out bench --ks 4,auto --batches 1,8\n"
      "  specdec bench --target T --draft naive --data traffic --out bench --ks 10 --batches 1 --temperature 0\n"
      "Exit codes: 0 done, whichever is faster, 3 not lossless, 5 stale.");
  sub->callback([&cli, options] { select_engine(cli, cli.runners.bench, options); });
}

}  // namespace specdec::cli
