#include <CLI/CLI.hpp>
#include <memory>

#include "cli/command.h"
#include "deploy/generate/options.h"

namespace specdec::cli {

void add_generate(Cli& cli) {
  auto options = std::make_shared<deploy::GenerateOptions>();
  CLI::App* sub =
      cli.app.add_subcommand("generate", "Prints one answer in the terminal, with the speculation figures at the end");
  sub->add_option("--target", options->target, "MODEL: local directory, .gguf file, org/name[@revision] or package")
      ->type_name("MODEL")
      ->required();
  sub->add_option("--draft", options->draft, "MODEL that drafts (a package brings its own)")->type_name("MODEL");
  CLI::Option* prompt = sub->add_option_function<std::string>(
                               "--prompt",
                               [options](const std::string& text) {
                                 options->prompt = text;
                                 options->has_prompt = true;
                               },
                               "Raw text after BOS; empty = only BOS")
                            ->type_name("TEXT");
  CLI::Option* messages = sub->add_option("--messages", options->messages_file,
                                          "JSON array of {role, content}, rendered by the chat template")
                              ->type_name("FILE");
  prompt->excludes(messages);
  sub->add_option("--max-tokens", options->max_tokens, "Longest answer in tokens")->capture_default_str();
  sub->add_flag("--ignore-eos", options->ignore_eos, "Continue after the end-of-text token");
  sub->add_flag("--allow-stale", options->allow_stale, "Use a draft that was made for another target");
  add_sampling_flags(*sub, options->sampling);
  sub->add_option("--presence-penalty", options->presence_penalty,
                  "Subtracted once from the logit of each token that already occurs in the answer, -2 to 2")
      ->capture_default_str()
      ->group("Sampling");
  sub->add_option("--frequency-penalty", options->frequency_penalty,
                  "Subtracted once for each time the token already occurs in the answer, -2 to 2")
      ->capture_default_str()
      ->group("Sampling");
  sub->add_option("--repetition-penalty", options->repetition_penalty,
                  "Divides positive logits of tokens of prompt and answer, above 0 to 2")
      ->capture_default_str()
      ->group("Sampling");
  sub->add_option("--logit-bias", options->logit_bias,
                  "ID=VALUE, -100 to 100, added to this token's logit; may be repeated")
      ->type_name("ID=VALUE")
      ->group("Sampling");
  sub->add_option("--bad-word", options->bad_words, "Text that the answer must not contain; may be repeated")
      ->type_name("TEXT")
      ->group("Sampling");
  CLI::Option* schema = sub->add_option("--json-schema", options->json_schema_file,
                                        "FILE with a JSON schema; the answer is JSON that follows it")
                            ->type_name("FILE")
                            ->group("Sampling");
  CLI::Option* regex = sub->add_option("--regex", options->regex, "Regular expression that the whole answer matches")
                           ->type_name("REGEX")
                           ->group("Sampling");
  schema->excludes(regex);
  add_speculation_flags(*sub, options->speculation);
  add_shape_flags(*sub, options->speculation);
  add_device_flags(*sub, options->device);
  add_draft_dtype_flag(*sub, options->device);
  add_exact_flag(*sub, options->device);
  sub->footer(
      "Examples:\n"
      "  specdec generate --target stories260K --prompt \"Once upon a time\"\n"
      "  specdec generate --target T --draft run/draft --prompt \"\" --temperature 0 --k 5 --max-tokens 200\n"
      "  specdec generate --target T --prompt \"Shall I? \" --regex \"(yes|no), because [a-z ]+\\.\" --temperature 0\n"
      "  specdec --json generate --target store:production --messages chat.json --seed 7\n"
      "Exit codes: 0 done, 5 stale draft, 7 model, 8 memory or device, 130 or 143 stopped by a signal.");
  sub->callback([&cli, options] { select_engine(cli, cli.runners.generate, options); });
}

}  // namespace specdec::cli
